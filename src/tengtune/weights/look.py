"""What weights are: told for a person, and put under canonical names so that two layouts can be compared."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tengtune.hub.record import read_record
from tengtune.json_file import read_object
from tengtune.models import layouts, names
from tengtune.models.spec import ModelSpec, from_folder
from tengtune.ui import language
from tengtune.ui.lists import first_few, joined, listed, size
from tengtune.ui.problems import Problem
from tengtune.weights.adapter import CONFIG
from tengtune.weights.ckpt_io import has_crc
from tengtune.weights.convert import config_folder, source_layout
from tengtune.weights.found import Found
from tengtune.weights.pairs import Pair, split_parts
from tengtune.weights.rank_part import rank_part
from tengtune.weights.scales import scales
from tengtune.weights.stacks import stored_shapes, take_apart
from tengtune.weights.stream import Rows, same_bits

_NUMBER = re.compile(r"\.(?:layers|h)\.(\d+)\.", re.ASCII)
_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


@dataclass(frozen=True)
class Told:
    """rows: (key of a text, value) for a person; data: the same for a program."""

    rows: list[tuple[str, str]]
    data: dict[str, Any]


def describe(found: Found) -> Told:
    """What a folder or file holds, as far as it tells without a config; config.json is only read for its
    tie_word_embeddings."""
    held, tied = found.without_lora().tensors or found.tensors, _tied(found)  # an adapter alone counts itself
    parameters = sum(rows.size for rows in held.values())
    if tied == "copy":
        parameters -= _top(found, _HEAD, found.tensors).size
    dtypes = Counter[str]()
    for rows in found.tensors.values():
        dtypes[rows.dtype.name] += rows.size
    numbers = {match[1] for name in found.tensors if (match := _NUMBER.search(name))}
    data: dict[str, Any] = {
        "format": found.kind,
        "files": [path.name for path in found.files],
        "family": found.family,
        "layout": _layout(found),
        "tensors": len(found.tensors),
        "parameters": parameters,
        "bytes": found.nbytes,
        "dtypes": dict(dtypes),
        "layers": len(numbers),
        "tied": tied,
        "lora": len(set(found.lora.values())),
        "left_out": len(found.left_out),
        "checksums": _checksums(found),
    }
    adapter = _adapter(found) if found.lora else {}
    data |= adapter
    part = rank_part(found.files[0], found.tensors)
    if part is not None:
        data |= {"rank": part.rank, "ranks": part.ranks, "part": True if part.certain else None}
    embedding = _top(found, _EMBEDDING, found.tensors)
    if embedding is not None:
        data |= {"vocab": embedding.shape[0], "hidden": embedding.shape[-1]}
    rows_told = [
        ("files", first_few(data["files"])),
        ("format", found.kind),
        ("family", str(found.family or language.say("look.unknown"))),
        ("layout", str(data["layout"] or language.say("look.unknown"))),
        ("tensors", f"{len(found.tensors)}, {size(found.nbytes)}"),
        ("parameters", f"{parameters:,}"),
        ("dtypes", joined(f"{name} ({count:,})" for name, count in dtypes.most_common())),
        ("shape", f"{data['layers']} / {data.get('hidden', '-')} / {data.get('vocab', '-')}"),
        ("head", language.say(f"look.head_{tied}")),
        ("lora", str(data["lora"])),
        *_adapter_rows(adapter),
        (
            "left_out",
            f"{len(found.left_out)}: {listed(list(found.left_out))}" if found.left_out else "0",
        ),
        ("checksums", language.say(f"look.checks_{data['checksums']}")),
    ]
    if part is not None:
        kind = "is" if part.certain else "may_be"
        rows_told.insert(1, ("part", language.say(f"look.{kind}_part", rank=part.rank, ranks=part.ranks)))
    return Told(rows_told, data)


def _adapter(found: Found) -> dict[str, Any]:
    """An adapter's figures: ranks from its tensors; alpha and targets from adapter_config.json, without which
    the targets are read from the tensors' names."""
    ranks: dict[str, int] = {}
    for name, linear in found.lora.items():
        ranks[linear] = min(ranks.get(linear, 2**31), *found.tensors[name].shape)
    folder = found.path if found.path.is_dir() else found.path.parent
    config = read_object(folder / CONFIG, "adapter.bad_json") if (folder / CONFIG).exists() else {}
    told = scales(found)
    ends = dict.fromkeys(linear.rpartition(".")[2] for linear in ranks)
    return {
        "lora_parameters": sum(found.tensors[name].size for name in found.lora),
        "lora_rank": sorted(set(ranks.values())),
        "lora_alpha": config.get("lora_alpha"),
        "lora_scale": sorted(set(told.values())) if told else None,
        "use_rslora": config.get("use_rslora") is True,
        "lora_targets": config.get("target_modules") or list(ends),
    }


def _adapter_rows(adapter: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The figures for a person."""
    told = {key: _listed(value) for key, value in adapter.items() if key != "use_rslora"}
    if adapter.get("use_rslora") and adapter["lora_scale"]:
        told["lora_scale"] = language.say("look.rslora", scale=told["lora_scale"])
    return list(told.items())


def _listed(value: object) -> str:
    """A figure of an adapter for a person."""
    if value is None:
        return language.say("look.unknown")
    if isinstance(value, list):
        return listed([f"{each:g}" if isinstance(each, float) else str(each) for each in value])
    return f"{value:,}" if isinstance(value, int) else str(value)


def _layout(found: Found) -> str | None:
    return found.named if found.lora or found.layout is None else source_layout(found)[0]


def _top(found: Found, name: str, tensors: Mapping[str, Rows]) -> Any:
    """The tensor that is this canonical one in the layout found; None where it is not there."""
    if found.family is None or found.layout is None:
        return None
    return tensors.get(layouts.stored_name(name, found.family, found.layout))


def _tied(found: Found) -> str:
    """How the head is kept: none, copy (of the embedding), own, or unknown."""
    head, embedding = (_top(found, name, found.tensors) for name in (_HEAD, _EMBEDDING))
    if embedding is None:
        return "unknown"
    if head is None:
        return "none"
    return "copy" if same_bits(head, embedding) else "own"


def _checksums(found: Found) -> str:
    """What a damaged byte would be seen by: download, crc, none."""
    folder = found.path if found.path.is_dir() else found.path.parent
    record = read_record(folder)
    if record is not None and all(path.name in record.files for path in found.files):
        return "download"
    return "crc" if found.kind == "ckpt" and has_crc(found.files[0]) else "none"


def spec_for(sides: Iterable[Found], config: Path | None) -> ModelSpec | None:
    """The model that a config beside one of them describes, or the one given; None where there is none."""
    for found in sides:
        try:
            return from_folder(config_folder(found, config))
        except Problem as problem:
            if config is not None or problem.code != "convert.no_config":
                raise
    return None


def comparable(found: Found, spec: ModelSpec | None) -> dict[str, Rows]:
    """The tensors under names that do not hang on the layout, as far as that is known: canonical ones, each
    part of a fused linear on its own (which needs a spec), a tied head's copy left out. Problem where two
    have one name."""
    if found.family is None or found.layout is None:
        return dict(found.tensors)
    layout = source_layout(found)[0]
    result, rest = dict[str, Rows](), dict(found.tensors)
    if spec is not None and spec.family == found.family:
        shapes = stored_shapes(spec, layout)
        fits = {name: rows for name, rows in rest.items() if rows.shape == shapes.get(name)}
        result = take_apart(spec, fits, layout)
        rest = {name: rows for name, rows in rest.items() if name not in fits}
    if _tied(found) == "copy" and (spec is None or spec.tie):
        rest.pop(layouts.stored_name(_HEAD, found.family, layout), None)
    for stored, rows in rest.items():
        own = names.from_peft(stored) or layouts.canonical_name(stored, found.family, layout) or stored
        if own in result:
            raise Problem("convert.same_name", where=found.path, name=own, names=stored)
        result[own] = rows
    return _without_wholes(result)


def _without_wholes(tensors: dict[str, Rows]) -> dict[str, Rows]:
    """Adapters of Qwen1's c_attn as those of its parts."""
    for name in [n for n in tensors if (lora := names.split_lora(n)) and len(names.parts_of(lora[0])) > 1]:
        linear = name.removesuffix(names.LORA_A)
        b = tensors.get(linear + names.LORA_B)
        if linear == name or b is None:
            continue
        pair = Pair(tensors.pop(name)[:], tensors.pop(linear + names.LORA_B)[:], 1.0)
        for part, own in split_parts(linear, pair).items():
            tensors[part + names.LORA_A], tensors[part + names.LORA_B] = own.a, own.b
    return tensors
