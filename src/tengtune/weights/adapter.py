"""PEFT adapter folders, out and in: adapter_config.json and adapter_model.safetensors.

Keys and names are PEFT's (0.21). An older PEFT refuses a config with keys it does not know, so only
those that 0.3.0 had are written.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tengtune import files
from tengtune.json_file import read_object
from tengtune.models import layouts, names
from tengtune.models.folder import refuse_run_folder
from tengtune.models.spec import Family
from tengtune.ui import language
from tengtune.ui.lists import first_few, listed
from tengtune.ui.problems import Problem, os_errors
from tengtune.weights.claims import Claims
from tengtune.weights.pairs import Pair, join_parts, split_parts
from tengtune.weights.safetensors_io import write_file
from tengtune.weights.source import open_weights
from tengtune.weights.stream import Array, is_float, non_finite, stream

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
TORCH_WEIGHTS = "adapter_model.bin"

_READ = {
    *("r", "lora_alpha", "base_model_name_or_path", "rank_pattern", "alpha_pattern"),
    # weights/claims.py:
    *(
        "target_modules",
        "exclude_modules",
        "layers_to_transform",
        "layers_pattern",
        "modules_to_save",
        "bias",
    ),
}
_IRRELEVANT = {
    # They steered the training.
    "auto_mapping",
    "ensure_weight_tying",
    "eva_config",
    "inference_mode",
    "loftq_config",
    "lora_dropout",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "task_type",
}
_EXACT: dict[str, tuple[object, ...]] = {
    "peft_type": ("LORA",),
    "use_rslora": (True, False),
    # Other starts (pissa, olora, corda, loftq ...) change the base model's weights as well.
    "init_lora_weights": (True, False, "gaussian", "eva", "orthogonal"),
}
_OFF: tuple[object, ...] = (None, False, [], {})


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter. rank, alpha and scale are its usual ones; a pair may differ (rank_pattern).

    pairs: by the linear's canonical name; whole: tensors that replace the model's, by canonical name. claims:
    what the config says there is.
    """

    rank: int
    alpha: float
    scale: float
    targets: tuple[str, ...]
    base: str
    pairs: dict[str, Pair]
    whole: dict[str, Array]
    claims: Claims


def write_adapter(
    folder: Path,
    tensors: Mapping[str, Array],
    rank: int,
    alpha: float,
    targets: Sequence[str],
    base: str,
    family: Family = "qwen2",
    config_as: Mapping[str, Any] | None = None,
) -> None:
    """Write an adapter folder for a model of `family`, atomically.

    `tensors` by canonical name (models/names.py): adapters, and whole tensors that replace the model's
    (modules_to_save); alpha as in scale = alpha / rank; targets as PEFT is to find them (models/targets.py);
    `base` is the name or the folder of the model. Qwen1 adapters of q, k and v that do not share their A are
    written as one of c_attn with a rank of its own. config_as: the adapter_config.json to write instead.
    """
    joined, ranks = join_parts(tensors) if family == "qwen1" else (tensors, {})
    patterns = _rank_pattern(ranks, joined, family)
    whole = [name.rpartition(".")[0] for name in joined if names.split_lora(name) is None]
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": plain(alpha),
        "target_modules": list(targets),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "inference_mode": True,
        "modules_to_save": [names.to_stored(n, family).rpartition(".")[2] for n in sorted(whole)] or None,
    }
    if patterns:
        config["rank_pattern"] = patterns
        config["alpha_pattern"] = {name: plain(alpha * own / rank) for name, own in patterns.items()}
    stored = [stream(names.to_peft(name, family), array) for name, array in sorted(joined.items())]
    with files.atomic_folder(folder) as partial:
        write_file(partial / WEIGHTS, stored)
        text = json.dumps(config_as or config, ensure_ascii=False, indent=2)
        files.write_text(partial / CONFIG, text + "\n")


def _rank_pattern(ranks: Mapping[str, int], tensors: Mapping[str, Array], family: Family) -> dict[str, int]:
    """PEFT's rank_pattern for linears of ranks of their own: by the end of their names if that is enough."""
    modules = {names.to_stored(linear, family): rank for linear, rank in ranks.items()}
    short = {module.rpartition(".")[2]: rank for module, rank in modules.items()}
    ends = [
        names.to_stored(lora[0], family).rpartition(".")[2] for n in tensors if (lora := names.split_lora(n))
    ]
    alike = len(set(ranks.values())) == 1 and sum(end in short for end in ends) == 2 * len(ranks)
    return short if alike else modules


def plain(number: float) -> float | int:
    """An integer as one: PEFT's own files have it so."""
    return int(number) if float(number).is_integer() else number


def read_adapter(folder: Path) -> Adapter:
    """Read a PEFT LoRA folder; Problem for what cannot be applied exactly, is damaged or is not finite."""
    path = folder / CONFIG
    _refuse_mindformers(folder)
    if folder.is_dir() and not path.exists():
        refuse_run_folder(folder)
        raise Problem("adapter.no_config", where=folder)
    config = read_object(path, "adapter.bad_json")
    _refuse_inexact(config, path)
    reader, claims = _Config(config, path), Claims(config, path)
    weights = _weights(folder)
    tensors, modules = _read_tensors(weights, claims)
    faults = [] if tensors else [language.say("adapter.fault_empty")]
    pairs: dict[str, Pair] = {}
    for linear, module in modules.items():
        a, b, rank = (
            tensors.get(linear + names.LORA_A),
            tensors.get(linear + names.LORA_B),
            reader.rank(module),
        )
        if a is None or b is None:
            faults.append(language.say("adapter.fault_pair", name=module))
        elif claims.resolved and not claims.adapts(module):
            faults.append(language.say("adapter.fault_unclaimed", name=module))
        elif a.ndim != 2 or b.ndim != 2 or not a.shape[0] == b.shape[1] == rank or _uneven(linear, b):
            shapes = {"a": list(a.shape), "b": list(b.shape)}
            faults.append(language.say("adapter.fault_shape", name=module, rank=rank, **shapes))
        else:
            parts = split_parts(linear, Pair(a, b, reader.scale(module)))
            both = sorted(pairs.keys() & parts.keys())
            faults += [language.say("adapter.fault_twice", name=module, own=own) for own in both]
            pairs |= parts
    if faults:
        raise Problem("adapter.bad_tensors", where=weights, faults=first_few(faults))
    return Adapter(
        rank=reader.rank(),
        alpha=reader.alpha(),
        scale=reader.scale(),
        targets=claims.targets,
        base=str(config.get("base_model_name_or_path") or ""),
        pairs=pairs,
        whole={name: array for name, array in tensors.items() if names.split_lora(name) is None},
        claims=claims,
    )


def _refuse_mindformers(folder: Path) -> None:
    """Problem for an adapter as mindformers has it: a checkpoint, or safetensors with mindpet's names."""
    place = folder
    if folder.is_dir():
        own = next((folder / name for name in (WEIGHTS, TORCH_WEIGHTS) if (folder / name).exists()), None)
        place = own or next(iter(sorted(folder.glob("*.ckpt"))), folder)
    if place.suffix == ".ckpt" or (
        place.suffix == ".safetensors" and any(map(layouts.is_mindspore_lora, open_weights(place)))
    ):
        raise Problem("adapter.mindformers", where=place)


def _uneven(linear: str, b: Array) -> bool:
    """Whether B's rows cannot be those of the linear's parts."""
    return b.shape[0] % len(names.parts_of(linear)) != 0


def _weights(folder: Path) -> Path:
    """The folder's file of tensors; older PEFT wrote a .bin."""
    for name in (WEIGHTS, TORCH_WEIGHTS):
        if (folder / name).exists():
            return folder / name
    with os_errors(folder):
        found = sorted(entry.name for entry in folder.iterdir())
    raise Problem("adapter.no_weights", where=folder, found=listed(found))


def _read_tensors(path: Path, claims: Claims) -> tuple[dict[str, Array], dict[str, str]]:
    """The adapter's tensors by canonical name, all floats and finite; and its linears: canonical name ->
    the name that rank_pattern is written for."""
    tensors: dict[str, Array] = {}
    modules: dict[str, str] = {}
    faults = []
    for stored, array in open_weights(path).items():
        name = names.from_peft(stored)
        lora = None if name is None else names.split_lora(name)
        if name is None or ("lora_" in name and lora is None):
            faults.append(language.say("adapter.fault_name", name=stored))
        elif lora is None and not claims.allows_whole(names.peft_module(stored), stored.endswith(".bias")):
            faults.append(language.say("adapter.fault_unclaimed", name=stored))
        elif not is_float(array.dtype):
            faults.append(language.say("adapter.fault_dtype", name=stored, found=array.dtype.name))
        elif non_finite(array):
            faults.append(language.say("adapter.fault_values", name=stored))
        elif name in tensors:
            faults.append(language.say("adapter.fault_twice", name=stored, own=name))
        else:
            tensors[name] = array
            if lora is not None:
                modules.setdefault(lora[0], names.peft_module(stored))
    if faults:
        raise Problem("adapter.bad_tensors", where=path, faults=first_few(faults))
    return tensors, modules


def _refuse_inexact(config: dict[str, Any], path: Path) -> None:
    """Problem for a key that changes the mathematics in a way we do not have, known to us or not."""
    for key, value in config.items():
        if key in _READ or key in _IRRELEVANT or value in _OFF:
            continue
        if value not in _EXACT.get(key, ()):
            raise Problem("adapter.unsupported", where=path, key=key[:100], value=str(value)[:100])
    if config.get("peft_type") != "LORA":
        raise Problem("adapter.bad_key", where=path, key="peft_type", value=config.get("peft_type"))


def scale_by_module(config: dict[str, Any], path: Path) -> Callable[[str], float]:
    """What gives the scale of a linear, called as in rank_pattern. Raises Problem for keys that cannot be."""
    return _Config(config, path).scale


class _Config:
    """Rank and scale of each linear, as PEFT derives them."""

    def __init__(self, config: dict[str, Any], path: Path) -> None:
        self.config, self.path = config, path
        self.r = self._positive("r", config.get("r"), whole=True)
        self.lora_alpha = self._positive("lora_alpha", config.get("lora_alpha"), whole=False)
        self.ranks = self._pattern("rank_pattern", whole=True)
        self.alphas = self._pattern("alpha_pattern", whole=False)

    def rank(self, linear: str = "") -> int:
        """The rank of a linear; without one, the adapter's usual rank. alpha and scale likewise."""
        return int(_match(self.ranks, linear, self.r))

    def alpha(self, linear: str = "") -> float:
        return _match(self.alphas, linear, self.lora_alpha)

    def scale(self, linear: str = "") -> float:
        rank = self.rank(linear)
        return self.alpha(linear) / (math.sqrt(rank) if self.config.get("use_rslora") else rank)

    def _pattern(self, name: str, whole: bool) -> list[tuple[re.Pattern[str], float]]:
        """rank_pattern or alpha_pattern: regular expressions for a module's name or the end of it."""
        patterns = self.config.get(name) or {}
        if not isinstance(patterns, dict):
            raise Problem("adapter.bad_key", where=self.path, key=name, value=str(patterns)[:100])
        table = []
        for key, value in patterns.items():
            try:
                pattern = re.compile(rf"(.*\.)?({key})$")
            except (re.error, RecursionError, OverflowError) as error:
                raise Problem("adapter.bad_key", where=self.path, key=name, value=key[:100]) from error
            table.append((pattern, self._positive(f"{name}: {key}"[:100], value, whole)))
        return table

    def _positive(self, key: str, value: object, whole: bool) -> float:
        if (type(value) is int or (type(value) is float and not whole)) and 0 < value < 1e9:
            return float(value)
        raise Problem("adapter.bad_key", where=self.path, key=key, value=str(value)[:100])


def _match(table: list[tuple[re.Pattern[str], float]], linear: str, default: float) -> float:
    """The value of the first pattern that matches; the default for no linear in particular."""
    return next((value for pattern, value in table if linear and pattern.match(linear)), default)
