"""LoRA adapters between PEFT and mindformers: the same products, the scale carried, nothing guessed."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.mindformers_lab import qwen1_in_mindformers
from tests.qwen1 import to_qwen1
from tests.tiny import tiny_model

from tengtune.steps.convert import convert, open_job
from tengtune.ui.console import Console
from tengtune.ui.problems import Problem
from tengtune.weights import ckpt_io
from tengtune.weights.adapter import read_adapter
from tengtune.weights.compare import compare
from tengtune.weights.convert_adapter import AdapterConversion
from tengtune.weights.found import open_found
from tengtune.weights.look import comparable
from tengtune.weights.merge import open_merge, write_merge
from tengtune.weights.stream import stream

Weights = dict[str, np.ndarray]
RANK, HIDDEN, FFN = 4, 64, 96
QWEN1_LINEARS = {
    "attn.c_attn": (3 * HIDDEN, HIDDEN),
    "attn.c_proj": (HIDDEN, HIDDEN),
    "mlp.w1": (FFN, HIDDEN),
    "mlp.w2": (FFN, HIDDEN),
    "mlp.c_proj": (HIDDEN, FFN),
}
MINDFORMERS_LINEARS = {
    **{f"attention.{w}": (HIDDEN, HIDDEN) for w in ("wq", "wk", "wv", "wo")},
    "feed_forward.w1": (FFN, HIDDEN),
    "feed_forward.w3": (FFN, HIDDEN),
    "feed_forward.w2": (HIDDEN, FFN),
}


def random(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def run(source: Path, out: Path, to: str, **options: Any) -> Path:
    convert(open_job(source, to, **options), out, Console("quiet"))
    return out


def problem(code: str, source: Path, to: str = "hf", **options: Any) -> Problem:
    with pytest.raises(Problem) as caught:
        open_job(source, to, **options)
    assert (caught.value.code, caught.value.exit_code) == (code, 2)
    assert caught.value.texts()
    return caught.value


def peft_config(**changes: Any) -> dict[str, Any]:
    return {
        "base_model_name_or_path": "Qwen/Qwen-7B",
        "bias": "none",
        "lora_alpha": 2,
        "lora_dropout": 0.05,
        "peft_type": "LORA",
        "r": RANK,
        "target_modules": ["c_attn", "attn.c_proj", "mlp.c_proj", "w1", "w2"],
        "task_type": "CAUSAL_LM",
        **changes,
    }


@pytest.fixture
def peft(tmp_path: Path) -> Path:
    """An adapter of Qwen1's five linears in two layers, as PEFT writes it: alpha 2, rank 4, scale 0.5."""
    folder, tensors = tmp_path / "peft", {}
    for layer in range(2):
        for number, (linear, (out, inner)) in enumerate(QWEN1_LINEARS.items()):
            name = f"base_model.model.transformer.h.{layer}.{linear}"
            tensors[f"{name}.lora_A.weight"] = random(RANK, inner, seed=10 * layer + number)
            tensors[f"{name}.lora_B.weight"] = random(out, RANK, seed=100 + 10 * layer + number)
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    (folder / "adapter_config.json").write_text(json.dumps(peft_config(), indent=2))
    return folder


def mindformers_tensors(prefix: str = "mindpet_delta_lora") -> Weights:
    """What mindformers trains: an A of its own for each of q, k and v."""
    tensors = {}
    for layer in range(2):
        for number, (linear, (out, inner)) in enumerate(MINDFORMERS_LINEARS.items()):
            name = f"transformer.layers.{layer}.{linear}"
            tensors[f"{name}.{prefix}_a"] = random(RANK, inner, seed=10 * layer + number)
            tensors[f"{name}.{prefix}_b"] = random(out, RANK, seed=100 + 10 * layer + number)
    return tensors


def write_ckpt(path: Path, tensors: Weights) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    ckpt_io.write_file(path, [stream(n, a) for n, a in tensors.items()])
    return path


def peft_tensors(folder: Path) -> Weights:
    return load_file(folder / "adapter_model.safetensors")


def same(one: Weights, other: Weights) -> bool:
    return one.keys() == other.keys() and all(
        a.dtype == other[n].dtype and np.array_equal(a, other[n]) for n, a in one.items()
    )


def test_peft_to_mindformers_copies_a_and_cuts_b(tmp_path: Path, peft: Path) -> None:
    out = run(peft, tmp_path / "out", "mindspore")
    found = {n: rows[:] for n, rows in ckpt_io.open_file(out / "adapter_model.ckpt").items()}
    old, expected = peft_tensors(peft), dict[str, np.ndarray]()
    others = {
        "attn.c_proj": "attention.wo",
        "mlp.w1": "feed_forward.w1",
        "mlp.w2": "feed_forward.w3",
        "mlp.c_proj": "feed_forward.w2",
    }
    for layer in range(2):
        before, after = f"base_model.model.transformer.h.{layer}", f"transformer.layers.{layer}"
        for i, part in enumerate(("wq", "wk", "wv")):
            name = f"{after}.attention.{part}.mindpet_delta_lora"
            expected[f"{name}_a"] = old[f"{before}.attn.c_attn.lora_A.weight"]
            expected[f"{name}_b"] = old[f"{before}.attn.c_attn.lora_B.weight"][i * HIDDEN : (i + 1) * HIDDEN]
        for theirs, ours in others.items():
            expected[f"{after}.{ours}.mindpet_delta_lora_a"] = old[f"{before}.{theirs}.lora_A.weight"]
            expected[f"{after}.{ours}.mindpet_delta_lora_b"] = old[f"{before}.{theirs}.lora_B.weight"]
    assert same(found, expected)
    config = json.loads((out / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (4, 2)
    assert config["target_modules"] == ["w1", "w2", "w3", "wk", "wo", "wq", "wv"]
    assert "lora_alpha: 2\n" in (out / "mindformers.yaml").read_text()


@pytest.mark.parametrize("to", ["mindspore", "mindspore-safetensors"])
def test_peft_there_and_back(tmp_path: Path, peft: Path, to: str) -> None:
    back = run(run(peft, tmp_path / "there", to), tmp_path / "back", "hf")
    assert same(peft_tensors(back), peft_tensors(peft))
    assert json.loads((back / "adapter_config.json").read_text()) == peft_config()


def test_adapters_are_compared_across_layouts(tmp_path: Path, peft: Path) -> None:
    there = run(peft, tmp_path / "there", "mindspore")
    one, other = (comparable(open_found(folder), None) for folder in (peft, there))
    assert one.keys() == other.keys()
    assert len(one) == 2 * 2 * 7
    assert compare(one, other) == []
    name = "model.layers.1.self_attn.k_proj.lora_B.weight"
    (found,) = compare({**one, name: one[name][:] + np.float32(1)}, other)
    assert (found.name, found.count) == (name, HIDDEN * RANK)


@pytest.mark.parametrize("prefix", ["mindpet_delta_lora", "tk_delta_lora", "lora"])
def test_mindformers_to_peft_is_block_diagonal(tmp_path: Path, prefix: str) -> None:
    """Three different A: one adapter of three times the rank, with the same products and the same scale."""
    tensors = mindformers_tensors(prefix)
    out = run(write_ckpt(tmp_path / "a.ckpt", tensors), tmp_path / "out", "hf", alpha=1.0)
    config = json.loads((out / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (4, 1)
    assert (config["rank_pattern"], config["alpha_pattern"]) == ({"c_attn": 12}, {"c_attn": 3})
    assert set(config["target_modules"]) == {"c_attn", "attn.c_proj", "w1", "w2", "mlp.c_proj"}
    found = peft_tensors(out)
    for layer in range(2):
        c_attn = f"base_model.model.transformer.h.{layer}.attn.c_attn"
        a, b = found[f"{c_attn}.lora_A.weight"], found[f"{c_attn}.lora_B.weight"]
        assert (a.shape, b.shape) == ((12, HIDDEN), (3 * HIDDEN, 12))
        for i, part in enumerate(("wq", "wk", "wv")):
            own = f"transformer.layers.{layer}.attention.{part}.{prefix}"
            product = b[i * HIDDEN : (i + 1) * HIDDEN].astype(float) @ a.astype(float)
            expected = tensors[f"{own}_b"].astype(float) @ tensors[f"{own}_a"].astype(float)
            assert np.abs(product - expected).max() < 1e-12
    adapter = read_adapter(out)
    assert {pair.scale for pair in adapter.pairs.values()} == {0.25}


def test_mindformers_there_and_back(tmp_path: Path) -> None:
    tensors = mindformers_tensors()
    peft = run(write_ckpt(tmp_path / "a.ckpt", tensors), tmp_path / "peft", "hf", alpha=16.0)
    back = run(peft, tmp_path / "back", "mindspore")
    found = {n: rows[:] for n, rows in ckpt_io.open_file(back / "adapter_model.ckpt").items()}
    assert same(found, tensors)
    assert json.loads((back / "adapter_config.json").read_text())["lora_alpha"] == 16


def test_qwen2_adapters_only_change_names(tmp_path: Path) -> None:
    folder = tmp_path / "peft"
    folder.mkdir()
    tensors = {}
    for number, linear in enumerate(("self_attn.q_proj", "self_attn.v_proj", "mlp.gate_proj")):
        name = f"base_model.model.model.layers.0.{linear}"
        tensors[f"{name}.lora_A.weight"] = random(RANK, HIDDEN, seed=number)
        tensors[f"{name}.lora_B.weight"] = random(32, RANK, seed=9 + number)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = peft_config(target_modules=["q_proj", "v_proj", "gate_proj"])
    (folder / "adapter_config.json").write_text(json.dumps(config))
    there = run(folder, tmp_path / "there", "mindspore-safetensors", layout="slora")
    found = load_file(there / "adapter_model.safetensors")
    assert set(found) == {
        f"model.layers.0.{linear}.lora_{x}"
        for linear in ("attention.wq", "attention.wv", "feed_forward.w1")
        for x in "ab"
    }
    assert same(peft_tensors(run(there, tmp_path / "back", "hf")), tensors)


def test_alpha_is_never_guessed(tmp_path: Path) -> None:
    path = write_ckpt(tmp_path / "run/a.ckpt", mindformers_tensors())
    fault = problem("convert.no_alpha", path)
    assert "four times" in str(fault)
    assert "--lora-alpha" in str(fault)
    assert problem("convert.no_alpha", path, "mindspore-safetensors")
    # mindformers' converter of 2.5 leaves PEFT's config beside the checkpoint
    (path.parent / "adapter_config.json").write_text(json.dumps({"r": 4, "lora_alpha": 16}))
    job = open_job(path, "hf")
    assert isinstance(job, AdapterConversion)
    assert (job.rank, job.alpha) == (4, 16)
    problem("convert.other_alpha", path, alpha=8.0)
    (path.parent / "adapter_config.json").write_text(json.dumps({"r": 8, "lora_alpha": 16}))  # of another one
    problem("convert.no_alpha", path)


def test_alpha_that_contradicts_peft(peft: Path) -> None:
    values = problem("convert.other_alpha", peft, "mindspore", alpha=4.0).values
    assert values == {"given": "4", "known": f"{peft_config()['lora_alpha']:g}"}


def test_rslora_becomes_the_alpha_of_the_same_scale(tmp_path: Path, peft: Path) -> None:
    (peft / "adapter_config.json").write_text(json.dumps(peft_config(use_rslora=True)))
    there = run(peft, tmp_path / "there", "mindspore")
    assert json.loads((there / "adapter_config.json").read_text())["lora_alpha"] == 4  # 2 / sqrt(4) x 4
    back = run(there, tmp_path / "back", "hf")
    assert {pair.scale for pair in read_adapter(back).pairs.values()} == {1.0}


def test_what_mindformers_cannot_express(tmp_path: Path, peft: Path) -> None:
    (peft / "adapter_config.json").write_text(json.dumps(peft_config(alpha_pattern={"w1": 8})))
    assert problem("convert.several_scales", peft, "mindspore").where == str(peft)
    (peft / "adapter_config.json").write_text(json.dumps(peft_config()))
    problem("convert.fused_adapter", peft, "mindspore", layout="mcore")
    fused = {"model.layers.0.attention.w_qkv.mindpet_delta_lora_a": np.ones((4, 64), "f4")}
    fused |= {"model.layers.0.attention.w_qkv.mindpet_delta_lora_b": np.ones((128, 4), "f4")}
    problem("convert.fused_adapter", write_ckpt(tmp_path / "f.ckpt", fused), alpha=1.0)


@pytest.mark.parametrize("fault", ["half", "ranks", "nan", "name", "twice"])
def test_tensors_out_of_order(tmp_path: Path, fault: str) -> None:
    tensors = mindformers_tensors()
    first = "transformer.layers.0.attention.wq.mindpet_delta_lora_a"
    if fault == "half":
        del tensors[first]
    if fault == "ranks":
        tensors[first] = tensors[first][:2]
        tensors[first[:-1] + "b"] = tensors[first[:-1] + "b"][:, :2]
    if fault == "nan":
        tensors[first][0, 0] = np.nan
    if fault == "name":
        tensors["transformer.layers.0.attention.wz.mindpet_delta_lora_a"] = tensors[first]
    if fault == "twice":
        tensors[first.replace("mindpet_delta_lora", "tk_delta_lora")] = tensors[first] + 1
    assert problem("convert.bad_adapter", write_ckpt(tmp_path / "a.ckpt", tensors), alpha=1.0)


def test_dtypes(tmp_path: Path, peft: Path) -> None:
    there = run(peft, tmp_path / "there", "mindspore", dtype="float16")
    old = peft_tensors(peft)["base_model.model.transformer.h.0.mlp.w1.lora_A.weight"]
    found = ckpt_io.open_file(there / "adapter_model.ckpt")
    assert np.array_equal(
        found["transformer.layers.0.feed_forward.w1.mindpet_delta_lora_a"][:], old.astype(np.float16)
    )


def test_dtypes_that_differ_in_one_fused_linear(tmp_path: Path) -> None:
    """Qwen1's c_attn has one A and one B for q, k and v; that these two differ is no fault."""
    tensors = mindformers_tensors()
    for name in tensors:
        tensors[name] = tensors[name].astype("f4" if name.endswith("_a") else "f2")
    there = run(write_ckpt(tmp_path / "a.ckpt", tensors), tmp_path / "there", "hf", alpha=1.0)
    kinds = {name[-13:-7]: array.dtype.name for name, array in peft_tensors(there).items()}
    assert kinds == {"lora_A": "float32", "lora_B": "float16"}
    first = "transformer.layers.1.attention.wk.mindpet_delta_lora_a"
    tensors[first] = tensors[first].astype("f2")
    source = write_ckpt(tmp_path / "b.ckpt", tensors)
    fault = problem("convert.mixed_dtypes", source, alpha=1.0)
    assert "model.layers.1.self_attn.k_proj.lora_A.weight: float16" in str(fault)
    run(source, tmp_path / "one", "hf", alpha=1.0, dtype="float32")


def test_values_beyond_a_dtype_are_told(tmp_path: Path, peft: Path) -> None:
    name = "base_model.model.transformer.h.0.mlp.w1.lora_A.weight"
    tensors = peft_tensors(peft)
    tensors[name][0, :2] = 1e5, -1e5
    save_file(tensors, peft / "adapter_model.safetensors")
    console = Console("normal", io.StringIO(), io.StringIO())
    figures = convert(open_job(peft, "hf", dtype="float16"), tmp_path / "out", console)
    assert figures["saturated"] == ["model.layers.0.mlp.up_proj.lora_A.weight"]
    assert "float16 holds at most 65504" in console.err.getvalue()  # type: ignore[attr-defined]
    assert peft_tensors(tmp_path / "out")[name][0, :2].tolist() == [65504, -65504]


def test_of_two_tensors_of_one_name_none_is_compared(tmp_path: Path) -> None:
    tensors = mindformers_tensors()
    first = "transformer.layers.0.attention.wq.mindpet_delta_lora_a"
    tensors[first.replace("mindpet_delta_lora", "tk_delta_lora")] = tensors[first] + 1
    found = open_found(write_ckpt(tmp_path / "a.ckpt", tensors))
    with pytest.raises(Problem, match=r"convert\.same_name"):
        comparable(found, None)


def test_a_checkpoint_of_lora_training_gives_the_model_the_adapter_and_the_merge(tmp_path: Path) -> None:
    """What transform_ckpt_lora.py does with --lora_scaling 0.25: W + (B A) x scale, from one file of both."""
    base = to_qwen1(tiny_model(tmp_path / "s", num_key_value_heads=4), tmp_path / "base")
    weights = qwen1_in_mindformers(load_file(base / "model.safetensors"))
    lora = mindformers_tensors()
    weights["transformer.wte.embedding_weight"] = random(384, 64, seed=7)  # freeze_exclude: trained along
    state = {"adam_m." + n: a for n, a in lora.items()}
    both = write_ckpt(tmp_path / "run/both.ckpt", {**weights, **lora, **state})
    assert "--part" in str(problem("convert.both", both))
    model = run(both, tmp_path / "model", "hf", part="model", config=base)
    adapter = run(both, tmp_path / "adapter", "hf", part="adapter", alpha=1.0)
    write_merge(open_merge(model, adapter), tmp_path / "merged")
    merged = qwen1_in_mindformers(load_file(tmp_path / "merged/model.safetensors"))
    assert merged.keys() == weights.keys()
    for name, old in weights.items():
        own = name.removesuffix(".weight") + ".mindpet_delta_lora"
        expected = old.astype(float)
        if f"{own}_a" in lora:
            expected = expected + lora[f"{own}_b"].astype(float) @ lora[f"{own}_a"].astype(float) * 0.25
            assert not np.array_equal(merged[name], old)
        assert np.abs(merged[name] - expected).max() < 1e-5, name


def test_what_the_broken_converter_left_of_an_adapter(tmp_path: Path) -> None:
    """r1.2 and r1.3 call them lora_A.weight, but for wq, wk, wv, which PEFT does not find on c_attn."""
    tensors = {}
    for name, array in mindformers_tensors().items():
        new = name.replace(".layers.", ".h.").replace("mindpet_delta_lora_a", "lora_A.weight")
        new = new.replace("mindpet_delta_lora_b", "lora_B.weight").replace("attention.wo", "attn.c_proj")
        new = new.replace("feed_forward.w1", "mlp.w1").replace("feed_forward.w3", "mlp.w2")
        tensors[new.replace("feed_forward.w2", "mlp.c_proj")] = array
    save_file(tensors, tmp_path / "half.safetensors")
    right = run(write_ckpt(tmp_path / "a.ckpt", mindformers_tensors()), tmp_path / "right", "hf", alpha=1.0)
    repaired = run(tmp_path / "half.safetensors", tmp_path / "out", "hf", alpha=1.0)
    assert same(peft_tensors(repaired), peft_tensors(right))
