"""Greedy answers on a CPU: tengtune beside transformers.generate, and beside the machine's read bandwidth,
all in one run.

    python bench/decode.py MODEL [--rows 1 8] [--dtypes float32 bfloat16] [--tokens 48] [--repeat 3]
                           [--threads 2]

MODEL is a Qwen2 or Qwen3 folder with tokenizer.json. Rows are answers under way at a time. A figure is
for the new tokens alone: the time for --tokens of them less the time for one, which is the prompt's. In
float32 both must write the same tokens. The bound is what the weights' bytes, read once a step, take at the
rate at which this machine sums a large array. Rounds go through all contenders in turn; medians of the
rounds' own ratios are printed, so that another load on the machine falls on everyone alike.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers

from tengtune.backends.base import Asked, Backend
from tengtune.backends.torch.step import build
from tengtune.models import spec as specs
from tengtune.recipe import Recipe
from tengtune.text.tokenizer import open_tokenizer
from tengtune.weights.source import open_source

PROMPT_TOKENS = 32
TEXT = (
    "The harbour was quiet in the early morning, and the boats lay side by side. An old man mended his net, "
    "while two children counted the gulls on the wall. Further out a ferry turned slowly towards the town. "
)
BANDWIDTH_FLOATS = 1 << 26

Answer = Callable[[list[list[int]], int], list[list[int]]]
"""Prompts of equal length and a number of tokens -> the new tokens of each."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(f"{'':18}{'ours tok/s':>12}{'transformers':>14}{'bound':>10}{'speed':>8}{'of bound':>10}")
    for dtype in args.dtypes:
        ours, theirs = tengtune(args.model, dtype), peer(args.model, dtype)
        for rows in args.rows:
            prompts = make_prompts(args.model, rows)
            if dtype == "float32" and ours(prompts, args.tokens) != theirs(prompts, args.tokens):
                raise SystemExit(f"{dtype}, {rows} rows: not the same tokens")
            rounds = []
            for _ in range(args.repeat):
                bound = rows * bandwidth() / weight_bytes(args.model, dtype)
                rounds.append((rate(ours, prompts, args.tokens), rate(theirs, prompts, args.tokens), bound))
            report(f"{dtype}, {rows} rows", rounds)


def tengtune(model: Path, dtype: str) -> Answer:
    """Our back end: the stream of a chat for one row, several answers at a time for more."""
    spec = specs.from_folder(model)
    settings = {"name": "bench", "model": {"path": str(model), "dtype": dtype}, "data": {"files": ["-"]}}
    recipe = Recipe.model_validate({**settings, "file": Path("bench.yaml")})
    backend: Backend = build(spec, open_source(model, spec), recipe, trainable=False)

    def answer(prompts: list[list[int]], count: int) -> list[list[int]]:
        if len(prompts) == 1:
            return [list(backend.generate(prompts[0], count, ()))]
        answers: list[list[int]] = [[] for _ in prompts]

        def asked(prompt: list[int], ids: list[int]) -> Asked:
            def take(token: int) -> bool:
                ids.append(token)
                return True

            return Asked(prompt, count, take)

        for _ in backend.generate_many(map(asked, prompts, answers), ()):
            pass
        return answers

    return answer


def peer(model: Path, dtype: str) -> Answer:
    """transformers.generate, greedy, never ending early."""
    loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype))
    settings = transformers.GenerationConfig(do_sample=False, eos_token_id=None, pad_token_id=0)
    loaded.eval().generation_config = settings

    def answer(prompts: list[list[int]], count: int) -> list[list[int]]:
        ids = torch.tensor(prompts)
        found = loaded.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count)
        new: list[list[int]] = found[:, ids.shape[1] :].tolist()
        return new

    return answer


def make_prompts(model: Path, rows: int) -> list[list[int]]:
    """Prompts of equal length (transformers would need padding otherwise), each with another beginning."""
    ids = open_tokenizer(model).encode(TEXT * 2)
    return [ids[row : row + PROMPT_TOKENS] for row in range(rows)]


def rate(answer: Answer, prompts: list[list[int]], count: int) -> float:
    """New tokens a second, all rows together, after the prompt."""
    seconds = []
    for tokens in (1, count):
        start = time.perf_counter()
        answer(prompts, tokens)
        seconds.append(time.perf_counter() - start)
    return len(prompts) * (count - 1) / (seconds[1] - seconds[0])


def bandwidth() -> float:
    """Bytes a second at which a large array is read, the best of five times."""
    array = torch.ones(BANDWIDTH_FLOATS)
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        array.sum()
        seconds.append(time.perf_counter() - start)
    return array.nbytes / min(seconds)


def weight_bytes(model: Path, dtype: str) -> int:
    """What one step reads of the weights: all but an embedding that is not the head, too."""
    spec = specs.from_folder(model)
    unread = 0 if spec.tie else spec.vocab * spec.hidden
    return (spec.parameters() - unread) * getattr(torch, dtype).itemsize


def report(name: str, rounds: list[tuple[float, float, float]]) -> None:
    figures = [statistics.median(values) for values in zip(*rounds, strict=True)]
    speed = statistics.median(ours / theirs for ours, theirs, _ in rounds)
    share = statistics.median(ours / bound for ours, _, bound in rounds)
    print(f"{name:18}{figures[0]:12.1f}{figures[1]:14.1f}{figures[2]:10.1f}{speed:7.2f}x{share:10.2f}")


if __name__ == "__main__":
    main()
