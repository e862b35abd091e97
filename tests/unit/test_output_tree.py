"""The tree of mindformers' output folder: what each rank gets, what it is written for, and what stays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.qwen1 import qwen1_config
from tests.tiny import tiny_config, tiny_weights

from tengtune import files
from tengtune.backends.base import Shard
from tengtune.models.spec import from_config
from tengtune.train import checkpoints, output_tree
from tengtune.train.checkpoints import Checkpoint
from tengtune.train.loss_scale import LossScale
from tengtune.train.state import State
from tengtune.ui.problems import Problem
from tengtune.weights.ckpt_io import open_file
from tengtune.weights.record import Record, write_record

QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 16}


def test_qwen3_is_refused(tmp_path: Path) -> None:
    output_tree.refuse(from_config(tiny_config()), tmp_path)
    with pytest.raises(Problem) as caught:
        output_tree.refuse(from_config(tiny_config(**QWEN3)), tmp_path)
    assert caught.value.code == "train.tree_qwen3"


@pytest.mark.parametrize("wanted", [True, False])
def test_an_earlier_tree_goes_before_the_training(wanted: bool, tmp_path: Path) -> None:
    tree = tmp_path / "output"
    (tree / "strategy").mkdir(parents=True)
    write_record(tree, Record("mindformers"))
    output_tree.clear(tree, wanted)
    assert list(tmp_path.iterdir()) == []
    output_tree.clear(tree, wanted)


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_what_is_not_ours_stays(kind: str, tmp_path: Path) -> None:
    tree = tmp_path / "output"
    if kind == "folder":
        (tree / "checkpoint").mkdir(parents=True)
    elif kind == "file":
        tree.write_text("mine")
    else:
        tree.symlink_to(tmp_path / "nowhere")
    output_tree.clear(tree, wanted=False)
    with pytest.raises(Problem) as caught:
        output_tree.clear(tree, wanted=True)
    assert caught.value.code == "train.tree_taken"
    assert tree.is_symlink() or tree.exists()


SPEC = from_config(qwen1_config(tiny_config(num_hidden_layers=1)))
LINEAR = "model.layers.0.self_attn.qkv_proj"
"""Qwen1's c_attn, whose adapter q, k and v share."""
A = np.arange(3 * 64, dtype=np.float32).reshape(3, 64)
B = np.arange(3 * 64 * 3, dtype=np.float32).reshape(192, 3)
STORED = "transformer.layers.0.attention.{}.mindpet_delta_lora_{}"


def adapter_checkpoint(folder: Path) -> Checkpoint:
    """A checkpoint after step 5 of an adapter of c_attn, whose states are 2 and 3 times its values."""

    def shards() -> Iterator[Shard]:
        for factor, kind in enumerate(("param", "exp_avg", "exp_avg_sq"), 1):
            yield Shard(f"{LINEAR}.lora_A.weight", kind, A * factor)  # type: ignore[arg-type]
            yield Shard(f"{LINEAR}.lora_B.weight", kind, B * factor)  # type: ignore[arg-type]

    state = State(LossScale(enabled=True, value=512.0), step=5, applied=4)
    checkpoints.write(folder, shards, {"state": state.as_json()})
    return checkpoints.read(folder)


def test_three_ranks_of_a_qwen1_adapter(tmp_path: Path) -> None:
    """Axis 0 is cut where 3 divides it: 96 rows of w1, 3 of A, not 64 of B's parts. 2 steps make an epoch."""
    base = tiny_weights(SPEC)
    output_tree.write(tmp_path / "output", SPEC, base, adapter_checkpoint(tmp_path / "step_5"), 3, 2)
    for rank in range(3):
        file = tmp_path / f"output/checkpoint/rank_{rank}/qwen_rank_{rank}-3_1.ckpt"
        found = {name: rows[:] if rows.shape else rows for name, rows in open_file(file).items()}
        own = slice(32 * rank, 32 * rank + 32)
        up = base["model.layers.0.mlp.up_proj.weight"]
        assert np.array_equal(found["transformer.layers.0.feed_forward.w1.weight"], up[own])
        for number, part in enumerate(("wq", "wk", "wv")):
            for before, factor in (("", 1), ("adam_m.", 2), ("adam_v.", 3)):
                a, b = (found[before + STORED.format(part, letter)] for letter in "ab")
                assert np.array_equal(a, factor * A[rank : rank + 1])
                assert np.array_equal(b, factor * B[64 * number : 64 * number + 64])
        assert [found[name].tolist() for name in ("loss_scale", "epoch_num", "step_num", "global_step")] == [
            512.0, 3, 5, [4],
        ]  # fmt: skip


def test_a_disk_without_room_keeps_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = adapter_checkpoint(tmp_path / "step_5")
    monkeypatch.setattr(files, "free_bytes", lambda path: 1000)
    with pytest.raises(Problem) as caught:
        output_tree.write(tmp_path / "output", SPEC, tiny_weights(SPEC), checkpoint, 2, 2)
    assert caught.value.code == "train.tree_no_space"
    assert [path.name for path in tmp_path.iterdir()] == ["step_5"]
