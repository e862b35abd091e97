"""What an exported run loses, what becomes otherwise, and which traps of mindformers it meets."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tengtune.mindformers.codecs import plain, rounded
from tengtune.mindformers.notes import Note
from tengtune.mindformers.write import SAVE_EVERY, Job
from tengtune.ui.lists import joined


def notes(work: Job) -> list[Note]:
    """All of them: of the data, the training, the model, the cards."""
    return [*_data(work), *_train(work), *_model(work), *_cards(work), *_always(work)]


def _data(work: Job) -> Iterator[Note]:
    data, qwen1 = work.recipe.data, work.spec.family == "qwen1"
    if not work.given and (not qwen1 or data.policy == "assistant"):  # of a MindRecord the labels are fixed
        yield Note("trap", "data.policy", "trap_labels_qwen1" if qwen1 else "trap_labels_new")
    if work.columns:
        values: dict[str, object] = {"columns": joined(work.columns), "ids": data.seq_len + 1}
        yield Note("changed", "data.seq_len", "lose_length", {**values, "length": data.seq_len})
    elif work.given:
        yield Note("trap", "data.files", "trap_unread", {"length": data.seq_len, "ids": data.seq_len + 1})
    if data.pack:
        yield Note("none", "data.pack", "lose_pack")
    if data.heldout:
        yield Note("none", "data.heldout", "lose_heldout", {"share": f"{data.heldout:g}"})
    if data.weights:
        yield Note("none", "data.weights", "lose_weights")


def _train(work: Job) -> Iterator[Note]:
    train, new_lr = work.recipe.train, work.recipe.train.lr is None
    if train.epochs != math.ceil(train.epochs):
        values = {"asked": f"{train.epochs:g}", "written": math.ceil(train.epochs)}
        yield Note("changed", "train.epochs", "lose_epochs", values)
    if train.max_steps and not work.stops:
        yield Note("none", "train.max_steps", "lose_max_steps", {"epochs": math.ceil(train.epochs)})
    elif train.max_steps:
        yield Note("changed", "train.max_steps", "lose_stop_step", {"epochs": math.ceil(train.epochs)})
    if new_lr:
        values = {"lr": f"{train.learning_rate:g}", "method": train.method}
        yield Note("changed", "train.lr", "lose_lr", values)
    if train.save_every is None:
        yield Note("changed", "train.save_every", "lose_save_every", {"steps": SAVE_EVERY})
    for key in ("eval_every", "early_stop"):
        if getattr(train, key):
            yield Note("none", f"train.{key}", "lose_scores")
    if not train.beta1 or not train.beta2:
        yield Note("trap", "train.beta1, train.beta2", "trap_beta")
    if work.skeleton == "r1.0" and train.optimizer == "adamw":
        yield Note("trap", "train.optimizer", "trap_bias", {"first": rounded_share(train.beta1, train.beta2)})
    if work.accumulation > 1 and work.hardware.ranks == 1:
        values = {"asked": train.global_batch, "left": train.micro_batch}
        yield Note("trap", "train.global_batch", "trap_one_card", values)


def rounded_share(beta1: float, beta2: float) -> str:
    """Adam's first step without the correction of its zero start, as a share of the one with it."""
    return f"{(1 - beta1) / math.sqrt(1 - beta2):.3g}" if beta2 < 1 else "-"


def _model(work: Job) -> Iterator[Note]:
    recipe, spec = work.recipe, work.spec
    if recipe.model.dtype == "auto":
        yield Note("changed", "model.dtype", "lose_dtype", {"dtype": work.dtype})
    if work.answering != work.dtype:
        yield Note("trap", "compute_dtype", "trap_answering")
    if spec.family == "qwen1":
        yield Note("trap", "theta", "trap_theta", {"theta": f"{spec.rope_theta:g}"})
    if spec.stretch:
        yield Note("none", "model", "lose_stretch", {"length": spec.stretch.length})
    if recipe.train.method == "full":
        if spec.family == "qwen1":
            yield Note(
                "changed", "param_init_type", "trap_master", {"size": f"{spec.parameters() * 4 / 1e9:.1f}"}
            )
        return
    lora = recipe.lora
    scale = {"alpha": plain(lora.alpha), "rank": lora.rank, "scale": f"{rounded(lora.alpha / lora.rank):g}"}
    yield Note("trap", "lora.alpha", "trap_scaling", scale)
    if lora.train_embeddings == "auto":
        yield Note("none", "lora.train_embeddings", "lose_embeddings")
    elif lora.train_embeddings and work.kept != "float32":
        yield Note("trap", "lora.train_embeddings", "trap_embeddings", {"dtype": work.kept})
    if lora.base == "int8":
        yield Note("none", "lora.base", "lose_int8", {"dtype": work.kept})


def _cards(work: Job) -> Iterator[Note]:
    parallel, cards = work.recipe.parallel, work.hardware
    if cards.ranks != parallel.ranks:
        values = {"asked": parallel.ranks, "written": cards.ranks, "steps": work.accumulation}
        yield Note("changed", "parallel.ranks", "lose_ranks", values)
    if parallel.zero > 1:
        yield Note("changed", "parallel.zero", "lose_zero", {"zero": parallel.zero})
    if parallel.offload != "none":
        yield Note("none", "parallel.offload", "lose_offload")
    if not cards.bfloat16:
        yield Note("trap", "context.max_device_memory", "trap_910a", {"memory": cards.memory})
    if cards.ranks > 1 and work.form == "r1.0":
        yield Note("trap", "[0,8]", "trap_half_open")
        yield Note("trap", "run_singlenode.sh", "trap_launcher")
    if cards.nodes > 1:
        yield Note("trap", "auto_trans_ckpt", "trap_shared_disk")
    if any(character.isspace() for character in str(work.folder)):
        yield Note("trap", "--out", "trap_blanks")


def _always(work: Job) -> Iterator[Note]:
    yield Note("none", "train.on_nan, train.stall_minutes", "lose_guards")
    logits = work.recipe.train.micro_batch * work.recipe.data.seq_len * work.spec.vocab * 4
    yield Note("trap", "model", "lose_chunks", {"size": f"{logits / 1e9:.2g}"})
    if work.recipe.output.evaluate:
        yield Note("none", "output.evaluate", "lose_scores")
    yield Note("changed", "output.max_new_tokens", "lose_max_new", {"length": work.recipe.data.seq_len})
    if work.spec.family == "qwen1":
        yield Note("trap", "eos_token_id", "trap_eos")
        if work.form == "r1.0":
            yield Note("trap", "qwen_preprocess.py", "trap_int64")
    yield Note("trap", "output_dir", "trap_second_run")
