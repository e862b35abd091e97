"""Converting a model between layouts and file formats, tensor by tensor at constant memory."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tengtune import files
from tengtune.models import layouts
from tengtune.models import spec as specs
from tengtune.models.layouts import HF, MCORE, MCORES, MINDFORMERS, QKV_CONCAT
from tengtune.models.spec import ModelSpec
from tengtune.ui.lists import joined, listed, size
from tengtune.ui.problems import FAILED_RUN, UNFIT_MACHINE, Problem
from tengtune.weights import ckpt_io, safetensors_io
from tengtune.weights.cast import DTYPES, cast
from tengtune.weights.companions import companions, copy_companions, write_bpe_files
from tengtune.weights.compare import same_samples
from tengtune.weights.found import CKPT, Found, open_found
from tengtune.weights.mindformers_yaml import YAML, model_section
from tengtune.weights.output import refuse_input
from tengtune.weights.record import Record, read_record, write_record
from tengtune.weights.safetensors_io import SHARD_BYTES, Advance
from tengtune.weights.shard import Note
from tengtune.weights.source import MINDSPORE_INDEX, canonical_tensors
from tengtune.weights.stacks import put_together
from tengtune.weights.stream import Rows, TensorStream

HUGGING_FACE, CKPT_FILE, MINDSPORE_SAFETENSORS = "hf", "mindspore", "mindspore-safetensors"
TARGETS = (HUGGING_FACE, CKPT_FILE, MINDSPORE_SAFETENSORS)


@dataclass
class Conversion:
    """A conversion that was checked and is not yet written.

    tensors: the model by canonical name; source, target: layouts; to: one of TARGETS; base: the folder of
    config.json and tokenizer; dtype None keeps each tensor's own. saturated: see weights/cast.py.
    """

    found: Found
    spec: ModelSpec
    tensors: dict[str, Rows]
    base: Path
    source: str
    target: str
    to: str
    dtype: str | None
    notes: list[Note] = field(default_factory=list)
    saturated: list[str] = field(default_factory=list)

    def streams(self) -> list[TensorStream]:
        """What is to be written, by the target's names."""
        kind = None if self.dtype is None else DTYPES[self.dtype]
        casts = [cast(name, rows, kind, self.saturated) for name, rows in self.tensors.items()]
        return put_together(self.spec, casts, self.target)

    @property
    def nbytes(self) -> int:
        """Bytes of the weights that will be written."""
        return sum(tensor.nbytes for tensor in self.streams())


def open_conversion(
    found: Found, to: str, layout: str | None = None, dtype: str | None = None, config: Path | None = None
) -> Conversion:
    """Check that weights, config and what is asked for belong together; nothing is written.

    layout: the MindSpore layout of the output, or with to="hf" of the input. config: the folder of
    config.json, by default the input's own. Raises Problem.
    """
    base = config_folder(found, config)
    spec, notes = specs.from_folder(base), list[Note]()
    if found.layout is None or found.family is None:
        raise Problem("convert.unknown_names", where=found.path, found=listed(list(found.tensors)))
    if found.family != spec.family:
        raise Problem("convert.other_family", where=base, weights=found.family, config=spec.family)
    source, guessed = source_layout(found, layout if to == HUGGING_FACE else None)
    target = (
        HF
        if to == HUGGING_FACE
        else layout or (source if source in layouts.WRITTEN else layouts.USUAL[spec.family])
    )
    if target != HF and target not in layouts.available(spec.family):
        known = joined(layouts.available(spec.family))
        raise Problem(
            "convert.no_such_layout", where=found.path, layout=target, family=spec.family, known=known
        )
    if guessed and target != source:
        notes.append(("convert.assumed_mcore", {"layouts": joined(MCORES)}))
    if source == layouts.HALF_REVERSED:
        notes.append(("convert.repaired", {}))
    tensors = canonical_tensors(found.tensors, spec, source, found.path)
    if dtype is None:
        refuse_mixed(
            found.path,
            {
                name: {part: tensors[part].dtype.name for part in stored.parts}
                for name, stored in layouts.stored_tensors(spec, target).items()
            },
        )
    return Conversion(found, spec, tensors, base, source, target, to, dtype, notes)


def refuse_mixed(where: Path, linears: Mapping[str, Mapping[str, str]]) -> None:
    """Problem where tensors that are to be one have several dtypes. linears: its name -> the dtypes of what
    it is made of, by name."""
    for name, dtypes in linears.items():
        if len(set(dtypes.values())) > 1:
            parts = "\n".join(f"{part}: {dtype}" for part, dtype in dtypes.items())
            raise Problem("convert.mixed_dtypes", where=where, name=name, parts=parts)


def config_folder(found: Found, given: Path | None) -> Path:
    """The folder of config.json: the one given, the weights' own, or of a checkpoint the one around it."""
    if given is not None:
        folder = given.parent if given.name == "config.json" else given
        if not (folder / "config.json").is_file():
            raise Problem("model.no_config", where=given)
        return folder
    own = found.path if found.path.is_dir() else found.path.parent
    around = [own, own.parent] if found.kind in ("torch-distributed", "deepspeed") else [own]
    for folder in around:
        if (folder / "config.json").is_file():
            return folder
    raise Problem("convert.no_config", where=found.path)


def source_layout(found: Found, asked: str | None = None) -> tuple[str, bool]:
    """The layout of the input, and whether it had to be guessed: mcore's variants have the same names."""
    assert found.layout is not None
    if found.layout != MCORE:
        if asked not in (None, found.layout):
            raise Problem("convert.other_layout", where=found.path, asked=asked, found=found.layout)
        return found.layout, False
    if asked is not None and asked not in MCORES:
        raise Problem("convert.other_layout", where=found.path, asked=asked, found=found.layout)
    recorded = found.record.layout if found.record and found.record.layout in MCORES else None
    return asked or recorded or MCORE, asked is None and recorded is None


def write_conversion(
    job: Conversion, out: Path, shard_bytes: int = SHARD_BYTES, advance: Advance | None = None
) -> None:
    """Write the model to `out` atomically: weights, config and tokenizer; for MindSpore also the model's
    section of a mindformers yaml and the record of the layout.

    Then the structure is read back, and of every tensor its beginning, middle and end, which must be the
    input's. Raises Problem: no space (before anything is written).
    """
    refuse_input("convert.out_is_input", out, job.found.path, job.base)
    check_space(out, job.nbytes + sum(path.stat().st_size for path in companions(job.base)))
    with files.atomic_folder(out) as folder:
        write_weights(folder, job.streams(), job.to, shard_bytes, advance)
        record = read_record(job.base)
        copy_companions(job.base, folder, without=record.made if record else ())
        if job.dtype is not None:
            _rewrite_dtype(folder / "config.json", job.dtype)
        if job.to != HUGGING_FACE:
            made = write_bpe_files(folder) if job.target in (MINDFORMERS, QKV_CONCAT) else []
            files.write_text(
                folder / YAML, model_section(folder, job.spec, job.target, _main_dtype(job), job.to)
            )
            write_record(folder, Record(job.target, tuple(made)))
        _verify(job, folder, out)


def write_weights(
    folder: Path, streams: list[TensorStream], to: str, shard_bytes: int, advance: Advance | None
) -> None:
    """The weight files of one of TARGETS."""
    if to == CKPT_FILE:
        ckpt_io.write_file(folder / CKPT, streams, advance)
    else:
        index = MINDSPORE_INDEX if to == MINDSPORE_SAFETENSORS else safetensors_io.INDEX
        safetensors_io.write_folder(folder, streams, shard_bytes, advance, index)


def check_space(out: Path, need: int) -> None:
    """Problem where the disk has not room for so many bytes."""
    files.remove(out.with_name(out.name + files.PARTIAL))  # what a killed conversion left counts as used
    free = files.free_bytes(out)
    if need + 2**20 > free:
        raise Problem(
            "convert.no_space", where=out, exit_code=UNFIT_MACHINE, need=size(need), free=size(free)
        )


def _main_dtype(job: Conversion) -> str:
    """The dtype that most of the output's values have."""
    counts: Counter[str] = Counter()
    for rows in job.tensors.values():
        counts[job.dtype or rows.dtype.name] += rows.size
    return counts.most_common(1)[0][0]


def _rewrite_dtype(path: Path, dtype: str) -> None:
    """Let config.json say what the weights now are, in the keys it has for that."""
    config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8-sig"))
    key = "dtype" if "dtype" in config else "torch_dtype"
    changes: dict[str, Any] = {key: dtype}
    for flag, kind in (("bf16", "bfloat16"), ("fp16", "float16"), ("fp32", "float32")):  # Qwen1's own
        if flag in config:
            changes[flag] = kind == dtype
    if any(config.get(name) != value for name, value in changes.items()):
        path.write_text(
            json.dumps({**config, **changes}, ensure_ascii=False, indent=2) + "\n", encoding="utf-8"
        )


def _verify(job: Conversion, folder: Path, out: Path) -> None:
    """Read back what was written, by the way that is taken to read any model."""
    again = open_found(folder)
    written = canonical_tensors(again.tensors, specs.from_folder(folder), job.target, out)
    kind = None if job.dtype is None else DTYPES[job.dtype]
    wrong = [
        name
        for name, rows in job.tensors.items()
        if not same_samples(rows, written[name], np.dtype(kind or rows.dtype))
    ]
    if wrong:
        raise Problem("convert.not_as_written", where=out, exit_code=FAILED_RUN, tensors=listed(wrong))
