"""The model's section of a mindformers yaml, as its config classes read it, from a ModelSpec.

Keys as in mindformers r1.0 to r1.5 (QwenConfig, LlamaConfig) and master (Qwen2, Qwen3 on Mcore, which read
config.json themselves). QwenConfig ignores rotary_emb_base and takes RoPE's base from `theta`: both stand.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tengtune.models.layouts import MCORE_BOTH, MCORE_MLP, MCORE_QKV, MCORES, QKV_CONCAT
from tengtune.models.spec import ModelSpec, read_config

YAML = "mindformers.yaml"
MAX_LENGTH = 8192
"""A run's rows; mindformers keeps a mask of its square."""

_END_OF_TEXT = 151643


def model_section(folder: Path, spec: ModelSpec, layout: str, dtype: str, to: str) -> str:
    """The text of YAML for the model in `folder`, which was written in `layout` and `dtype`."""
    head = "# The keys of your mindformers yaml that depend on the model; the others are yours to choose.\n"
    values: dict[str, Any] = {"load_ckpt_format": "ckpt" if to == "mindspore" else "safetensors"}
    if layout in MCORES:
        model: dict[str, Any] = {
            "use_contiguous_weight_layout_attention": layout in (MCORE_QKV, MCORE_BOTH),
            "use_interleaved_weight_layout_mlp": layout not in (MCORE_MLP, MCORE_BOTH),
        }
        values["model"] = {"model_config": model}
        head += "# pretrained_model_dir: this folder; mindformers reads its config.json.\n"
    else:
        kind = "Qwen" if spec.family == "qwen1" else "Llama"
        model = {
            "type": f"{kind}Config",
            "seq_length": min(spec.max_positions, MAX_LENGTH),
            **shape(spec, layout),
            **_dtypes(spec, dtype),
            **special_ids(folder, spec),
        }
        values["model"] = {"model_config": model, "arch": {"type": f"{kind}ForCausalLM"}}
        values["processor"] = {"tokenizer": _tokenizer(folder, spec)}
    return head + yaml.safe_dump(values, sort_keys=False)


def shape(spec: ModelSpec, layout: str) -> dict[str, Any]:
    """The keys of model_config that config.json decides."""
    values: dict[str, Any] = {
        "hidden_size": spec.hidden,
        "num_layers": spec.layers,
        "num_heads": spec.heads,
        "vocab_size": spec.vocab,
        "intermediate_size": spec.ffn,
        "rms_norm_eps": spec.rms_eps,
        "theta": spec.rope_theta,
        "rotary_emb_base": spec.rope_theta,
        "max_position_embedding": spec.max_positions,
    }
    if spec.family == "qwen1":
        return {**values, "kv_channels": spec.head_dim}
    return {
        **values,
        "n_kv_heads": spec.kv_heads,
        "qkv_has_bias": spec.qkv_bias,
        "qkv_concat": layout == QKV_CONCAT,
        "tie_word_embeddings": spec.tie,
    }


def _dtypes(spec: ModelSpec, dtype: str) -> dict[str, str]:
    narrow = "float16" if spec.family == "qwen1" else "bfloat16"
    wide = ("layernorm_compute_type", "softmax_compute_type", "rotary_dtype")
    compute = narrow if dtype == "float32" else dtype
    return {"compute_dtype": compute, "param_init_type": dtype, **dict.fromkeys(wide, "float32")}


def special_ids(folder: Path, spec: ModelSpec) -> dict[str, int]:
    """End and padding as config.json has them, otherwise Qwen's <|endoftext|>. A chat model's end is not its
    padding: mindformers leaves padding out of the loss, and would leave out the end of every answer."""
    config = read_config(folder)
    usual = min(_END_OF_TEXT, spec.vocab - 1)
    end, pad = config.get("eos_token_id"), config.get("pad_token_id")
    end = end if isinstance(end, int) else usual
    if not isinstance(pad, int):
        pad = usual if spec.vocab > _END_OF_TEXT else end
    return {"eos_token_id": end, "pad_token_id": pad}


def _tokenizer(folder: Path, spec: ModelSpec) -> dict[str, str]:
    """The tokenizer's class and its files."""
    if spec.family == "qwen1":
        kind, names = "QwenTokenizer", {"vocab_file": "qwen.tiktoken"}
    else:
        kind, names = "Qwen2Tokenizer", {"vocab_file": "vocab.json", "merges_file": "merges.txt"}
    return {"type": kind, **{key: name for key, name in names.items() if (folder / name).exists()}}
