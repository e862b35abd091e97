"""torch.distributed.checkpoint and DeepSpeed folders become Hugging Face ones; nothing in them is run."""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from tests.deepspeed_lab import write_zero
from tests.qwen1 import to_qwen1
from tests.tiny import tiny_model
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex

from tengtune.steps.convert import convert, open_job
from tengtune.ui.console import Console
from tengtune.ui.problems import Problem
from tengtune.weights.distributed import Chunks, open_checkpoint

Weights = dict[str, torch.Tensor]


def run(source: Path, out: Path, **options: Any) -> Weights:
    convert(open_job(source, "hf", trust=True, **options), out, Console("quiet"))
    return load_file(out / "model.safetensors")


def problem(code: str, source: Path, **options: Any) -> Problem:
    with pytest.raises(Problem) as caught:
        open_job(source, "hf", **{"trust": True, **options})
    assert caught.value.code == code
    assert caught.value.texts()
    return caught.value


def same(one: Weights, other: Weights) -> bool:
    return one.keys() == other.keys() and all(
        t.dtype == other[n].dtype and torch.equal(t, other[n]) for n, t in one.items()
    )


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_model(tmp_path / "model", vocab_size=37, intermediate_size=50)


@pytest.fixture
def weights(model: Path) -> Weights:
    return load_file(model / "model.safetensors")


# torch.distributed.checkpoint


def save(folder: Path, state: dict[str, Any]) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it saves one process's
        dcp.save(state, checkpoint_id=folder, no_dist=True)
    return folder


@pytest.mark.parametrize("prefix", ["", "model.", "model.module."])
def test_a_checkpoint_of_one_process(tmp_path: Path, model: Path, weights: Weights, prefix: str) -> None:
    """With the optimizer's states, a step counter and what wraps the model, none of which is the model's."""
    named = {prefix + n.replace("layers.0.", "layers.0._orig_mod."): t for n, t in weights.items()}
    moments = {f"optimizer.state.{n}.exp_avg": torch.ones_like(t) for n, t in weights.items()}
    folder = save(tmp_path / "dcp", {**named, **moments, "step": 7, "lr": torch.tensor(0.1)})
    assert same(run(folder, tmp_path / "out", config=model), weights)


def test_bfloat16_and_qwen1(tmp_path: Path) -> None:
    base = to_qwen1(tiny_model(tmp_path / "s", num_key_value_heads=4, dtype="bfloat16"), tmp_path / "q")
    weights = load_file(base / "model.safetensors")
    assert next(iter(weights.values())).dtype == torch.bfloat16
    assert same(run(save(tmp_path / "dcp", dict(weights)), tmp_path / "out", config=base), weights)


SHARDED = """
import os, sys
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
state = {}
for number, (name, tensor) in enumerate(load_file(sys.argv[1]).items()):
    kind = Replicate() if tensor.ndim == 1 and number % 2 else Shard(number % tensor.ndim)
    state[name] = distribute_tensor(tensor, mesh, [kind])
dcp.save({"model": state}, checkpoint_id=sys.argv[2])
dist.barrier()
os._exit(0)  # gloo may abort while it is taken down, when the other process has gone already
"""


@pytest.mark.slow
def test_a_checkpoint_of_two_processes(tmp_path: Path, model: Path, weights: Weights) -> None:
    """Tensors cut along either axis, unevenly where they do not divide, and whole ones."""
    (tmp_path / "save.py").write_text(SHARDED)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    arguments = [str(tmp_path / "save.py"), str(model / "model.safetensors"), str(tmp_path / "dcp")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, check=False, env=environment
    )
    assert (tmp_path / "dcp/.metadata").exists(), done.stderr[-2000:]  # written last
    assert len(list((tmp_path / "dcp").glob("*.distcp"))) == 2
    assert same(run(tmp_path / "dcp", tmp_path / "out", config=model), weights)


def test_a_tensor_over_parts_in_both_axes() -> None:
    whole = np.arange(35).reshape(5, 7)
    cuts = [
        ((0, 0), whole[:2, :3]),
        ((0, 3), whole[:2, 3:]),
        ((2, 0), whole[2:, :3]),
        ((2, 3), whole[2:, 3:]),
    ]
    chunks = Chunks((5, 7), cuts)
    for start in range(6):
        for stop in range(6):
            assert np.array_equal(chunks[start:stop], whole[start:stop])


def test_a_part_that_is_missing(tmp_path: Path, model: Path, weights: Weights) -> None:
    folder = save(tmp_path / "dcp", dict(weights))
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    entry = metadata.state_dict_metadata["model.norm.weight"]
    metadata.state_dict_metadata["model.norm.weight"].size = torch.Size([entry.size[0] + 1])
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    assert "model.norm.weight" in str(problem("convert.dist_holes", folder, config=model))
    data = next(folder.glob("*.distcp"))
    data.write_bytes(data.read_bytes()[:-3000])
    problem("weights.torch_cut", folder, config=model)
    data.unlink()
    problem("io.not_found", folder, config=model)


def test_a_path_that_leads_out_of_the_folder(tmp_path: Path, model: Path, weights: Weights) -> None:
    folder = save(tmp_path / "dcp", dict(weights))
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    for info in metadata.storage_data.values():
        info.relative_path = "../" + info.relative_path
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    shutil.copy(next(folder.glob("*.distcp")), tmp_path)
    assert "../" in str(problem("convert.bad_pickle", folder, config=model).values)


# DeepSpeed


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_zero_checkpoints(tmp_path: Path, model: Path, weights: Weights, stage: int, ranks: int) -> None:
    """Shapes that no number of ranks divides; the folder that names the newest, and that one itself."""
    folder = write_zero(tmp_path / "ds", weights, stage, ranks)
    assert importlib.util.find_spec("deepspeed") is None
    assert same(run(folder, tmp_path / "out", config=model), weights)
    assert same(run(folder / "global_step7", tmp_path / "step", config=model), weights)


@pytest.mark.parametrize("stage", [2, 3])
def test_frozen_parameters_keep_their_dtype(
    tmp_path: Path, model: Path, weights: Weights, stage: int
) -> None:
    frozen = {"model.embed_tokens.weight", "model.layers.0.self_attn.k_proj.bias"}
    expected = {n: t.bfloat16() if n in frozen else t for n, t in weights.items()}
    folder = write_zero(tmp_path / "ds", expected, stage, 2, frozen=frozen)
    assert same(run(folder, tmp_path / "out", config=model), expected)


def test_groups_saved_without_their_padding(tmp_path: Path, model: Path, weights: Weights) -> None:
    folder = write_zero(tmp_path / "ds", weights, 2, 3, padded=False)
    assert same(run(folder, tmp_path / "out", config=model), weights)


def test_a_shared_head(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model", tie=True)
    weights = load_file(model / "model.safetensors")
    shared = {"lm_head.weight": "model.embed_tokens.weight"}
    folder = write_zero(tmp_path / "ds", weights, 3, 2, shared=shared)
    assert same(run(folder, tmp_path / "out", config=model), weights)


def test_the_config_of_the_trainers_folder_around_it_is_found(
    tmp_path: Path, model: Path, weights: Weights
) -> None:
    write_zero(tmp_path / "checkpoint-7", weights, 2, 2)
    shutil.copy(model / "config.json", tmp_path / "checkpoint-7")
    assert same(run(tmp_path / "checkpoint-7/global_step7", tmp_path / "out"), weights)
    job = open_job(tmp_path / "checkpoint-7", "mindspore", trust=True, dtype="bfloat16")
    assert job.nbytes == sum(2 * t.numel() for t in weights.values())


def test_what_is_refused(tmp_path: Path, model: Path, weights: Weights) -> None:
    folder = write_zero(tmp_path / "ds", weights, 2, 3)
    place = folder / "global_step7"
    assert "--trust" in str(problem("convert.needs_trust", folder, trust=False))
    last = place / "bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt"
    last.rename(place / "bf16_zero_pp_rank_2_mp_rank_01_optim_states.pt")
    problem("convert.zero_parallel", folder)
    (place / "bf16_zero_pp_rank_2_mp_rank_01_optim_states.pt").unlink()
    assert "3" in str(problem("convert.zero_ranks", folder))
    other = write_zero(tmp_path / "other", {n: t[:1] for n, t in weights.items()}, 2, 3)
    shutil.copy(other / "global_step7" / last.name, place)
    problem("convert.zero_sizes", folder)
    last.write_bytes(last.read_bytes()[:1000])
    problem("convert.bad_pickle", folder)


class Hostile:
    """What a pickle can do to its reader."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.mark}",)


@pytest.mark.parametrize("kind", ["dcp", "deepspeed"])
def test_a_hostile_pickle_runs_nothing_even_when_trusted(
    tmp_path: Path, model: Path, weights: Weights, kind: str
) -> None:
    mark = tmp_path / "run"
    if kind == "dcp":
        folder = save(tmp_path / "dcp", dict(weights))
        metadata = pickle.loads((folder / ".metadata").read_bytes())
        metadata.planner_data = Hostile(mark)
        (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    else:
        folder = write_zero(tmp_path / "ds", weights, 2, 1)
        path = next((folder / "global_step7").glob("*_model_states.pt"))
        state = torch.load(path, weights_only=False)
        torch.save({**state, "client_state": Hostile(mark)}, path)
    assert same(run(folder, tmp_path / "out", config=model), weights)
    assert not mark.exists()
    eval_bytes = b"cbuiltins\neval\n(S'open(\"" + str(mark).encode() + b'","w")\'\ntR.'
    (folder / ".metadata").write_bytes(eval_bytes)
    if kind == "dcp":
        problem("convert.bad_pickle", folder, config=model)
    assert not mark.exists()


def test_without_torch_the_reason_is_said(
    tmp_path: Path, model: Path, weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save(tmp_path / "dcp", dict(weights))
    monkeypatch.setitem(sys.modules, "torch", None)
    assert problem("convert.no_torch", folder, config=model).exit_code == 3


PARTS = [
    ("there twice", [((0, 0), (2, 4)), ((0, 0), (2, 4))], False),
    ("overlapping", [((0, 0), (3, 4)), ((1, 0), (1, 4))], False),
    (
        "overlapping in a corner",
        [((0, 0), (3, 3)), ((2, 2), (2, 2)), ((3, 0), (1, 2)), ((0, 3), (1, 1))],
        False,
    ),
    ("a part too many", [((0, 0), (2, 4)), ((2, 0), (2, 4)), ((0, 0), (1, 4))], False),
    ("a part too few", [((0, 0), (2, 4))], False),
    (
        "both axes and an empty one",
        [((0, 0), (4, 3)), ((0, 3), (2, 1)), ((2, 3), (2, 1)), ((2, 0), (0, 4))],
        True,
    ),
]


@pytest.mark.parametrize(("parts", "whole"), [p[1:] for p in PARTS], ids=[p[0] for p in PARTS])
def test_parts_must_fill_the_tensor(tmp_path: Path, parts: list[Any], whole: bool) -> None:
    """Where none reaches, unused memory would be written."""
    name, values = "model.norm.weight", torch.arange(16.0).reshape(4, 4)
    cut = {
        f"part.{number}": values[row : row + height, column : column + width].clone()
        for number, ((row, column), (height, width)) in enumerate(parts)
    }
    folder = save(tmp_path / "dcp", {name: values, **cut})
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    places = {index.fqn: info for index, info in metadata.storage_data.items()}
    entry = metadata.state_dict_metadata[name]
    entry.chunks = [ChunkStorageMetadata(torch.Size(o), torch.Size(size)) for o, size in parts]
    metadata.state_dict_metadata = {name: entry}
    metadata.storage_data = {
        MetadataIndex(name, torch.Size(offset)): places[f"part.{number}"]
        for number, (offset, _) in enumerate(parts)
    }
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    if whole:
        _, tensors = open_checkpoint(folder)
        assert np.array_equal(tensors[name][:], values.numpy())
        return
    with pytest.raises(Problem, match=r"convert\.dist_holes"):
        open_checkpoint(folder)


def test_a_name_with_half_a_character(tmp_path: Path, model: Path, weights: Weights) -> None:
    folder = save(tmp_path / "dcp", {**weights, "model.x": torch.ones(2)})
    metadata = (folder / ".metadata").read_bytes()
    changed = metadata.replace(b"model.x", b"mod\xed\xa0\x80x")
    assert changed != metadata
    (folder / ".metadata").write_bytes(changed)
    str(problem("convert.bad_pickle", folder, config=model)).encode()


def test_two_tensors_of_one_name(tmp_path: Path, model: Path, weights: Weights) -> None:
    """With and without what torch.compile puts into it."""
    again = {"model.layers.0._orig_mod.mlp.up_proj.weight": torch.zeros(50, 64)}
    folder = save(tmp_path / "dcp", {**weights, **again})
    assert "_orig_mod" in str(problem("convert.same_name", folder, config=model))


def test_names_and_sizes_are_shown(tmp_path: Path, weights: Weights) -> None:
    from click.testing import CliRunner

    from tengtune.cli.weights import command

    folder = save(tmp_path / "dcp", {"model": dict(weights)})
    done = CliRunner().invoke(command, ["show", str(folder), "--json", "--trust"], standalone_mode=False)
    told = json.loads(done.stdout.splitlines()[-1])
    assert (told["format"], told["layout"], told["family"]) == ("torch-distributed", "hf", "qwen2")
    assert told["parameters"] == sum(t.numel() for t in weights.values())
