"""How long commands take before they do anything: tengtune beside a bare interpreter and bare imports.

    python bench/startup.py [--repeat 5]

Wall-clock medians of fresh processes. `train, first step` is a training of one step on a tiny model, data
ready; beside it the bare imports that every such training needs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.tiny import tiny_model, tiny_tokenizer

RUN = """
model: model
data: {files: data.json, seq_len: 64, heldout: 0}
train: {max_steps: 1, global_batch: 1}
"""


def seconds(command: list[str], folder: Path, repeat: int) -> float:
    """Median wall-clock time of a command; it may end with any code."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        subprocess.run(command, cwd=folder, capture_output=True, check=False)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=5)
    repeat = parser.parse_args().repeat
    python, tengtune = [sys.executable, "-c"], [sys.executable, "-m", "tengtune"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tiny_tokenizer(tiny_model(folder / "model"))
        (folder / "data.json").write_text(json.dumps([{"instruction": "a", "output": "b"}]))
        (folder / "run.yaml").write_text(RUN)
        (folder / "typo.yaml").write_text(RUN.replace("max_steps", "max_step"))
        subprocess.run([*tengtune, "data", "run.yaml"], cwd=folder, capture_output=True, check=True)
        rows = {
            "python, nothing": [*python, "pass"],
            "tengtune --help": [*tengtune, "--help"],
            "a typo'd key": [*tengtune, "train", "typo.yaml"],
            "data, up to date": [*tengtune, "data", "run.yaml"],
            "import torch": [*python, "import torch"],
            "import transformers, peft": [*python, "from transformers import Trainer; import peft"],
            "train, first step": [*tengtune, "train", "run.yaml", "--force", "--resume", "never"],
        }
        for title, command in rows.items():
            print(f"{title:<28}{seconds(command, folder, repeat):7.2f} s", flush=True)


if __name__ == "__main__":
    main()
