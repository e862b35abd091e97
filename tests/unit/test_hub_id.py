"""Hub ids, and the choice of files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tengtune.hub.base import RemoteFile
from tengtune.hub.choose import choose
from tengtune.hub.record import read_record
from tengtune.models import hub_id
from tengtune.ui.problems import Problem


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", True),
        ("qwen/Qwen-1_8B", True),
        ("Qwen2.5-7B", False),
        ("models/Qwen2.5-7B", False),
        ("./Qwen/Qwen2.5-7B", False),
        ("/data/Qwen", False),
        ("~/Qwen", False),
        ("../Qwen", False),
        ("a/b/c", False),
        ("a/b..c", False),
        ("通义/Qwen", False),
        ("Qwen/Qwen2.5-7B\n", False),
        ("https://modelscope.cn/models/Qwen", False),
    ],
)
def test_an_id_is_told_from_a_path(text: str, expected: bool) -> None:
    assert hub_id.is_hub_id(text) is expected


def test_a_folder_beside_the_run_file_wins(tmp_path: Path) -> None:
    assert hub_id.hub_id_in("Qwen/Qwen2.5-7B", tmp_path) == "Qwen/Qwen2.5-7B"
    (tmp_path / "Qwen").mkdir()
    assert hub_id.hub_id_in("Qwen/Qwen2.5-7B", tmp_path) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Qwen/Qwen2.5-7B-Instuct", "Qwen/Qwen2.5-7B-Instruct"),
        ("Qwen/Qwen-14B-chat", "Qwen/Qwen-14B-Chat"),
        ("qwen/qwen3-06B", "Qwen/Qwen3-0.6B"),
        ("Qwne/Qwen1.5-4B", "Qwen/Qwen1.5-4B"),
    ],
)
def test_a_typo_finds_the_model(text: str, expected: str) -> None:
    assert hub_id.nearest(text)[0] == expected


def test_the_owner_may_be_left_out_of_a_known_model() -> None:
    assert hub_id.full_id("qwen2.5-7b-instruct") == "Qwen/Qwen2.5-7B-Instruct"
    assert hub_id.full_id("qwen14b") == hub_id.full_id("Qwen/Qwen_14B") == "Qwen/Qwen-14B"
    assert hub_id.full_id("Mine-7B") == "Mine-7B"
    assert len(hub_id.known_ids()) == 2 * 29 + len(hub_id.SAME_SHAPE)  # the table's models, base and chat
    assert hub_id.full_id("qwen2.5-coder-7b-instruct") == "Qwen/Qwen2.5-Coder-7B-Instruct"
    assert hub_id.full_id("qwq32b") == "Qwen/QwQ-32B"


STEMS = ("a", "model-00001-of-00002", "onnx/model", "a/b/c", "tokenizer", "训练")
ENDINGS = (
    ".safetensors",
    ".bin",
    ".pt",
    ".gguf",
    ".onnx",
    ".json",
    ".bin.index.json",
    ".py",
    ".partial",
    ".PNG",
)
NAMES: SearchStrategy[str] = st.builds(str.__add__, st.sampled_from(STEMS), st.sampled_from(ENDINGS))


@given(st.lists(NAMES, unique=True), st.booleans())
def test_every_file_is_chosen_or_left_out_with_a_reason(names: list[str], safe: bool) -> None:
    names = [*names, "config.json", "model.safetensors" if safe else "pytorch_model.bin"]
    names = list(dict.fromkeys(names))
    choice = choose([RemoteFile(name, len(name)) for name in names], "")
    chosen, left = [f.name for f in choice.needed], [f.name for f, _ in choice.skipped]
    assert sorted(chosen + left) == sorted(names)
    assert chosen[-1] == "config.json"
    assert not any("/" in name or name.endswith((".partial", ".gguf", ".onnx")) for name in chosen)
    assert all(reason for _, reason in choice.skipped)
    if any(name.endswith(".safetensors") for name in chosen):
        assert not any(name.endswith((".bin", ".pt", ".pth")) for name in chosen)


@given(st.text(max_size=12).filter(lambda name: "/" in name or "." in name or not name.isprintable()))
def test_no_name_leads_out_of_the_folder(name: str) -> None:
    listed = [RemoteFile(n, 1) for n in (name, "config.json", "model.safetensors")]
    try:
        chosen = [file.name for file in choose(listed, "").needed]
    except Problem as fault:
        assert fault.code == "download.unsafe_name"
    else:
        assert all(Path("/m", each).parent == Path("/m") and each not in (".", "..") for each in chosen)


JSON: SearchStrategy[object] = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


KEYS = ("model", "source", "endpoint", "revision", "pin", "whole", "checked", "files", "x")


@given(st.dictionaries(st.sampled_from(KEYS), JSON))
def test_a_record_is_whole_or_none(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, object]
) -> None:
    folder = tmp_path_factory.getbasetemp()
    (folder / "download.json").write_text(json.dumps(values), encoding="utf-8")
    record = read_record(folder)
    if record is not None:
        assert {"model", "source", "endpoint", "revision", "files"} <= values.keys()
        assert isinstance(record.bytes, int)
