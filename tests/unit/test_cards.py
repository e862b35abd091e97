"""Ascend cards: counted without a framework, used where the run file says nothing, and HCCL's settings."""

from __future__ import annotations

import importlib.machinery
import importlib.util
from pathlib import Path

import pytest

from tengtune import cards, recipe
from tengtune.cluster import hccl
from tengtune.cluster.launch import plan
from tengtune.ui.console import Console

RUN = "model: m\ndata: d.json\ntrain: {global_batch: 12}\n"


@pytest.fixture
def four_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cards, "count", lambda backend: 4)


@pytest.fixture
def torch_npu(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.machinery.ModuleSpec("torch_npu", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found)


def nodes(folder: Path) -> Path:
    for name in ("davinci0", "davinci1", "davinci6", "davinci_manager", "hisi_hdc", "null"):
        (folder / name).touch()
    return folder


@pytest.mark.usefixtures("torch_npu")
@pytest.mark.parametrize(("visible", "count"), [(None, 3), ("1,6", 2), ("0, 5", 1), ("", 0)])
def test_cards_are_the_drivers_nodes_as_far_as_they_are_visible(
    visible: str | None, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(cards.VISIBLE, raising=False)
    if visible is not None:
        monkeypatch.setenv(cards.VISIBLE, visible)
    assert cards.count("torch", nodes(tmp_path)) == count


def test_no_card_is_counted_that_torch_cannot_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert cards.count("auto", nodes(tmp_path)) == 0


@pytest.mark.parametrize(
    ("installed", "counted"),
    [
        ({"torch"}, {"auto": 0, "torch": 0, "mindspore": 0}),
        ({"torch", "torch_npu"}, {"auto": 3, "torch": 3, "mindspore": 0}),
        ({"mindspore"}, {"auto": 3, "torch": 0, "mindspore": 3}),
        ({"torch", "mindspore"}, {"auto": 0, "torch": 0, "mindspore": 3}),
    ],
)
def test_cards_are_counted_for_the_back_end_that_will_train(
    installed: set[str], counted: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(cards.VISIBLE, raising=False)
    found = importlib.machinery.ModuleSpec("any", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found if name in installed else None)
    assert {name: cards.count(name, nodes(tmp_path)) for name in counted} == counted


def ranks(folder: Path, *overrides: str, text: str = RUN) -> int:
    (folder / "run.yaml").write_text(text, "utf-8")
    return recipe.load(folder / "run.yaml", overrides).parallel.ranks


@pytest.mark.usefixtures("four_cards")
def test_a_rank_for_each_card_that_shares_the_batch_evenly(tmp_path: Path) -> None:
    assert ranks(tmp_path) == 4
    assert ranks(tmp_path, "train.global_batch=6") == 3
    assert ranks(tmp_path, "train.global_batch=7") == 1
    assert ranks(tmp_path, "train.global_batch=8", "train.micro_batch=4") == 2
    assert ranks(tmp_path, "parallel.ranks=2") == 2
    assert ranks(tmp_path, "backend=mindspore") == 4


def test_one_rank_without_cards(tmp_path: Path) -> None:
    assert ranks(tmp_path) == 1


NAMES = ("HCCL_CONNECT_TIMEOUT", "HCCL_EXEC_TIMEOUT", "HCCL_IF_BASE_PORT")


@pytest.mark.usefixtures("four_cards")
def test_ranks_on_cards_get_hccls_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HCCL_EXEC_TIMEOUT", "7200")  # the user's word stands
    (tmp_path / "run.yaml").write_text(RUN, "utf-8")
    starts = plan(recipe.load(tmp_path / "run.yaml"), Console("quiet"), False)
    assert [start.environment["LOCAL_RANK"] for start in starts] == ["0", "1", "2", "3"]
    for start in starts:
        assert start.environment["HCCL_CONNECT_TIMEOUT"] == "1200"
        assert start.environment["HCCL_EXEC_TIMEOUT"] == "7200"
        assert int(start.environment["HCCL_IF_BASE_PORT"]) >= 60000


def test_a_cpu_gets_none_of_them(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(RUN, "utf-8")
    (start,) = plan(recipe.load(tmp_path / "run.yaml"), Console("quiet"), False)
    assert not [name for name in start.environment if name.startswith("HCCL")]


@pytest.mark.parametrize(
    ("stall", "patience"),
    # 910 and A2 take 68 to 17340 seconds
    [(60.0, "1836"), (1800.0, "1920"), (7200.0, "7320"), (86400.0, "17340"), (None, "17340")],
)
def test_hccl_is_more_patient_than_the_watchdog(
    stall: float | None, patience: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    found = hccl.variables(stall, lambda port: True)
    assert found == dict(zip(NAMES, ("1200", patience, "60000"), strict=True))


def test_a_second_job_takes_the_next_free_ports() -> None:
    assert hccl.variables(None, lambda port: port != 60031)["HCCL_IF_BASE_PORT"] == "60032"
    assert hccl.variables(None, lambda port: False)["HCCL_IF_BASE_PORT"] == "60000"
