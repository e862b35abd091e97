"""Merging against PEFT's merge_and_unload, adapters in both directions, and folders against transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.tiny import tiny_model
from transformers import AutoModelForCausalLM, PreTrainedModel

from tengtune.models.spec import from_folder
from tengtune.ui.problems import Problem
from tengtune.weights.adapter import read_adapter, write_adapter
from tengtune.weights.merge import open_merge, write_merge
from tengtune.weights.safetensors_io import write_folder
from tengtune.weights.source import open_source
from tengtune.weights.stream import stream

pytestmark = [
    # peft 0.21.2 asks transformers 5.24 for a property that one has deprecated.
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers` to `True`:UserWarning"),
]

QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 32}
IDS = torch.arange(3, 40)[None]


def load(folder: Path) -> PreTrainedModel:
    model, report = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", output_loading_info=True)
    assert not any(report.values()), report
    return model.eval()


def logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS).logits


def random_adapter(folder: Path, base: Path, exact: bool = False, **config: Any) -> peft.PeftModel:
    """Save an adapter with PEFT whose every trained value is random; exact: multiples of 1/64."""
    torch.manual_seed(3)
    settings = {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj", "down_proj"], **config}
    model = peft.get_peft_model(load(base), peft.LoraConfig(task_type="CAUSAL_LM", **settings))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                noise = torch.randn_like(parameter, dtype=torch.float32) * 0.1
                parameter.copy_(torch.round(noise * 64) / 64 if exact else parameter.float() + noise)
    model.save_pretrained(folder)
    return model


def merged(base: Path, adapter: Path, out: Path, shard_bytes: int = 10**9) -> dict[str, torch.Tensor]:
    """Our merge, read by the safetensors library."""
    write_merge(open_merge(base, adapter), out, shard_bytes)
    return {n: t for f in sorted(out.glob("*.safetensors")) for n, t in load_file(f).items()}


CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "all-linear": {"target_modules": "all-linear"},
    "regular expression": {"target_modules": r".*layers\.1\.mlp\.(up|gate)_proj"},
    "patterns": {"rank_pattern": {"q_proj": 4, "layers.1.mlp.down_proj": 2}, "alpha_pattern": {"v_proj": 3}},
    "rslora": {"use_rslora": True},
    "head": {"target_modules": ["lm_head", "q_proj"]},
    "modules_to_save": {"modules_to_save": ["lm_head", "embed_tokens", "norm"]},
    "bias": {"bias": "lora_only"},
    "all biases": {"bias": "all"},
    "one layer": {"layers_to_transform": [1]},
    "layers": {"layers_to_transform": [0], "layers_pattern": "layers"},
    "excluded": {"exclude_modules": ["layers.0.self_attn.q_proj"]},
    "excluded by an expression": {"exclude_modules": r".*layers\.1\..*"},
    "names of other models": {"target_modules": ["q_proj", "c_attn"], "modules_to_save": ["score"]},
    "a part saved whole": {"modules_to_save": ["self_attn"], "target_modules": ["q_proj", "down_proj"]},
    "eva-like start": {"init_lora_weights": "gaussian"},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_merge_equals_pefts(tmp_path: Path, name: str) -> None:
    base = tiny_model(tmp_path / "base")
    model = random_adapter(tmp_path / "adapter", base, **CONFIGS[name])
    ours = merged(base, tmp_path / "adapter", tmp_path / "out")
    theirs = model.merge_and_unload().state_dict()
    before = load(base).state_dict()
    assert ours.keys() == theirs.keys()
    assert any(not torch.equal(before[n], ours[n]) for n in ours)
    for tensor, expected in theirs.items():
        assert ours[tensor].dtype == torch.float32
        difference = (ours[tensor] - expected).abs().max()
        assert difference <= 1e-6 * expected.abs().max(), tensor


@pytest.mark.parametrize(
    ("config", "lost", "named"),
    [
        ({}, "layers.1.self_attn.v_proj", "model.layers.1.self_attn.v_proj.weight:"),
        ({"modules_to_save": ["norm"]}, "model.norm", "model.norm.weight:"),
        ({"bias": "all"}, "k_proj.bias", "model.layers.0.self_attn.k_proj.bias:"),
        ({"bias": "lora_only"}, "base_layer.bias", "model.layers.1.self_attn.q_proj.bias:"),
    ],
)
def test_what_the_file_has_lost_is_named(
    tmp_path: Path, config: dict[str, Any], lost: str, named: str
) -> None:
    base = tiny_model(tmp_path / "base")
    random_adapter(tmp_path / "adapter", base, **config)
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    save_file({name: tensor for name, tensor in load_file(file).items() if lost not in name}, file)
    with pytest.raises(Problem) as caught:
        open_merge(base, tmp_path / "adapter")
    assert caught.value.code == "merge.does_not_fit"
    assert f"{named} adapter_config.json says it was trained" in str(caught.value.values["faults"])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_rounded_once_to_nearest(tmp_path: Path, dtype: str) -> None:
    base = tiny_model(tmp_path / "base", dtype=dtype)
    model = random_adapter(tmp_path / "adapter", base, exact=True, target_modules="all-linear")
    ours = merged(base, tmp_path / "adapter", tmp_path / "out")
    stored, adapter = load_file(base / "model.safetensors"), read_adapter(tmp_path / "adapter")
    assert len(adapter.pairs) == 14
    for linear, pair in adapter.pairs.items():
        # B A of multiples of 1/64 is exact, so that the sum's rounding is all there is.
        exact = pair.scale * (torch.tensor(pair.b).double() @ torch.tensor(pair.a).double())
        wide = stored[f"{linear}.weight"].float() + exact.float()
        assert torch.equal(exact.float().double(), exact)
        assert torch.equal(ours[f"{linear}.weight"], wide.to(ours[f"{linear}.weight"].dtype)), linear
    theirs = model.merge_and_unload().state_dict()
    assert all(torch.equal(ours[name], expected) for name, expected in theirs.items())


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16])
def test_adapters_kept_in_half_precision(tmp_path: Path, stored: torch.dtype) -> None:
    base = tiny_model(tmp_path / "base")
    model = random_adapter(tmp_path / "full", base)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(stored)
    model.save_pretrained(tmp_path / "adapter")
    assert read_adapter(tmp_path / "adapter").pairs.popitem()[1].a.dtype.name == str(stored)[6:]
    ours = merged(base, tmp_path / "adapter", tmp_path / "out")
    theirs = peft.PeftModel.from_pretrained(load(base), tmp_path / "adapter").merge_and_unload().state_dict()
    for name, expected in theirs.items():
        assert (ours[name] - expected).abs().max() <= 1e-6 * expected.abs().max(), name


def test_ties_go_to_even() -> None:
    """bfloat16 has 8 bits: between 1 and 2 the spacing is 2**-7, so 2**-8 is half of it."""
    halfway = np.array([1.0 + 2.0**-8, 1.0 + 3 * 2.0**-8, 1.0 + 2.0**-8 + 2.0**-20], np.float32)
    pieces = list(stream("t", halfway, ml_dtypes.bfloat16).pieces())
    assert pieces[0].astype(np.float32).tolist() == [1.0, 1.0 + 2.0**-6, 1.0 + 2.0**-7]
    halfway = np.array([1.0 + 2.0**-11, 1.0 + 3 * 2.0**-11], np.float32)  # float16: spacing 2**-10
    pieces = list(stream("t", halfway, np.float16).pieces())
    assert pieces[0].astype(np.float32).tolist() == [1.0, 1.0 + 2.0**-9]


def our_adapter(tmp_path: Path, base: Path) -> dict[str, np.ndarray]:
    """An adapter of random values in tmp_path/adapter, written by us."""
    spec, random = from_folder(base), np.random.default_rng(5)
    tensors = {}
    for layer in range(spec.layers):
        for name, (out, inner) in spec.linears().items():
            linear = f"model.layers.{layer}.{name}"
            tensors[f"{linear}.lora_A.weight"] = random.standard_normal((4, inner)).astype(np.float32) / 8
            tensors[f"{linear}.lora_B.weight"] = random.standard_normal((out, 4)).astype(np.float32) / 8
    targets = [name.rpartition(".")[2] for name in spec.linears()]
    write_adapter(tmp_path / "adapter", tensors, rank=4, alpha=6.0, targets=targets, base=str(base))
    return tensors


@pytest.mark.parametrize("family", [{}, QWEN3], ids=["qwen2", "qwen3"])
@pytest.mark.parametrize("tie", [False, True])
def test_peft_loads_our_adapter_and_computes_the_merged_model(
    tmp_path: Path, family: dict[str, Any], tie: bool
) -> None:
    base = tiny_model(tmp_path / "base", tie=tie, **family)
    tensors = our_adapter(tmp_path, base)
    adapted = peft.PeftModel.from_pretrained(load(base), tmp_path / "adapter").eval()
    loaded = peft.get_peft_model_state_dict(adapted)
    assert {f"base_model.model.{name}" for name in tensors} == loaded.keys()
    merged(base, tmp_path / "adapter", tmp_path / "out", shard_bytes=100_000)
    plain, tuned, ours = logits(load(base)), logits(adapted), logits(load(tmp_path / "out"))
    assert (tuned - plain).abs().max() > 0.1
    assert (ours - tuned).abs().max() <= 1e-4


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("family", "tie"), [({}, False), ({}, True), (QWEN3, True)])
def test_transformers_computes_the_same_from_our_folder(
    tmp_path: Path, dtype: str, family: dict[str, Any], tie: bool
) -> None:
    base = tiny_model(tmp_path / "base", dtype=dtype, tie=tie, **family)
    source = open_source(base, from_folder(base))
    (tmp_path / "out").mkdir()
    written = write_folder(tmp_path / "out", [stream(n, a) for n, a in source.items()], shard_bytes=60_000)
    assert len(written) > 3
    (tmp_path / "out" / "config.json").write_bytes((base / "config.json").read_bytes())
    assert torch.equal(logits(load(tmp_path / "out")), logits(load(base)))


def test_we_read_what_transformers_saves_in_shards(tmp_path: Path) -> None:
    model = load(tiny_model(tmp_path / "base", dtype="bfloat16"))
    model.save_pretrained(tmp_path / "saved", max_shard_size="50KB")
    index = json.loads((tmp_path / "saved" / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 3
    source = open_source(tmp_path / "saved", from_folder(tmp_path / "saved"))
    for name, parameter in model.state_dict().items():
        assert np.array_equal(source[name].view(np.int16), parameter.view(torch.int16).numpy()), name
