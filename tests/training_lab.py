"""A whole training on a tiny model by the real command, and ways to disturb it."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

from tests.fault_lab import python
from tests.tiny import tiny_model, tiny_tokenizer

STEPS = 6

# The learning rate is so large that the best evaluation is not the last one.
RUN = f"""
model: model
data: {{files: data.json, seq_len: 64, heldout: 0.1}}
train:
  max_steps: {STEPS}
  global_batch: 2
  save_every: 2
  keep: 2
  eval_every: 2
  early_stop: 9
  lr: 10
lora: {{targets: [q_proj], rank: 4}}
"""


def project(folder: Path, run: str = RUN) -> Path:
    """A folder with a tiny model, 40 records and run.yaml; returns the path of run.yaml."""
    tiny_tokenizer(tiny_model(folder / "model", num_hidden_layers=1))
    records = [{"instruction": f"question {n}?", "output": f"answer number {n}."} for n in range(40)]
    (folder / "data.json").write_text(json.dumps(records))
    (folder / "run.yaml").write_text(run)
    return folder / "run.yaml"


DISTURBED = """
import sys
from tengtune.cli.main import main
{disturbance}
main(sys.argv[1:])
"""


def train(run: Path, *options: str, disturbance: str = "") -> subprocess.CompletedProcess[str]:
    """`tengtune train RUN` in a process of its own, in which `disturbance` is executed first."""
    # On one thread results are the same bit for bit.
    return python(DISTURBED.format(disturbance=disturbance), "train", run, *options, OMP_NUM_THREADS="1")


def adapter(run: Path, runs: Path | None = None) -> str:
    """A hash of the adapter's tensors; its other file holds the path of the base model."""
    folder = (runs or run.parent / "runs") / "run" / "adapter"
    assert (folder / "adapter_config.json").exists()
    return hashlib.sha256((folder / "adapter_model.safetensors").read_bytes()).hexdigest()


def metrics(run: Path, key: str) -> list[dict[str, Any]]:
    """The records of metrics.jsonl that have a key."""
    text = (run.parent / "runs" / "run" / "metrics.jsonl").read_text()
    return [record for record in map(json.loads, text.splitlines()) if key in record]


STEP_CALLS = """
from tengtune.backends.torch.step import TorchBackend
from tengtune.train.saver import Saver
real_save = Saver.save
def save(self, *arguments):
    real_save(self, *arguments)
    self.wait()
Saver.save = save
calls, real_step = [0], TorchBackend.train_step
def train_step(self, batches, *rest):
    calls[0] += 1
    before(calls[0])
    return real_step(self, batches, *rest)
TorchBackend.train_step = train_step
"""
"""Calls `before(n)`, which the disturbance defines, in front of the n-th step of the process, and waits for
each checkpoint, so that it is known which ones are there by then."""
