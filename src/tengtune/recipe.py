"""The run file: what a run is, in six groups of keys. Only `model` and `data` are required.

Every default is here, with its reason where it is not plain. `load()` is the one way in.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from tengtune.files import as_name, as_text
from tengtune.models.hub_id import MODELS, hub_id_in
from tengtune.recipe_check import check_together, on_the_cards
from tengtune.recipe_fault import place, problem, unknown_key
from tengtune.run_yaml import Lines, parse_scalar, read_yaml
from tengtune.ui.problems import Problem

Dtype = Literal["auto", "float32", "float16", "bfloat16"]
LabelPolicy = Literal["assistant", "qwen"]
TooLong = Literal["cut", "split", "drop"]
DataFormat = Literal[
    "auto",
    "messages",
    "conversations",
    "instances",
    "dolly",
    "alpaca",
    "query",
    "prompt",
    "question",
    "text",
]

CHANGEABLE = (
    "backend",
    "train.micro_batch",
    "train.recompute",
    "train.log_every",
    "train.eval_every",
    "train.save_every",
    "train.keep",
    "train.on_nan",
    "train.stall_minutes",
    "parallel.ranks",
    "parallel.nodes",
    "output.prompts",
    "output.max_new_tokens",
    "output.evaluate",
    "output.samples",
    "output.layout",
)
"""Keys that may change over an existing run folder, and between a checkpoint and the run that goes on from
it: what is learned does not depend on them, save for rounding."""


def _whole(value: Any) -> Any:
    """1e3 is written as a float and meant as a whole number."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _auto_or_bool(value: Any) -> Any:
    """Literal alone would take 1 for True."""
    if value != "auto" and not isinstance(value, bool):
        raise PydanticCustomError("literal_error", "auto, true or false", {"expected": "auto, true, false"})
    return value


# Strict, because pydantic would take true for 1, "5" for 5 and 1 for true.
Int = Annotated[int, Strict(), BeforeValidator(_whole)]
Float = Annotated[float, Strict()]
Bool = Annotated[bool, Strict()]
AutoOrBool = Annotated[Literal["auto"] | bool, BeforeValidator(_auto_or_bool)]

Positive = Annotated[Int, Field(ge=1)]
Fraction = Annotated[Float, Field(ge=0.0, le=1.0)]


MAX_NAME_BYTES = 200
"""A file name's limit is 255 bytes; suffixes are added to it."""


def _folder_name(name: str) -> str:
    """The name, if a folder of its own can have it."""
    if (
        name in ("", ".", "..")
        or name.startswith("-")
        or len(name.encode("utf-8", "replace")) > MAX_NAME_BYTES
    ):
        raise PydanticCustomError("folder_name", "no name of a folder")
    if any(character in "/\\" or not character.isprintable() for character in name):
        raise PydanticCustomError("folder_characters", "no name of a folder")
    return name


class Group(BaseModel):
    """A group of keys: unknown keys are refused, values are of the type that is asked for."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Model(Group):
    """The model to start from."""

    path: str
    dtype: Dtype = "auto"


class Data(Group):
    """What to learn from, and how it becomes rows of tokens."""

    files: Annotated[list[str], Field(min_length=1)]
    format: DataFormat = "auto"
    map: dict[str, str] = {}  # our names of keys and roles -> the files'
    weights: dict[str, Annotated[Float, Field(gt=0)]] = {}  # file -> how often its records are seen an epoch
    policy: LabelPolicy = "assistant"
    system: str | None = None
    seq_len: Annotated[Int, Field(ge=8, le=1_048_576)] = 1024
    pack: Bool = True
    too_long: TooLong = "cut"
    heldout: Annotated[Float, Field(ge=0.0, lt=1.0)] = 0.05

    @model_validator(mode="before")
    @classmethod
    def _one_file(cls, value: Any) -> Any:
        if isinstance(value, dict) and isinstance(value.get("files"), str):
            return {**value, "files": [value["files"]]}
        return value


class Train(Group):
    """The optimization."""

    method: Literal["lora", "full"] = "lora"
    epochs: Annotated[Float, Field(gt=0, le=100_000)] = 3.0
    max_steps: Annotated[Int, Field(ge=1, le=10**9)] | None = None
    micro_batch: Positive = 1
    global_batch: Positive = 8
    # None: 3e-4 for lora, 1e-5 for full, the values of the Qwen recipe.
    lr: Annotated[Float, Field(gt=0)] | None = None
    lr_schedule: Literal["cosine", "linear", "constant"] = "cosine"
    lr_min_ratio: Fraction = 0.1
    warmup_ratio: Fraction = 0.03
    # mindformers: Adam as its FP32StateAdamWeightDecay has it, without bias correction.
    optimizer: Literal["adamw", "mindformers"] = "adamw"
    weight_decay: Annotated[Float, Field(ge=0)] = 0.01
    beta1: Annotated[Float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[Float, Field(ge=0, lt=1)] = 0.95
    eps: Annotated[Float, Field(gt=0)] = 1e-8
    clip_norm: Annotated[Float, Field(ge=0)] = 1.0  # 0: no clipping
    recompute: Literal["none", "full"] = "none"
    log_every: Positive = 1
    eval_every: Positive | None = None
    # None: a tenth of the run's steps, at most 50 (lora) or 500 (full): minutes of work are lost, not hours,
    # and saving stays below 2% of the time (an adapter's state is megabytes, a model's 12 bytes a parameter).
    save_every: Positive | None = None
    keep: Positive = 2  # the newest so many checkpoints, and the one with the best held-out loss
    early_stop: Positive | None = None  # evaluations in a row without a better held-out loss
    on_nan: Literal["skip", "rewind", "stop"] = "skip"
    # HCCL gives up a silent collective after about as long; before it does, the stacks are on the disk.
    stall_minutes: Annotated[Float, Field(gt=0)] | None = 30.0

    @property
    def learning_rate(self) -> float:
        """The peak learning rate, the default chosen by method."""
        if self.lr is not None:
            return self.lr
        return 3e-4 if self.method == "lora" else 1e-5

    def save_interval(self, steps: int) -> int:
        """Steps between two checkpoints of a run of `steps` steps."""
        return self.save_every or min(-(-steps // 10), 50 if self.method == "lora" else 500)


class Lora(Group):
    """The adapter; scale = alpha / rank."""

    rank: Annotated[Int, Field(ge=1, le=1024)] = 8
    alpha: Annotated[Float, Field(gt=0)] = 16.0
    targets: Annotated[list[str], Field(min_length=1)] = [
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    ]
    # Whether embedding and head are trained as well. auto: if ChatML's tokens are new to the model; the train
    # step looks and says so (train/adaptation.py), and to a back end anything but True means no.
    train_embeddings: AutoOrBool = "auto"
    base: Literal["compute", "int8"] = "compute"  # the type in which frozen weights are kept


class Parallel(Group):
    """How many processes share the work: `ranks` in all, spread evenly over `nodes` machines."""

    ranks: Positive = 1
    nodes: Positive = 1
    # What each rank keeps a share of. 1: optimizer, 2: gradients as well, 3: weights as well.
    zero: Annotated[Int, Field(ge=0, le=3)] = 0
    offload: Literal["none", "optimizer"] = "none"  # what is kept in the host's memory


class Output(Group):
    """Where results go, and what is asked of the tuned model."""

    dir: str = "runs"
    layout: Literal["tengtune", "mindformers"] = "tengtune"  # mindformers: its output folder besides
    prompts: list[str] = []
    max_new_tokens: Positive = 256
    evaluate: list[str] = []  # question files that are scored besides, see evaluate/read.py
    samples: Bool = True  # False keeps customer text out of reports and logs


class Recipe(Group):
    """A whole run file. `file` is where it was read from; paths in it are relative to that folder.
    `overrides` are what was changed for this call, see load()."""

    name: Annotated[str, AfterValidator(_folder_name)]
    backend: Literal["auto", "torch", "mindspore"] = "auto"
    seed: Annotated[Int, Field(ge=0, lt=2**32)] = 42
    model: Model
    data: Data
    train: Train = Train()
    lora: Lora = Lora()
    parallel: Parallel = Parallel()
    output: Output = Output()
    file: Path = Field(exclude=True)
    overrides: tuple[str, ...] = Field((), exclude=True)

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, value: Any) -> Any:
        """`model: PATH` and `data: FILE` or `data: [FILE, ...]` are accepted too."""
        if isinstance(value, dict):
            value = dict(value)
            if isinstance(value.get("model"), str):
                value["model"] = {"path": value["model"]}
            if isinstance(value.get("data"), (str, list)):
                value["data"] = {"files": value["data"]}
        return value

    def resolve(self, path: str) -> Path:
        """A path of the run file, as the user means it: relative to the run file's folder, ~ expanded."""
        # A run file is UTF-8, and so are names on disks, whatever the locale has the system's calls take.
        path = as_name(path)
        # Not pathlib's own: those raise for a ~name without a home, and for links in a circle.
        return Path(os.path.realpath(self.file.parent / os.path.expanduser(path)))

    def called(self, file: Path | None = None) -> str:
        """What names this run on a command line, quoted for a shell: the run file (or `file`) and this call's
        settings, without which the same file may mean another run folder."""
        here = Path.cwd()
        below = self.file.is_relative_to(here)
        name = file or (self.file.relative_to(here) if below else self.file)
        return shlex.join([str(name), *(part for each in self.overrides for part in ("-s", each))])

    @property
    def folder(self) -> Path:
        """The run folder: `<output.dir>/<name>`."""
        return self.resolve(self.output.dir) / as_name(self.name)

    @property
    def hub_model(self) -> str | None:
        """The hub id that model.path is, if it is not the path of a folder."""
        return hub_id_in(self.model.path, self.file.parent)

    @property
    def model_folder(self) -> Path:
        """The model's folder; of a hub id the one it is brought to, `models/<name>` beside the run file."""
        if self.hub_model is None:
            return self.resolve(self.model.path)
        return self.resolve(MODELS) / self.hub_model.split("/")[1]

    @property
    def to_download(self) -> bool:
        """Whether model.path is a hub id and its folder is not a model yet: config.json comes last."""
        return self.hub_model is not None and not (self.model_folder / "config.json").exists()

    @property
    def accumulation(self) -> int:
        """Micro batches per step: global_batch / (micro_batch x ranks)."""
        return self.train.global_batch // (self.train.micro_batch * self.parallel.ranks)


def load(path: Path, overrides: Sequence[str] = (), cards: int | None = None) -> Recipe:
    """Read and check a run file; `overrides` are "group.key=value" texts from the command line; `cards` is
    how many there are on the machine it is meant for (None: this one).

    Raises Problem with the line of the key: unknown key (and the nearest spelling), wrong type,
    value out of range, group that is missing.
    """
    path = path.absolute()
    return _checked(*read_yaml(path), path, overrides, cards)


def for_model(folder: Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe of a model that is only asked, without a run file: all defaults."""
    values: dict[str, Any] = {"model": as_text(str(folder.absolute())), "data": "-"}
    return _checked(values, {}, folder.absolute(), overrides)


def _checked(
    values: dict[str, Any], lines: Lines, path: Path, overrides: Sequence[str], cards: int | None = None
) -> Recipe:
    for override in overrides:
        override_value(values, as_text(override), lines)
    values.setdefault("name", as_text(path.stem))
    for ours in values.keys() & {"file", "overrides"}:
        raise unknown_key(ours, place(path, lines, (ours,)), list(keys()))
    try:
        recipe = Recipe(**values, file=path, overrides=tuple(overrides))
    except ValidationError as error:
        raise problem(error, path, lines, values, list(keys())) from error
    recipe = on_the_cards(recipe, cards)
    check_together(recipe, lines)
    return recipe


def keys(group: type[BaseModel] = Recipe, prefix: str = "") -> Iterator[str]:
    """All keys of the run file as "group.key", in their order."""
    for name, field in group.model_fields.items():
        if field.exclude:
            continue
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from keys(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def override_value(values: dict[str, Any], text: str, lines: Lines) -> None:
    """Apply one "group.key=value" to a run file's values; lists are written with commas."""
    key, separator, raw = text.partition("=")
    parts = tuple(part.strip() for part in key.split("."))
    if not separator or not all(parts):
        raise Problem("recipe.bad_override", where=f"--set {text}")
    for short, full in (("model", "path"), ("data", "files")):
        if parts[0] == short and len(parts) > 1 and not isinstance(values.get(short, {}), dict):
            values[short] = {full: values[short]}
    target = values
    for part in parts[:-1]:
        inner = target.setdefault(part, {})
        if not isinstance(inner, dict):
            raise Problem("recipe.unknown_key", where=f"--set {key}", key=key, nearest="")
        target = inner
    many = parts[-1] in ("files", "targets", "prompts", "evaluate")
    target[parts[-1]] = raw.split(",") if many else raw if _is_text(parts) else parse_scalar(raw)
    lines[parts] = 0


def _is_text(parts: Sequence[str]) -> bool:
    """Whether a key's value is a text, whatever it looks like: `-s name=2026`."""
    kind: Any = Recipe
    for part in parts:
        fields = kind.model_fields if isinstance(kind, type) and issubclass(kind, BaseModel) else {}
        kind = fields[part].annotation if part in fields else None
    return kind is str or tuple(parts) in (("model",), ("data",))
