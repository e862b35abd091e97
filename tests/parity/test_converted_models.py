"""Converted models compute what their source computes: the forward pass as mindformers' code makes it, from
the files we wrote, against transformers and a plain Qwen1 on the source; and MindSpore itself loads them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from tests.examples import script
from tests.mindformers_lab import MCORE, logits
from tests.mindspore_files import checkpoint_values
from tests.qwen1 import load_qwen1, qwen1_weights, to_qwen1
from tests.shared import shared_path
from tests.tiny import tiny_model
from transformers import AutoModelForCausalLM

from tengtune.steps.convert import convert, open_job
from tengtune.ui.console import Console
from tengtune.weights import ckpt_io

Weights = dict[str, np.ndarray]
IDS = [1, 7, 300, 42, 42, 5, 260, 11, 3, 90, 12, 200]
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 32}


def run(source: Path, out: Path, to: str, **options: Any) -> Path:
    convert(open_job(source, to, **options), out, Console("quiet"))
    return out


def read_ckpt(path: Path) -> Weights:
    """A .ckpt, by MindSpore's protobuf classes."""
    return {
        tag: np.frombuffer(content, ckpt_io.TYPES[kind]).reshape(dims)
        for tag, kind, dims, content in checkpoint_values(path.read_bytes())
    }


def source_logits(folder: Path) -> torch.Tensor:
    """What transformers, or for Qwen1 the plain module, computes from a Hugging Face folder."""
    ids = torch.tensor([IDS])
    with torch.no_grad():
        if "QWenLMHeadModel" in (folder / "config.json").read_text():
            found: torch.Tensor = load_qwen1(folder)(ids)[0]
        else:
            found = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(ids).logits[0]
    return found


def shape_of(folder: Path) -> dict[str, Any]:
    config = json.loads((folder / "config.json").read_text())
    if config.get("model_type") != "qwen":
        return dict(config)
    return {
        **config,
        "num_key_value_heads": config["num_attention_heads"],
        "rms_norm_eps": config["layer_norm_epsilon"],
        "rope_theta": config["rotary_emb_base"],
    }


def check(
    source: Path, place: Path, layouts: list[str], tolerance: float = 2e-5, large: bool = False
) -> None:
    """Every layout's files give the source's logits; and the folder converted back has its bits, which for a
    large model is all that is looked at."""
    expected = source_logits(source)
    for layout in layouts:
        there = run(source, place / layout, "mindspore", layout=layout)
        found = logits(read_ckpt(there / "model.ckpt"), layout, shape_of(source), IDS)
        assert (found - expected).abs().max() < tolerance * max(1, expected.abs().max()), layout
        assert found.argmax(-1).tolist() == expected.argmax(-1).tolist()
        back = run(there, place / f"{layout}-back", "hf")
        old, new = load_file(source / "model.safetensors"), load_file(back / "model.safetensors")
        assert old.keys() == new.keys()
        assert all(array.tobytes() == new[name].tobytes() for name, array in old.items())
        assert large or torch.equal(source_logits(back), expected)
        shutil.rmtree(there)
        shutil.rmtree(back)


FAMILIES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "Qwen1.5": ({"num_key_value_heads": 4}, ["mindformers", "qkv-concat", *MCORE]),
    "Qwen2.5": ({"rope_theta": 1e6}, ["mindformers", "qkv-concat", *MCORE]),
    "Qwen2.5, tied": ({"tie": True}, ["mindformers", "mcore"]),
    "Qwen3": (QWEN3, list(MCORE)),
    "Qwen3, tied": ({**QWEN3, "tie": True}, ["mcore"]),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_in_each_layout(tmp_path: Path, family: str) -> None:
    shape, layouts = FAMILIES[family]
    check(tiny_model(tmp_path / "model", **shape), tmp_path, layouts)


def test_qwen1(tmp_path: Path) -> None:
    source = tiny_model(tmp_path / "shape", num_key_value_heads=4)
    check(to_qwen1(source, tmp_path / "model"), tmp_path, ["mindformers"])


def test_a_layout_read_wrongly_gives_other_logits(tmp_path: Path) -> None:
    """The check sees what it is there for: one layout's files, taken for another's of the same names."""
    source = tiny_model(tmp_path / "model")
    expected = source_logits(source)
    for one in MCORE:
        stored = read_ckpt(run(source, tmp_path / one, "mindspore", layout=one) / "model.ckpt")
        for other in MCORE:
            gap = (logits(stored, other, shape_of(source), IDS) - expected).abs().max()
            assert (gap < 1e-4) == (one == other), (one, other)


def test_stories260k(tmp_path: Path) -> None:
    """A real model, in Qwen2's layout and in Qwen1's, and what became of Qwen1's in mindformers' names."""
    with tarfile.open(shared_path("models/stories260K-qwen2.tar.xz")) as archive:
        archive.extractall(tmp_path / "stories", filter="data")
    folder = next(path.parent for path in (tmp_path / "stories").rglob("config.json"))
    check(folder, tmp_path / "a", ["mindformers", "qkv-concat", "mcore"], 1e-4)
    qwen1 = to_qwen1(folder, tmp_path / "qwen1")
    check(qwen1, tmp_path / "b", ["mindformers"], 1e-4)
    assert (source_logits(qwen1) - source_logits(folder)).abs().max() < 1e-3


@pytest.mark.slow
def test_smollm2(tmp_path: Path) -> None:
    """The demo's model, 135M parameters, as Qwen2 and as Qwen1."""
    folder = script("smollm2").FOLDER
    assert (folder / "model.safetensors").exists(), "run `make fetch` (python examples/smollm2.py)"
    check(folder, tmp_path / "a", ["mindformers"], 1e-4, large=True)
    check(to_qwen1(folder, tmp_path / "qwen1"), tmp_path / "b", ["mindformers"], 1e-4, large=True)


LOADER = """
import json, os, sys
os.environ["GLOG_v"] = "3"
import mindspore as ms
result = {}
for path in sys.argv[1:]:
    kind = "ckpt" if path.endswith(".ckpt") else "safetensors"
    tensors = ms.load_checkpoint(path, format=kind)
    result[path] = {n: [str(t.dtype), list(t.shape), t.data.get_bytes().hex()] for n, t in tensors.items()}
print(json.dumps(result))
"""


@pytest.mark.slow
def test_mindspore_loads_what_we_convert(tmp_path: Path) -> None:
    """Every dtype, .ckpt and safetensors; one process loads them all."""
    source = to_qwen1(tiny_model(tmp_path / "s", num_key_value_heads=4), tmp_path / "qwen1")
    dtypes = {"Float32": np.float32, "Float16": np.float16}
    files = []
    for kind in dtypes:
        for to in ("mindspore", "mindspore-safetensors"):
            files.append(run(source, tmp_path / f"{kind}-{to}", to, dtype=kind.lower()))
    brain = run(source, tmp_path / "brain", "mindspore", dtype="bfloat16")
    paths = [next(folder.glob("model.*")) for folder in [*files, brain]]
    done = subprocess.run(
        [sys.executable, "-c", LOADER, *map(str, paths)],
        capture_output=True,
        text=True,
        check=False,
        env=dict(os.environ),
    )
    assert done.returncode == 0, done.stderr[-2000:]
    loaded = json.loads(done.stdout.splitlines()[-1])
    shape = json.loads((tmp_path / "s/config.json").read_text())
    whole = qwen1_weights(shape, load_file(tmp_path / "s/model.safetensors"))["transformer.h.1.mlp.w2.weight"]
    name = "transformer.layers.1.feed_forward.w3.weight"
    for path, (kind, dtype) in zip(paths[:-1:2], dtypes.items(), strict=True):
        assert loaded[str(path)][name] == [kind, [96, 64], whole.astype(dtype).tobytes().hex()]
    for ckpt, safetensors in zip(paths[:-1:2], paths[1:-1:2], strict=True):
        assert loaded[str(ckpt)] == loaded[str(safetensors)]
        assert len(loaded[str(ckpt)]) == 27
    bits = torch.from_numpy(whole).bfloat16().view(torch.int16).numpy().tobytes().hex()
    assert loaded[str(paths[-1])][name] == ["BFloat16", [96, 64], bits]
