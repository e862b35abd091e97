"""The tree of mindformers' output folder: what it is written for, and what is not removed for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.tiny import tiny_config

from tengtune.models.spec import from_config
from tengtune.train import output_tree
from tengtune.ui.problems import Problem
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
    assert caught.value.code == "io.name_taken"
    assert tree.is_symlink() or tree.exists()
