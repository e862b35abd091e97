"""What several keys of mindformers say together: batch, schedule, clipping, types, adapter, data."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from tengtune import capabilities
from tengtune.data.mindrecord import MindRecord, first_shard, is_mindrecord
from tengtune.data.recorded import lengths_of
from tengtune.mindformers import adapters, table
from tengtune.mindformers.codecs import count, flag, number, rounded
from tengtune.mindformers.reading import Reading, shown
from tengtune.ui.lists import joined
from tengtune.ui.problems import Problem

_MODEL = "model.model_config"
_PET = f"{_MODEL}.pet_config"
_TYPES = ("float32", "float16", "bfloat16")


def read(reading: Reading) -> None:
    """Fill in what the table of single keys leaves."""
    _schedule(reading)
    _optimizer(reading)
    _recompute(reading)
    _clipping(reading)
    _batch(reading)
    _types(reading)
    _adapter(reading)
    _records(reading)


def _word(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("text")
    return value


def _one_of(choices: tuple[str, ...], value: Any) -> str:
    if value not in choices:
        raise ValueError("dtype")
    return str(value)


def _schedule(reading: Reading) -> None:
    kinds = table.known()["types"]["schedules"]
    kind = reading.checked("lr_schedule.type", _word)
    power = reading.checked("lr_schedule.power", number, 1.0)
    if kind not in kinds or (kind == "PolynomialWithWarmUpLR" and power != 1):
        reading.note("trap", "lr_schedule.type", "read_schedule", found=shown(kind))
        return
    reading.take("train.lr_schedule", kinds[kind], "lr_schedule.type", "lr_schedule.power")
    steps = reading.at("lr_schedule.total_steps", -1)
    if steps not in (-1, None, reading.values.get("train.max_steps")):
        reading.note("trap", "lr_schedule.total_steps", "read_total_steps", steps=shown(steps))
    if kind == "ConstantWarmUpLR":
        return
    low = 0.0
    if kind != "LinearWithWarmUpLR":
        low = reading.checked("lr_schedule.lr_end", number, 0.0 if kind == "CosineWithWarmUpLR" else 1e-7)
    lr = reading.values["train.lr"]
    ratio = rounded(low / lr) if lr else 1.0
    if ratio > 1:
        reading.note("trap", "lr_schedule.lr_end", "read_lr_end", end=f"{low:g}", lr=f"{lr:g}")
        ratio = 1.0
    reading.take("train.lr_min_ratio", ratio, "lr_schedule.lr_end")


def _optimizer(reading: Reading) -> None:
    kind = reading.checked("optimizer.type", _word)
    if kind is None:
        return
    corrects = table.known()["types"]["optimizers"].get(kind)
    if corrects is None:
        reading.note("trap", "optimizer.type", "read_optimizer", found=shown(kind))
        return
    reading.take("train.optimizer", "adamw" if corrects == "corrected" else "mindformers", "optimizer.type")
    other = reading.checked("optimizer.learning_rate", number)
    if other not in (None, reading.values["train.lr"]):
        reading.note("trap", "optimizer.learning_rate", "read_two_rates", other=f"{other:g}")


def _recompute(reading: Reading) -> None:
    """Some layers or operators only: here it is all of them or none."""
    found = reading.at("recompute_config.recompute")
    some = reading.at("recompute_config.select_recompute")
    if some or (found and not isinstance(found, bool)):
        own = reading.values["train.recompute"]
        reading.note("trap", "recompute_config", "read_recompute", own=own)


def _clipping(reading: Reading) -> None:
    clips = reading.checked("runner_wrapper.use_clip_grad", flag, True)
    norm = reading.checked("runner_wrapper.max_grad_norm", number, 1.0) if clips else 0.0
    reading.take("train.clip_norm", norm, "runner_wrapper.use_clip_grad", "runner_wrapper.max_grad_norm")


def _batch(reading: Reading) -> None:
    """Ranks and global batch. Their global batch is batch x data_parallel x interleave x accumulation, with a
    pipeline batch x data_parallel x interleave x micro_batch_num."""
    split = "parallel_config"
    data, model, stages = (
        reading.checked(f"{split}.{key}", count, 1)
        for key in ("data_parallel", "model_parallel", "pipeline_stage")
    )
    interleave = reading.checked("micro_batch_interleave_num", count, 1)
    gathered = reading.checked("runner_config.gradient_accumulation_steps", count, 1)
    rounds = reading.checked(f"{split}.micro_batch_num", count, 1)
    micro = reading.values["train.micro_batch"]
    batch = micro * data * interleave * (rounds if stages > 1 else gathered)
    cards = data * model * stages
    ranks = cards if batch % (micro * cards) == 0 else data
    several = [key for key, size in (("model_parallel", model), ("pipeline_stage", stages)) if size > 1]
    reading.take("parallel.ranks", ranks, *(f"{split}.{key}" for key in ["data_parallel", *several]))
    keys = ["runner_config.gradient_accumulation_steps", "micro_batch_interleave_num"]
    reading.take("train.global_batch", batch, *keys, *([f"{split}.micro_batch_num"] if stages > 1 else []))
    if cards > data:
        values = {"model": model, "stages": stages, "cards": cards, "ranks": ranks}
        reading.note("trap", split, "read_split", **values)
    if stages > 1 and gathered > 1:
        reading.note("trap", "runner_config.gradient_accumulation_steps", "read_gathered", steps=gathered)
    parallel = reading.checked("use_parallel", flag, False)
    if cards > 1 and not parallel:
        reading.note("trap", "use_parallel", "read_use_parallel", cards=cards)
    if cards == 1 and gathered > 1:
        reading.note(
            "trap", "runner_config.gradient_accumulation_steps", "trap_one_card", asked=batch, left=micro
        )
    _sharding(reading, ranks)


def _sharding(reading: Reading, ranks: int) -> None:
    """ZeRO, and the back end where one alone has it."""
    key = "parallel.enable_parallel_optimizer"
    shards = ranks > 1 and reading.checked(key, flag, False)
    reading.take("parallel.zero", 1 if shards else 0, key)
    able = [name for name in capabilities.NAMES if capabilities.has("zero_1", name)]
    if shards and len(able) == 1:
        reading.values["backend"] = able[0]
        others = [name for backend, name in capabilities.NAMES.items() if backend != able[0]]
        reading.note("trap", key, "read_zero", backend=able[0], others=joined(others))


def _types(reading: Reading) -> None:
    dtype = reading.checked(f"{_MODEL}.compute_dtype", partial(_one_of, _TYPES), "float16")
    kept = reading.checked(f"{_MODEL}.param_init_type", partial(_one_of, _TYPES), "float16")
    narrow = dtype != "float32"
    lacking = [name for name in capabilities.NAMES if narrow and not capabilities.has(dtype, name)]
    if lacking:
        names = joined(capabilities.NAMES[name] for name in lacking)
        reading.note("changed", f"{_MODEL}.compute_dtype", "read_dtype", dtype=dtype, lacking=names)
    reading.take("model.dtype", "auto" if lacking else dtype, f"{_MODEL}.compute_dtype")
    tuned = reading.at(_PET) is None
    reading.values["train.method"] = "full" if tuned else "lora"
    if tuned and kept != "float32":
        reading.note("trap", f"{_MODEL}.param_init_type", "read_master", dtype=kept)
    base, theta = (reading.checked(f"{_MODEL}.{key}", number) for key in ("rotary_emb_base", "theta"))
    if base is not None and base != (theta or 10000.0):
        reading.note(
            "trap", f"{_MODEL}.rotary_emb_base", "read_theta", base=f"{base:g}", theta=f"{theta or 1e4:g}"
        )


def _adapter(reading: Reading) -> None:
    pet = reading.at(_PET)
    if pet is None:
        return
    if not isinstance(pet, dict) or pet.get("pet_type", "lora") != "lora":
        raise Problem("mindformers.other_pet", where=reading.path, found=shown(pet))
    reading.take("train.method", "lora", f"{_PET}.pet_type")
    text = reading.checked(f"{_PET}.target_modules", _word)
    found = None if text is None else adapters.targets(text, reading.family)
    if found is None:
        reading.note("trap", f"{_PET}.target_modules", "read_targets", found=shown(text))
    else:
        if reading.family == "qwen1" and 0 < len(lacking := adapters.unshared(found)) < 3:
            reading.note("trap", f"{_PET}.target_modules", "read_part", added=joined(lacking))
            found = adapters.in_order([*found, *lacking], reading.family)
        reading.take("lora.targets", found, f"{_PET}.target_modules")
    free = reading.at(f"{_PET}.freeze_exclude") or []
    wanted = adapters.EXCLUDED[reading.family]
    whole = isinstance(free, list) and all(pattern in free for pattern in wanted)
    if free and not whole:
        reading.note("trap", f"{_PET}.freeze_exclude", "read_excluded", found=shown(free))
    else:
        reading.take("lora.train_embeddings", whole, f"{_PET}.freeze_exclude")
        if whole:
            reading.note("trap", f"{_PET}.freeze_exclude", "read_embeddings")
    dropout = reading.checked(f"{_PET}.lora_dropout", number, 0.01)
    if dropout:
        reading.note("none", f"{_PET}.lora_dropout", "read_dropout", dropout=f"{dropout:g}")


def _records(reading: Reading) -> None:
    """What follows from how mindformers makes its records: one conversation a row, cut, none held out. A
    MindRecord's are trained as they are stored, so that our label policy has no say."""
    qwen1 = reading.family == "qwen1"
    for ours, own in (("pack", False), ("too_long", "cut"), ("heldout", 0.0)):
        reading.values[f"data.{ours}"] = own
    place = reading.checked("train_dataset.data_loader.dataset_dir", _word, "")
    if place.startswith("/"):  # a relative one starts from where mindformers was called
        reading.take("data.files", [place], "train_dataset.data_loader.dataset_dir")
    data = reading.data or (Path(place) if place.startswith("/") else None)
    if data is not None and is_mindrecord(first_shard(data)):
        if first_shard(data).is_file() and _lengthened(reading, MindRecord(first_shard(data))):
            return
        reading.note("changed", "train_dataset", "read_as_stored", length=reading.values["data.seq_len"])
        return
    reading.values["data.policy"] = "qwen" if qwen1 else "assistant"
    reading.note("changed", "train_dataset", "read_records_qwen1" if qwen1 else "read_records_new")


def _lengthened(reading: Reading, file: MindRecord) -> bool:
    """Take data.seq_len of the records there are, so that none is cut and no row is longer than they; False
    where there is none. Theirs is one less than a record holds, and mindformers reads no other."""
    _, most = lengths_of(file)
    if most:
        said = reading.values["data.seq_len"]
        reading.taken = [each for each in reading.taken if each.ours != "data.seq_len"]
        reading.take("data.seq_len", most, f"{_MODEL}.seq_length")
        reading.note("changed", "train_dataset", "read_as_recorded", length=most, said=said)
    return most > 0
