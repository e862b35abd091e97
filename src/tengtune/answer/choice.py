"""How answers are sampled: as asked for, else as the model's generation_config.json says, else greedily."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tengtune.backends.base import Sampling
from tengtune.json_file import read_object
from tengtune.ui import language
from tengtune.ui.problems import Problem

FILE = "generation_config.json"
PENALTY = "repetition_penalty"
RANGES = {"temperature": (0.0, 100.0), "top_p": (0.0, 1.0), "top_k": (0, 2**31), PENALTY: (0.0, 100.0)}
POSITIVE = ("top_p", PENALTY)


def choose(folder: Path, asked: Mapping[str, float | None], seed: int = 0) -> tuple[Sampling, str]:
    """The sampling of the model in `folder`, and where it comes from, in words. `asked`: temperature, top_p
    and top_k, None where the file decides. The file counts only where it says do_sample, as in transformers;
    its repetition_penalty counts always."""
    path = folder / FILE
    written = read_object(path, "predict.bad_generation_config") if path.is_file() else None
    samples = written is not None and written.get("do_sample") is True
    given = {name: value for name, value in asked.items() if value is not None}
    values: dict[str, Any] = {"temperature": 1.0 if samples or given else 0.0, "top_p": 1.0, "top_k": 0}
    if samples and written is not None:
        values |= {
            name: _checked(path, name, written[name]) for name in values if written.get(name) is not None
        }
    values |= given
    penalty = written.get(PENALTY) if written is not None else None
    chosen = Sampling(
        float(values["temperature"]),
        float(values["top_p"]),
        int(values["top_k"]),
        seed,
        1.0 if penalty is None else _checked(path, PENALTY, penalty),
    )
    if given:
        return chosen, language.say("predict.sampling_asked")
    if written is None:
        return chosen, language.say("predict.sampling_no_file")
    return chosen, language.say("predict.sampling_file" if samples else "predict.sampling_file_greedy")


def in_words(sampling: Sampling) -> str:
    """The sampling for a person."""
    penalty = sampling.repetition_penalty
    tail = "" if penalty == 1 else f", {PENALTY} {penalty:g}"
    if sampling.temperature == 0:
        return language.say("predict.greedy") + tail
    return (
        f"temperature {sampling.temperature:g}, top_p {sampling.top_p:g}, "
        f"top_k {sampling.top_k}, seed {sampling.seed}{tail}"
    )


def _checked(path: Path, name: str, value: Any) -> float:
    low, high = RANGES[name]
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not low <= value <= high or (name in POSITIVE and value == 0):
        raise Problem("predict.bad_generation_config", where=path, reason=f"{name}: {value!r}")
    return float(value)
