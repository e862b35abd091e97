"""LoRA adapters between PEFT and mindformers.

The scale of an adapter is alpha / rank. PEFT's folder says alpha; a mindformers checkpoint has the tensors,
and alpha stands in the yaml of the run that made it. It is never guessed: the usual guess, scale 1 (what
transform_ckpt_lora.py does without --lora_scaling), makes Qwen's adapters (alpha 16, rank 64) four times too
strong. Qwen1's c_attn is wq, wk, wv there, see weights/pairs.py.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tengtune import files
from tengtune.json_file import read_object
from tengtune.models import layouts, names
from tengtune.models.layouts import HALF_REVERSED, HF, MINDFORMERS, MINDPET, SLORA, SLORA_LAYOUT
from tengtune.models.spec import Family
from tengtune.models.targets import peft_names
from tengtune.ui.lists import first_few, listed
from tengtune.ui.problems import FAILED_RUN, Problem
from tengtune.weights import ckpt_io, safetensors_io
from tengtune.weights.adapter import CONFIG, WEIGHTS, plain, read_adapter, write_adapter
from tengtune.weights.cast import DTYPES, to_dtype
from tengtune.weights.convert import CKPT_FILE, HUGGING_FACE, check_space, refuse_mixed
from tengtune.weights.found import ADAPTER_CKPT, Found, open_found
from tengtune.weights.mindformers_yaml import YAML
from tengtune.weights.output import refuse_input
from tengtune.weights.pairs import own_block
from tengtune.weights.record import Record, write_record
from tengtune.weights.stream import Array, is_float, non_finite, same_bits, stream

Tensors = dict[str, Array]


@dataclass(frozen=True)
class AdapterConversion:
    """An adapter that was read, by canonical name, and is not yet written. config: PEFT's, where known; dtype
    None keeps each tensor's own; saturated: see weights/cast.py."""

    found: Found
    family: Family
    tensors: Tensors
    rank: int
    alpha: float
    config: dict[str, Any] | None
    to: str
    layout: str
    dtype: str | None = None
    saturated: list[str] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.tensors.values())

    @property
    def linears(self) -> list[str]:
        """The adapted linears, by canonical name."""
        return sorted({lora[0] for name in self.tensors if (lora := names.split_lora(name))})


def open_adapter(
    found: Found,
    to: str,
    layout: str | None = None,
    dtype: str | None = None,
    alpha: float | None = None,
) -> AdapterConversion:
    """Read an adapter and its scale. Raises Problem: alpha is not known, or not the one given; several ranks
    or scales, which mindformers cannot express."""
    if layout not in (None, MINDFORMERS, SLORA_LAYOUT):
        raise Problem("convert.fused_adapter", where=found.path, layout=layout)
    if found.family is None or found.layout is None:
        raise Problem("convert.unknown_names", where=found.path, found=listed(list(found.tensors)))
    config: dict[str, Any] | None
    if found.layout == HF:
        tensors, rank, known = _from_peft(found.path, found.family)
        config = read_object(found.path / CONFIG, "adapter.bad_json")
    else:
        tensors, rank = _from_mindformers(found, found.family, found.layout)
        config, known = _known(found, rank, alpha)
    if alpha not in (None, known):
        raise Problem("convert.other_alpha", where=found.path, given=f"{alpha:g}", known=f"{known:g}")
    saturated = list[str]()
    if dtype is not None:
        for name, array in tensors.items():
            tensors[name], beyond = to_dtype(array, DTYPES[dtype])
            saturated += [name] if beyond else []
    target = HF if to == HUGGING_FACE else layout or MINDFORMERS
    if found.family == "qwen1" and target == HF:
        refuse_mixed(found.path, _joined_dtypes(tensors))
    return AdapterConversion(found, found.family, tensors, rank, known, config, to, target, dtype, saturated)


def _joined_dtypes(tensors: Tensors) -> dict[str, dict[str, str]]:
    """The dtypes of what PEFT's Qwen1 has in one A or B, by its name."""
    linears = dict[str, dict[str, str]]()
    for name, array in tensors.items():
        if lora := names.split_lora(name):
            whole = names.whole_linear(lora[0])
            if whole != lora[0]:
                linears.setdefault(whole + lora[1], {})[name] = array.dtype.name
    return linears


def _from_peft(folder: Path, family: Family) -> tuple[Tensors, int, float]:
    """A PEFT folder's tensors, with Qwen1's c_attn taken apart, their one rank and alpha."""
    adapter = read_adapter(folder)
    tensors, kinds = dict(adapter.whole), dict[tuple[int, float], str]()
    for linear, pair in adapter.pairs.items():
        parts = names.parts_of(names.whole_linear(linear)) if family == "qwen1" else [linear]
        if len(parts) > 1 and len(pair.a) != adapter.rank:
            pair = own_block(pair, parts.index(linear), len(parts))
        tensors[linear + names.LORA_A], tensors[linear + names.LORA_B] = pair.a, pair.b
        kinds.setdefault((len(pair.a), pair.scale), linear)
    if len(kinds) > 1:
        shown = [f"{linear}: rank {rank}, scale {scale:g}" for (rank, scale), linear in kinds.items()]
        raise Problem("convert.several_scales", where=folder, kinds=first_few(shown))
    rank, scale = next(iter(kinds), (adapter.rank, adapter.scale))
    plainly = (rank, scale) == (adapter.rank, adapter.alpha / adapter.rank)
    return tensors, rank, adapter.alpha if plainly else scale * rank


def _from_mindformers(found: Found, family: Family, layout: str) -> tuple[Tensors, int]:
    """The adapter's tensors of a mindformers checkpoint, and their one rank."""
    if layout not in (MINDFORMERS, HALF_REVERSED):
        raise Problem("convert.fused_adapter", where=found.path, layout=layout)
    tensors, faults, ranks = Tensors(), list[str](), set[int]()
    for stored in found.lora if found.lora_and_model else found.tensors:
        own, values = layouts.canonical_name(stored, family, layout), found.tensors[stored][:]
        if own is None or own in tensors or not is_float(values.dtype) or non_finite(values):
            faults.append(stored)
        else:
            tensors[own] = values
    for linear in sorted({lora[0] for name in tensors if (lora := names.split_lora(name))}):
        a, b = tensors.get(linear + names.LORA_A), tensors.get(linear + names.LORA_B)
        if a is None or b is None or a.ndim != 2 or b.ndim != 2 or a.shape[0] != b.shape[1]:
            faults.append(linear)
        else:
            ranks.add(len(a))
    if faults or len(ranks) != 1:
        shown = first_few(faults) or f"ranks {sorted(ranks)}"
        raise Problem("convert.bad_adapter", where=found.path, faults=shown)
    return tensors, ranks.pop()


def _known(found: Found, rank: int, given: float | None) -> tuple[dict[str, Any] | None, float]:
    """PEFT's config of a mindformers adapter, if it was recorded when that was made; and alpha: of an
    adapter_config.json beside it (we and mindformers' converter of 2.5 write one), or the one given."""
    folder = found.path if found.path.is_dir() else found.path.parent
    recorded = found.record.adapter_config if found.record else None
    path = folder / CONFIG
    config = read_object(path, "adapter.bad_json") if path.is_file() else {}
    alpha = config.get("lora_alpha")
    if isinstance(alpha, int | float) and 0 < alpha < 1e9 and config.get("r") == rank:
        return recorded, float(alpha)
    if given is None:
        raise Problem("convert.no_alpha", where=found.path, rank=rank)
    return recorded, given


def write_adapter_conversion(job: AdapterConversion, out: Path) -> None:
    """Write the adapter to `out` atomically and read it back. Raises Problem as write_conversion."""
    refuse_input("convert.out_is_input", out, job.found.path)
    check_space(out, job.nbytes)
    if job.to == HUGGING_FACE:
        _write_peft(job, out)
        again, _, _ = _from_peft(out, job.family)
    else:
        _write_mindformers(job, out)
        again, _ = _from_mindformers(open_found(out), job.family, MINDFORMERS)
    wrong = [n for n, array in job.tensors.items() if n not in again or not same_bits(array, again[n])]
    if wrong:
        files.remove(out)
        raise Problem("convert.not_as_written", where=out, exit_code=FAILED_RUN, tensors=listed(wrong))


def _write_peft(job: AdapterConversion, out: Path) -> None:
    wholes = {part: whole for whole, parts in names.PARTS.items() for part in parts}
    outside = [linear for linear in job.linears if not linear.startswith("model.layers.")]
    inside = dict.fromkeys(linear.split(".", 3)[3] for linear in job.linears if linear not in outside)
    every = list(inside)
    if job.family == "qwen1":
        inside = dict.fromkeys(wholes.get(linear, linear) for linear in inside)
        every = [own for own in names.QWEN1_BLOCK if not own.endswith("layernorm")]
    write_adapter(
        out,
        job.tensors,
        rank=job.rank,
        alpha=job.alpha,
        targets=[*peft_names(job.family, every, inside), *outside],
        base=str((job.config or {}).get("base_model_name_or_path") or ""),
        family=job.family,
        config_as=job.config,
    )


def _write_mindformers(job: AdapterConversion, out: Path) -> None:
    """The checkpoint, an adapter_config.json with mindformers' names, pet_config for the yaml, the record."""
    lora, alpha = SLORA if job.layout == SLORA_LAYOUT else MINDPET, plain(job.alpha)
    stored = {
        layouts.stored_name(n, job.family, MINDFORMERS, lora): a for n, a in sorted(job.tensors.items())
    }
    modules = sorted({linear.rpartition(".")[2] for name in stored if (linear := layouts.lora_linear(name))})
    config = {**(job.config or {}), "r": job.rank, "lora_alpha": alpha, "target_modules": modules}
    for key in ("rank_pattern", "alpha_pattern", "use_rslora"):
        config.pop(key, None)  # r and lora_alpha say it all now
    pattern = "|".join(f".*{module}" for module in modules)
    pet = {"pet_type": "lora", "lora_rank": job.rank, "lora_alpha": alpha, "target_modules": pattern}
    streams = [stream(name, array) for name, array in stored.items()]
    with files.atomic_folder(out) as folder:
        if job.to == CKPT_FILE:
            ckpt_io.write_file(folder / ADAPTER_CKPT, streams)
        else:
            safetensors_io.write_file(folder / WEIGHTS, streams)
        files.write_text(folder / CONFIG, json.dumps(config, ensure_ascii=False, indent=2) + "\n")
        section = yaml.safe_dump({"model": {"model_config": {"pet_config": pet}}}, sort_keys=False)
        files.write_text(folder / YAML, section)
        write_record(folder, Record(MINDFORMERS, adapter_config=job.config))
