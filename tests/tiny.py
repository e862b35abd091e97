"""A tiny model and a tiny tokenizer to test with, made on the spot and the same every time.

The tokenizer is a byte-level BPE with ChatML control tokens, for tests that need no real vocabulary.
384 ids, so that it fits the tiny golden models: 256 bytes, 123 merges, then the control tokens, in
Qwen's order, and two added tokens that are not "special" (Qwen3 has such, and they are a trap).
"""

import json
import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from tengtune.models.spec import ModelSpec, from_config

VOCAB = 384
ENDOFTEXT, IM_START, IM_END, TOOL_CALL, THINK = 379, 380, 381, 382, 383

CORPUS = [
    "system user assistant tool You are a helpful assistant. What is the capital of France?",
    "The answer is that there are some things which are better than others, and this is one of them.",
    "Please tell me how the model is trained and what the training data should look like.",
    "你好，请问你是谁？我是一个助手，很高兴为你提供帮助。",
    "请把下面的句子翻译成英文。今天的天气很好，我们去公园吧。",
]
_PATTERN = r"\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def tiny_tokenizer(folder: Path) -> Path:
    """Write `folder`/tokenizer.json (the same bytes every time); returns the folder."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=ENDOFTEXT,
        min_frequency=1,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    control = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in control])
    tokenizer.add_tokens(
        [AddedToken(text, special=False, normalized=False) for text in ("<tool_call>", "<think>")]
    )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def tiny_config(**shape: Any) -> dict[str, Any]:
    """A Qwen2 config.json of 2 layers and width 64; `shape` replaces or adds any of its keys."""
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 96,
        "vocab_size": VOCAB,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "torch_dtype": "float32",
        **shape,
    }


def outline(**shape: Any) -> dict[str, Any]:
    """As little of a Qwen2 config.json as says what model it is, for what reads no weights."""
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "hidden_size": 8,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "intermediate_size": 8,
        "vocab_size": VOCAB,
        "max_position_embeddings": 512,
        **shape,
    }


def tiny_weights(spec: ModelSpec, seed: int = 0) -> dict[str, np.ndarray]:
    """Random float32 tensors of `spec` by canonical name: no bias and no norm is left at its neutral
    value, and the activations keep their size from layer to layer."""
    random = np.random.default_rng(seed)
    weights = {}
    for name, shape in spec.tensors():
        values = random.standard_normal(shape).astype(np.float32)
        if name.endswith(".bias"):
            values *= 0.1
        elif len(shape) == 1:
            values = 1 + 0.1 * values
        elif spec.tie or "embed_tokens" not in name:
            values /= math.sqrt(shape[1])
        weights[name] = values.astype(np.float32)
    return weights


def tiny_model(
    folder: Path, *, seed: int = 0, dtype: str = "float32", tie: bool = False, **shape: Any
) -> Path:
    """Write a random Qwen2 folder (config.json and model.safetensors, no tokenizer); returns the folder.

    `shape` are keys of config.json, e.g. num_hidden_layers=4; dtype: float32, float16 or bfloat16.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = tiny_config(**{"tie_word_embeddings": tie, "torch_dtype": dtype, **shape})
    weights = tiny_weights(from_config(config), seed)
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    cast = {name: np.ascontiguousarray(values.astype(kind)) for name, values in weights.items()}
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    save_file(cast, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
