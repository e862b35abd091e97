"""One epoch of LoRA by a peer, in this process: transformers.Trainer + peft, or LLaMA-Factory.

usage: train_peers.py trainer MODEL DATA RESULT [--rows packed|dynamic|padded] [--dtype ...] [--batch N]
       train_peers.py llamafactory MODEL DATA RESULT [--rows packed|dynamic] [--batch N]

Both train through transformers.Trainer, which is where time, memory and labels are counted.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from measure import measured

RANK, ALPHA, LR = 8, 16, 1e-4
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def watch(result: Path) -> None:
    """Make Trainer.train measure itself and count the labels that really reach a training step."""
    trainer = transformers.Trainer
    plain_train, plain_step = trainer.train, trainer.training_step
    seen = [0]

    def training_step(self: Any, model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        seen[0] += int((inputs["labels"][..., 1:] != -100).sum())  # a row's first token is no label
        return plain_step(self, model, inputs, *args, **options)

    def train(self: Any, *args: Any, **options: Any) -> Any:
        outcome = []

        def run() -> tuple[int, float]:
            outcome.append(plain_train(self, *args, **options))
            losses = [entry["loss"] for entry in self.state.log_history if "loss" in entry]
            return seen[0], sum(losses) / len(losses)

        rank = int(os.environ.get("RANK", "0"))
        measured(run).write(result if rank == 0 else result.with_name(f"{result.name}.{rank}"))
        return outcome[0]

    trainer.training_step, trainer.train = training_step, train


def run_trainer(args: argparse.Namespace, place: Path) -> None:
    from peft import LoraConfig, get_peft_model
    from train_rows import pack, read

    documents = read(args.model, args.data, args.cutoff)
    if args.rows == "packed":
        rows: list[Any] = pack(documents, args.cutoff)
    else:
        rows = [[document] for document in documents]
    batch = 1 if args.rows == "packed" else args.batch

    def collate(chosen: list[Any]) -> dict[str, torch.Tensor]:
        if args.rows == "packed":  # no mask: restarting positions make one that keeps the documents apart
            (row,) = chosen
            return {
                "input_ids": torch.tensor([[token for d in row for token in d.ids]]),
                "labels": torch.tensor([[label for d in row for label in d.labels]]),
                "position_ids": torch.tensor([[p for d in row for p in range(len(d.ids))]]),
            }
        singles = [row[0] for row in chosen]
        width = args.cutoff if args.rows == "padded" else max(len(d.ids) for d in singles)
        lengths = torch.tensor([len(d.ids) for d in singles])

        def filled(values: list[list[int]], fill: int) -> torch.Tensor:
            return torch.tensor([v + [fill] * (width - len(v)) for v in values])

        return {
            "input_ids": filled([d.ids for d in singles], 0),
            "labels": filled([d.labels for d in singles], -100),
            "attention_mask": (torch.arange(width) < lengths[:, None]).long(),
        }

    transformers.set_seed(42)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        args.model, dtype=torch.float32, attn_implementation="sdpa"
    )
    model.config.use_cache = False
    lora = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=TARGETS, task_type="CAUSAL_LM")
    training = transformers.TrainingArguments(
        str(place),
        per_device_train_batch_size=batch,
        num_train_epochs=1,
        learning_rate=LR,
        lr_scheduler_type="constant",
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        remove_unused_columns=False,
        bf16=args.dtype == "bfloat16",
        disable_tqdm=True,
    )
    transformers.Trainer(
        get_peft_model(model, lora), training, train_dataset=rows, data_collator=collate
    ).train()


def run_llamafactory(args: argparse.Namespace, place: Path) -> None:
    from llamafactory.train.tuner import run_exp

    # It reads no file that is not registered. Its default is gradient checkpointing, which is slower.
    (place / "dataset_info.json").write_text(json.dumps({"bench": {"file_name": str(args.data.resolve())}}))
    packed = args.rows == "packed"
    run_exp(
        {
            "stage": "sft",
            "do_train": True,
            "finetuning_type": "lora",
            "model_name_or_path": str(args.model),
            "template": "qwen",
            "dataset": "bench",
            "dataset_dir": str(place),
            "output_dir": str(place / "out"),
            "lora_rank": RANK,
            "lora_alpha": ALPHA,
            "lora_target": "all",
            "cutoff_len": args.cutoff,
            "packing": packed,
            "neat_packing": packed,
            "per_device_train_batch_size": 1 if packed else args.batch,
            "gradient_accumulation_steps": 1,
            "num_train_epochs": 1.0,
            "learning_rate": LR,
            "lr_scheduler_type": "constant",
            "logging_steps": 1,
            "save_strategy": "no",
            "disable_gradient_checkpointing": True,
            "preprocessing_num_workers": 1,
            "overwrite_cache": True,
            "report_to": "none",
            "use_cpu": True,
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", choices=["trainer", "llamafactory"])
    for name in ("model", "data", "result"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--rows", default="packed", choices=["packed", "dynamic", "padded"])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--cutoff", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    watch(args.result)
    with tempfile.TemporaryDirectory() as place:
        {"trainer": run_trainer, "llamafactory": run_llamafactory}[args.peer](args, Path(place))


if __name__ == "__main__":
    main()
