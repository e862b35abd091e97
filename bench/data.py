"""The data step: tokens per core beside bare tiktoken, and memory while the file grows.

    python bench/data.py [--mb 50 500 2000] [--corpus FILE...] [--repeat 3] [--dir .]

Alpaca records of the corpus, each numbered so that none is a copy, repeat in a JSON Lines file of each size.
Ours is the whole step in a fresh process: reading, judging, rendering, encoding with Qwen's first vocabulary,
splitting, packing, writing. Bare tiktoken is its encode_ordinary over the same texts in a list, in one thread
of a fresh process, and nothing else; with two threads it says what the machine's two cores can do. Wants the
vocabulary of `make fetch`. Memory is the peak of anonymous RSS above that before.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import statistics
import tempfile
from pathlib import Path

from process import Measured, measure

ROOT = Path(__file__).resolve().parents[1]
VOCABULARY = ROOT / ".cache" / "tokenizers" / "qwen1" / "qwen.tiktoken"
SHARED = ROOT.parent / "shared" / "data" / "instruct"
CONFIG = {
    "architectures": ["QWenLMHeadModel"],
    "model_type": "qwen",
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "intermediate_size": 128,
    "vocab_size": 151936,
    "seq_length": 8192,
    "layer_norm_epsilon": 1e-6,
}
OURS = (
    "from tengtune.cli.main import main",
    """
try:
    main(["data", sys.argv[1], "--force", "--quiet"])
except SystemExit as end:
    assert not end.code, end.code
""",
)
BARE = (
    """
from concurrent.futures import ThreadPoolExecutor
from tengtune.text.tokenizer import open_tokenizer
encode = open_tokenizer(Path(sys.argv[1]))._encoding.encode_ordinary
texts = [t for line in open(sys.argv[2]) for t in map(str, json.loads(line).values())]
threads = int(sys.argv[3])
parts = [texts[i::threads] for i in range(threads)]
""",
    """
with ThreadPoolExecutor(threads) as pool:
    counts = list(pool.map(lambda part: sum(len(encode(text)) for text in part), parts))
print(sum(counts), file=sys.stderr)
""",
)


def make_file(path: Path, corpus: list[Path], size: int) -> None:
    """JSON Lines of about `size` bytes."""
    records = [record for file in corpus for record in json.loads(file.read_text("utf-8"))]
    written = 0
    with path.open("w", encoding="utf-8") as stream:
        for number, record in enumerate(itertools.cycle(records)):
            pair = {"instruction": f"{number}. {record['instruction']}", "output": record["output"]}
            written += len((line := json.dumps(pair, ensure_ascii=False) + "\n").encode())
            stream.write(line)
            if written >= size:
                return


def figures_of(run: Path) -> tuple[int, int]:
    """Records and tokens of a finished data step."""
    figures = json.loads((run / "data.json").read_text("utf-8"))["figures"]
    return figures["records"], figures["train"]["tokens"] + figures["heldout"]["tokens"]


def show(name: str, tokens: int, runs: list[Measured], size: int) -> float:
    """Print a contender's medians; gives tokens per CPU second."""
    seconds, cpu = (
        statistics.median(values) for values in zip(*((r.seconds, r.cpu_s) for r in runs), strict=True)
    )
    peak = max(run.peak_bytes for run in runs) / 1e6
    rates = f"{tokens / cpu / 1e6:6.2f} M tokens a CPU second | {tokens / seconds / 1e6:6.2f} M a second"
    also = f"{size / seconds / 1e6:6.1f} MB/s | {cpu / seconds:4.2f} cores | peak {peak:6.0f} MB"
    print(f"  {name:<24}{rates} | {also}", flush=True)
    return tokens / cpu


def compare(folder: Path, corpus: list[Path], size: int, repeat: int, bare: bool) -> None:
    model, data, run = folder / "model", folder / "data.jsonl", folder / "run.yaml"
    model.mkdir(exist_ok=True)
    shutil.copy(VOCABULARY, model)
    (model / "config.json").write_text(json.dumps(CONFIG))
    make_file(data, corpus, size)
    run.write_text(f"model: {model}\ndata: {{files: [{data}], seq_len: 2048}}\n")
    contenders = {"ours": (OURS, (run,))}
    if bare:
        contenders |= {f"tiktoken, {n} thread(s)": (BARE, (model, data, n)) for n in (1, 2)}
    runs: dict[str, list[Measured]] = {name: [] for name in contenders}
    for _ in range(repeat):
        for name, (piece, arguments) in contenders.items():
            runs[name].append(measure(piece, *arguments))
    records, tokens = figures_of(folder / "runs" / "run")
    print(f"{data.stat().st_size / 1e6:,.0f} MB, {records:,} records, {tokens:,} tokens, median of {repeat}")
    rates = [show(name, tokens, found, data.stat().st_size) for name, found in runs.items()]
    if bare:
        print(f"  ours / bare tiktoken, per CPU second: {rates[0] / rates[1]:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mb", type=int, nargs="+", default=[50, 500, 2000])
    parser.add_argument("--corpus", type=Path, nargs="+")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--dir", type=Path, default=Path())
    options = parser.parse_args()
    shared = [SHARED / f"lf_alpaca_{language}_demo.json" for language in ("zh", "en")]
    examples = [ROOT / "examples" / "data" / f"ascend-qa.{language}.json" for language in ("zh", "en")]
    corpus = options.corpus or (shared if shared[0].exists() else examples)
    for number, megabytes in enumerate(options.mb):
        with tempfile.TemporaryDirectory(dir=options.dir) as folder:
            repeat = options.repeat if number == 0 else 1
            compare(Path(folder).resolve(), corpus, megabytes * 10**6, repeat, bare=number == 0)


if __name__ == "__main__":
    main()
