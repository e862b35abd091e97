"""What a report takes for granted in the files of a run folder. What does not fit is left out with a word: a
damaged figure must not cost the page."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError

from tengtune.train.metrics import LARGEST, MOST_STEPS
from tengtune.ui.language import Language

Number = Annotated[float, Field(strict=True, ge=-LARGEST, le=LARGEST)]
Count = Annotated[int, Field(strict=True, ge=0, le=MOST_STEPS)]
Text = Annotated[str, Field(strict=True)]
Flag = Annotated[bool, Field(strict=True)]
Measure = Literal["accuracy", "contains", "exact"]
Pair = Annotated[list[Number], Field(min_length=2, max_length=2)]
Losses = Annotated[list[Number | None], Field(min_length=2, max_length=2)]


class _Store(BaseModel):
    """Rows that were made, for training or held out."""

    rows: Count
    documents: Count
    tokens: Count
    trained_tokens: Count
    fill: Number


class _Data(BaseModel):
    records: Count
    kept: Count
    dropped: dict[Text, Count]
    remarks: dict[Text, Count]
    unused_keys: dict[Text, Count]
    lengths: dict[Text, Number]
    train: _Store
    heldout: _Store | None = None


class _Train(BaseModel):
    steps: Count
    trained_tokens: Count
    tokens_per_s: Number
    trainable_parameters: Count
    peak_memory_bytes: Count
    planned_memory_bytes: Annotated[list[Count], Field(min_length=3, max_length=3)] | None = None
    measured_memory_bytes: Count | None = None
    weights_of_step: Count
    last_loss: Number | None = None
    best_heldout_loss: Number | None = None
    best_step: Count | None = None
    saving_seconds: Number = 0.0
    backend: Text = ""
    device: Text = ""
    dtype: Text = ""


class _Set(BaseModel):
    """Questions of one file, or the general ones."""

    name: Text
    kind: Literal["choice", "number", "free"]
    by: Literal["letter", "text"] = "letter"
    questions: Count
    asked: Count
    refused: dict[Text, Count]
    shots: Count
    measures: dict[Measure, Pair]
    counts: dict[Measure, Count] = {}
    missing: dict[Literal["too_long", "no_loss"], list[Text]] = {}
    loss: Losses | None
    gained: Count
    lost: Count
    by_chance: Flag


class _General(_Set):
    verdict: Literal["kept", "weakened", "lost", "unknown"]
    known: Count
    loss_rise: Number | None


class _Evaluate(BaseModel):
    loss_before: Number | None
    loss_after: Number | None
    perplexity_before: Number | None
    perplexity_after: Number | None
    tokens: Count
    general: _General
    sets: list[_Set]


class _Any(BaseModel):
    """Figures of which the page shows none."""


class _Record(BaseModel):
    """What every step's record has. started: local time with its offset from UTC."""

    seconds: Number = 0.0
    started: Text = ""
    id: Text = ""
    made_of: dict[Text, Text] = {}


_FIGURES: dict[str, type[BaseModel]] = {"data": _Data, "train": _Train, "evaluate": _Evaluate}


class _Failure(BaseModel):
    step: Text
    where: Text | None = None
    what: Text = ""
    why: Text = ""
    fix: Text = ""
    texts: dict[Language, dict[Text, Text]] = {}


class _Sample(BaseModel):
    prompt: Text
    before: Text | None = None
    after: Text | None = None


class _Dropped(BaseModel):
    file: Text
    record: Count | None = None
    line: Count | None = None
    reason: Text = ""


class _Mark(BaseModel):
    loss: Number | None = None
    answer: Text | None = None


class _Question(BaseModel):
    set: Text
    question: Text
    expected: Text
    before: _Mark
    after: _Mark


_LINES: dict[str, type[BaseModel]] = {"samples": _Sample, "questions": _Question, "dropped": _Dropped}


def amiss_in_record(step: str, record: dict[str, Any]) -> str | None:
    """The first key of a step's record that is missing or not what the page takes it for; None: all are."""
    amiss = _amiss(_Record, record)
    if amiss is not None:
        return amiss
    key = _amiss(_FIGURES.get(step, _Any), record.get("figures"))
    return None if key is None else f"figures.{key}".rstrip(".")


def amiss_in_failure(failure: dict[str, Any]) -> str | None:
    """The same for failure.json."""
    return _amiss(_Failure, failure)


def line_fits(name: str, line: dict[str, Any]) -> bool:
    """Whether a line of a list (evidence.LISTS) is what the page takes it for."""
    return _amiss(_LINES[name], line) is None


def _amiss(shape: type[BaseModel], value: object) -> str | None:
    try:
        shape.model_validate(value)
    except ValidationError as error:
        return ".".join(map(str, error.errors()[0]["loc"]))
    return None
