"""mindformers' run files from ours: run_qwen.yaml as r1.0 has it, or finetune_*.yaml and predict_*.yaml."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any, Literal, cast

import yaml

from tengtune.data.mindrecord import MindRecord, first_shard, is_mindrecord
from tengtune.data.recorded import columns_of, lengths_of
from tengtune.mindformers import adapters, table
from tengtune.mindformers.codecs import CODECS, rounded
from tengtune.mindformers.hardware import Hardware
from tengtune.mindformers.table import Tree
from tengtune.models.layouts import MINDFORMERS
from tengtune.models.spec import ModelSpec
from tengtune.recipe import Recipe
from tengtune.recipe_fault import place
from tengtune.ui.problems import Problem
from tengtune.weights.mindformers_yaml import shape, special_ids

Form = Literal["r1.0", "new"]

SAVE_EVERY = 500
"""Steps between checkpoints where the run file leaves it open: a tenth of the run cannot be known here, and
mindformers' default is every step."""
IM_END = 151645

RECORDS, WEIGHTS, START, OUTPUT = "data.mindrecord", "ms", "start", "output"
"""In the folder of an export: the MindRecord file, the converted model, that model as it is taken on
several cards (rank_0/*.ckpt), and what mindformers writes."""


@dataclass(frozen=True)
class Job:
    """What is exported: the run, its model, the release's form, the cards, the folder to write to.

    columns: what the MindRecord calls its ids and labels, where it is there already; data.seq_len is then one
    less than its records hold.
    """

    recipe: Recipe
    spec: ModelSpec
    form: Form
    hardware: Hardware
    folder: Path
    columns: tuple[str, ...] = ()

    @property
    def skeleton(self) -> str:
        """The name of its tree in facts/mindformers.yaml."""
        return self.form if self.form == "r1.0" else self.spec.family

    @property
    def dtype(self) -> str:
        """The type it computes in; auto is what the cards and the release have."""
        if self.recipe.model.dtype != "auto":
            return self.recipe.model.dtype
        wide = self.form == "new" and self.hardware.bfloat16 and self.recipe.backend != "mindspore"
        return "bfloat16" if wide else "float16"

    @property
    def given(self) -> Path | None:
        """The MindRecord that is the run's data already; None where records are to be made of it."""
        data = self.recipe.data
        paths = [self.recipe.resolve(file) for file in data.files]
        ready = [path for path in paths if is_mindrecord(first_shard(path))]
        if ready and len(paths) > 1:
            raise Problem("mindformers.records_and_more", where=ready[0], count=len(paths))
        return ready[0] if ready else None

    @property
    def kept(self) -> str:
        """The type the weights are kept in: full tuning wants the float32 that the steps are added to."""
        return "float32" if self.recipe.train.method == "full" else self.dtype

    @property
    def answering(self) -> str:
        """The type the tuned model answers in: r1.3's Qwen1 trains in bfloat16 and does not answer in it."""
        return "float16" if self.skeleton == "qwen1" and self.dtype == "bfloat16" else self.dtype

    @property
    def stops(self) -> bool:
        """Whether its runs can end before their epochs do: r1.5 has stop_step."""
        return self.skeleton == "qwen2"

    @property
    def accumulation(self) -> int:
        train = self.recipe.train
        return train.global_batch // (train.micro_batch * self.hardware.ranks)

    @property
    def checkpoint(self) -> Path:
        """load_checkpoint: the whole model, for several cards in a folder rank_0."""
        return self.folder / (START if self.hardware.ranks > 1 else f"{WEIGHTS}/model.ckpt")

    @property
    def names(self) -> tuple[str, str]:
        """The files to tune with and to predict with."""
        if self.form == "r1.0":
            lora = self.recipe.train.method == "lora"
            return "run_qwen_lora.yaml" if lora else "run_qwen.yaml", "run_qwen.yaml"
        name = "qwen" if self.spec.family == "qwen1" else "qwen2"
        return f"finetune_{name}.yaml", f"predict_{name}.yaml"


def job(recipe: Recipe, spec: ModelSpec, form: Form | None, hardware: Hardware, folder: Path) -> Job:
    """Problem for a model, a type or a batch that the form or the cards do not have, and for records that
    mindformers cannot read."""
    if spec.family == "qwen3":
        raise Problem("mindformers.qwen3", where=recipe.model_folder)
    if form == "r1.0" and spec.family != "qwen1":
        raise Problem("mindformers.too_old", where=recipe.model_folder)
    made = Job(recipe, spec, form or ("r1.0" if spec.family == "qwen1" else "new"), hardware, folder)
    if made.dtype == "bfloat16" and (made.form == "r1.0" or not hardware.bfloat16):
        code = "mindformers.old_bfloat16" if made.form == "r1.0" else "mindformers.no_bfloat16"
        raise Problem(code, where=recipe.file, kind=hardware.kind)
    train = recipe.train
    if train.global_batch % (train.micro_batch * hardware.ranks):
        values = {"batch": train.global_batch, "micro": train.micro_batch, "ranks": hardware.ranks}
        raise Problem("mindformers.batch", where=recipe.file, **values)
    return _as_recorded(made)


def _as_recorded(work: Job) -> Job:
    """With the columns and the length of the MindRecord that is the data already, where it can be read yet.
    mindformers trains [:-1] against [1:], so that its seq_length is one less than all records hold."""
    place = work.given and first_shard(work.given)
    if not (place and place.is_file()):
        return work
    file = MindRecord(place)
    fewest, most = lengths_of(file)
    if not most:
        raise Problem("data.no_records", where=place)
    if fewest < most:
        raise Problem("mindformers.uneven_records", where=place, fewest=fewest, most=most)
    data = work.recipe.data.model_copy(update={"seq_len": most - 1})
    recipe = work.recipe.model_copy(update={"data": data})
    return replace(work, recipe=recipe, columns=tuple(columns_of(file)))


def trees(work: Job) -> dict[str, Tree]:
    """The files by name, as trees; Problem for LoRA targets the model has not."""
    tuning, predicting = work.names
    tree: Tree = copy.deepcopy(table.known()["forms"][work.skeleton])
    if work.recipe.train.optimizer == "mindformers":  # all releases have r1.0's, with r1.0's keys
        tree["optimizer"] = copy.deepcopy(table.known()["forms"]["r1.0"]["optimizer"])
    _fill_table(tree, work)
    for path, new in {**_model(work), **_learning(work), **_machine(work), **_adapter(work)}.items():
        if table.way(tree, path) is not None:
            table.put(tree, path, new)
    if work.recipe.train.method == "full":
        table.drop(tree, "model.model_config.pet_config")
    made = {tuning: _without_nothing(tree)}
    if predicting != tuning:
        made[predicting] = _predicting(made[tuning], work)
    return made


def _fill_table(tree: Tree, work: Job) -> None:
    """What one key of each side says."""
    train = work.recipe.train
    settled = {"train.lr": train.learning_rate, "train.save_every": train.save_every or SAVE_EVERY}
    for row in table.rows():
        own: Any = reduce(getattr, row.ours.split("."), cast(Any, work.recipe))
        own = settled.get(row.ours, own)
        for path in row.theirs:
            if table.way(tree, path) is not None:
                table.put(tree, path, CODECS[row.codec].theirs(own))


def _model(work: Job) -> dict[str, Any]:
    """Shape, types, ends and tokenizer."""
    recipe, spec = work.recipe, work.spec
    ids = special_ids(recipe.model_folder, spec)
    if spec.vocab > IM_END:
        ids["eos_token_id"] = IM_END  # otherwise an answer goes on after its <|im_end|>
    values = {
        **shape(spec, MINDFORMERS), **ids, "batch_size": 1, "compute_dtype": work.dtype,
        "param_init_type": work.kept, "max_decode_length": recipe.data.seq_len,
        "use_flash_attention": work.hardware.flash and work.form == "new",
    }  # fmt: skip
    weights = work.folder / WEIGHTS
    qwen1 = spec.family == "qwen1"
    return {
        **{f"model.model_config.{key}": value for key, value in values.items()},
        "trainer.model_name": "qwen" if qwen1 else "qwen2",
        "processor.tokenizer.model_max_length": spec.max_positions,
        "processor.tokenizer.vocab_file": str(weights / ("qwen.tiktoken" if qwen1 else "vocab.json")),
        "processor.tokenizer.merges_file": str(weights / "merges.txt"),
    }


def _learning(work: Job) -> dict[str, Any]:
    """Batch, schedule and clipping, which take several keys each."""
    train = work.recipe.train
    micro_batches = work.accumulation
    end = rounded(train.learning_rate * train.lr_min_ratio)
    kinds = {"cosine": "CosineWithWarmUpLR", "linear": "LinearWithWarmUpLR", "constant": "ConstantWarmUpLR"}
    kind = kinds[train.lr_schedule]
    if train.lr_schedule == "linear" and end:  # Linear goes down to 0, and Polynomial wants a way to go
        kind = "PolynomialWithWarmUpLR" if end < train.learning_rate else "ConstantWarmUpLR"
    falls = kind in ("CosineWithWarmUpLR", "PolynomialWithWarmUpLR")
    return {
        "runner_config.gradient_accumulation_steps": micro_batches if micro_batches > 1 else None,
        "train_dataset.batch_size": train.micro_batch,
        "lr_schedule.type": kind,
        "lr_schedule.lr_end": end if falls else None,
        "lr_schedule.power": 1.0 if kind == "PolynomialWithWarmUpLR" else None,
        # Where nothing stops a run at max_steps, the cosine would rise again after total_steps.
        "lr_schedule.total_steps": train.max_steps if work.stops and train.max_steps else -1,
        "runner_wrapper.use_clip_grad": train.clip_norm > 0,
        "runner_wrapper.max_grad_norm": train.clip_norm or None,
    }


def _machine(work: Job) -> dict[str, Any]:
    """Places, cards and their memory."""
    ranks = work.hardware.ranks
    columns = {"train_dataset.input_columns": list(work.columns)} if work.columns else {}
    return {
        **columns,
        "output_dir": str(work.folder / OUTPUT),
        "load_checkpoint": str(work.checkpoint),
        "auto_trans_ckpt": ranks > 1,
        "use_parallel": ranks > 1,
        "train_dataset.data_loader.dataset_dir": str(work.given or work.folder / RECORDS),
        "parallel_config.data_parallel": ranks,
        "parallel.enable_parallel_optimizer": work.recipe.parallel.zero > 0 and ranks > 1,
        "context.max_device_memory": f"{work.hardware.memory}GB",
    }


def _adapter(work: Job) -> dict[str, Any]:
    """pet_config, beside its rank and alpha."""
    lora, spec = work.recipe.lora, work.spec
    if work.recipe.train.method == "full":
        return {}
    at = "model.model_config.pet_config"
    return {
        f"{at}.compute_dtype": work.dtype,
        f"{at}.target_modules": adapters.pattern(spec, lora.targets, place(work.recipe.file, {}, ())),
        f"{at}.freeze_exclude": adapters.EXCLUDED[spec.family] if lora.train_embeddings is True else None,
    }


def _predicting(tuning: Tree, work: Job) -> Tree:
    """The file to predict with: the merged model on one card."""
    tree, rules = copy.deepcopy(tuning), table.known()["predict"]
    for path in rules["drop"][work.skeleton]:
        table.drop(tree, path)
    table.drop(tree, "runner_config.gradient_accumulation_steps")
    model = "model.model_config"
    types = {f"{model}.param_init_type": work.answering, f"{model}.compute_dtype": work.answering}
    for path, new in {**rules["put_always"], **rules["put"][work.skeleton], **types}.items():
        table.put(tree, path, new)
    table.put(tree, "load_checkpoint", "")
    return tree


def _without_nothing(tree: Any) -> Any:
    """The tree without keys that nothing was filled in for; what stood at several places still does."""
    made: dict[int, Any] = {}

    def copied(at: Any) -> Any:
        if id(at) not in made:
            if isinstance(at, dict):
                made[id(at)] = {key: copied(inner) for key, inner in at.items() if inner is not None}
            else:
                made[id(at)] = [copied(inner) for inner in at] if isinstance(at, list) else at
        return made[id(at)]

    return copied(tree)


class _Dumper(yaml.SafeDumper):
    """Keys below each other, plain lists in one line."""

    def represent_sequence(
        self, tag: str, sequence: Any, flow_style: bool | None = None
    ) -> yaml.SequenceNode:
        flat = not any(isinstance(item, (dict, list)) for item in sequence)
        return super().represent_sequence(tag, sequence, flow_style=flat)


def dump(tree: Tree) -> str:
    """The text of a file."""
    return yaml.dump(
        tree, Dumper=_Dumper, sort_keys=False, default_flow_style=False, allow_unicode=True, width=1000
    )
