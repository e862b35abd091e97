"""Converting a model to MindSpore and back: tengtune beside a plain copy and MindSpore's own save and load.

    python bench/convert.py [--gb 2 4 8] [--repeat 3] [--dir .]

A Qwen2-shaped model in bfloat16 (values spread as trained ones are, Hugging Face shards) becomes model.ckpt
in mindformers' names and, with its linears woven, in qkv-concat; and that .ckpt a Hugging Face folder again.
Beside them: cp with fsync of the same bytes; and mindspore.load_checkpoint plus save_checkpoint of the .ckpt,
which only reads and writes the format and converts nothing. Every measurement is a fresh process; in each
round all take turns. Times include opening, writing, fsync (not MindSpore's) and our reading back. Memory is
the peak of anonymous RSS above that before, without the interpreter's and the framework's own.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np
from process import COPY, measure

from tengtune.models.spec import from_config
from tengtune.weights.safetensors_io import write_folder
from tengtune.weights.stream import stream

SHAPE = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 11008,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "torch_dtype": "bfloat16",
}
OURS = (
    """
from tengtune.weights.convert import open_conversion, write_conversion
from tengtune.weights.found import open_found
""",
    """
layout, dtype = (None if text == "-" else text for text in sys.argv[4:6])
job = open_conversion(open_found(Path(sys.argv[1])), sys.argv[3], layout, dtype)
write_conversion(job, Path(sys.argv[2]))
""",
)
PEER = (
    "import mindspore",
    """
tensors = mindspore.load_checkpoint(sys.argv[1])
mindspore.save_checkpoint([{"name": n, "data": t} for n, t in tensors.items()], sys.argv[2])
""",
)


def make_model(folder: Path, gigabytes: float) -> Path:
    """A Hugging Face folder of about so many gigabytes, in shards of 2 GB."""
    one, two = (2 * from_config({**SHAPE, "num_hidden_layers": n}).parameters() for n in (1, 2))
    config = {**SHAPE, "num_hidden_layers": max(1, round((gigabytes * 1e9 - one) / (two - one)) + 1)}
    values = np.random.default_rng(0).standard_normal(2**27, np.float32)
    values *= 0.02
    bits = values.astype(ml_dtypes.bfloat16)
    tensors = [
        stream(name, bits[: math.prod(shape)].reshape(shape)) for name, shape in from_config(config).tensors()
    ]
    source = folder / "model"
    source.mkdir()
    write_folder(source, tensors, 2 * 10**9)
    (source / "config.json").write_text(json.dumps(config))
    return source


def compare(folder: Path, gigabytes: float, repeat: int) -> None:
    source, ckpt, out = make_model(folder, gigabytes), folder / "ckpt", folder / "out"
    measure(OURS, source, ckpt, "mindspore", "-", "-")
    size = (ckpt / "model.ckpt").stat().st_size
    contenders = {
        "cp": (COPY, (source, out)),
        "hf to ckpt": (OURS, (source, out, "mindspore", "-", "-")),
        "hf to qkv-concat": (OURS, (source, out, "mindspore", "qkv-concat", "-")),
        "ckpt to hf": (OURS, (ckpt, out, "hf", "-", "-")),
        "to float16": (OURS, (source, out, "mindspore", "-", "float16")),
        "mindspore": (PEER, (ckpt / "model.ckpt", folder / "out.ckpt")),
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    peaks = dict.fromkeys(contenders, 0)
    for _ in range(repeat):
        for name, (piece, arguments) in contenders.items():
            try:
                seconds, _, peak = measure(piece, *arguments)
            except RuntimeError as error:  # MindSpore refuses a file larger than the memory that is free
                print(f"{name}: {error}"[:200], flush=True)
                continue
            times[name].append(seconds)
            peaks[name] = max(peak, peaks[name])
            shutil.rmtree(out, ignore_errors=True)
            (folder / "out.ckpt").unlink(missing_ok=True)
    median = {name: statistics.median(seconds or [math.nan]) for name, seconds in times.items()}
    print(f"{size / 1e9:.2f} GB, median of {repeat}", flush=True)
    for name, seconds in median.items():
        beside = f"{median['cp'] / seconds:5.2f} of cp | {median['mindspore'] / seconds:5.1f} x MindSpore"
        rate, peak = size / 1e9 / seconds, peaks[name] / 1e6
        print(f"  {name:<17}{seconds:7.2f} s {rate:6.2f} GB/s | {beside} | peak {peak:7.0f} MB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gb", type=float, nargs="+", default=[2, 4, 8])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--dir", type=Path, default=Path())
    options = parser.parse_args()
    for gigabytes in options.gb:
        with tempfile.TemporaryDirectory(dir=options.dir) as folder:
            compare(Path(folder), gigabytes, options.repeat)


if __name__ == "__main__":
    main()
