"""The checkpoint format: any split over ranks reads back whole, and whatever happened to it shows."""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from tests.fit_lab import SAME, console

from tengtune import files
from tengtune.backends.base import Shard
from tengtune.train import checkpoints, resume
from tengtune.train.checkpoints import LAYOUT, Shelf
from tengtune.train.loss_scale import LossScale
from tengtune.train.saver import BACKGROUND_BYTES, Saver
from tengtune.train.state import State
from tengtune.ui.problems import Problem
from tengtune.weights.safetensors_io import open_file, write_folder
from tengtune.weights.stream import stream

RANK_0 = "rank_00000-of-00001.safetensors"


def tensors(seed: int = 0) -> list[Shard]:
    random = np.random.default_rng(seed)
    return [
        Shard(f"layer.{n}.weight", kind, random.standard_normal((3, 4 + n)).astype(np.float32))  # type: ignore[arg-type]
        for kind in ("param", "exp_avg", "exp_avg_sq")
        for n in range(2)
    ]


def state(step: int = 7, best: int | None = None) -> State:
    result = State(LossScale(enabled=True, value=512.0, good_steps=3), step=step, applied=step - 1)
    result.first_loss, result.health.recent, result.best.step = 0.1 + 0.2, [1 / 3, 2.5], best
    return result


def write(folder: Path, step: int = 7, same: dict[str, Any] | None = None) -> Path:
    about = {"step": step, "same": SAME if same is None else same, "state": state(step).as_json()}
    checkpoints.write(folder / f"step_{step}", lambda: iter(tensors()), about)
    return folder / f"step_{step}"


def test_what_was_written_is_read(tmp_path: Path) -> None:
    found = checkpoints.read(write(tmp_path))
    assert found.state == state()
    assert found.world == 1
    for ours, theirs in zip(found.shards(), tensors(), strict=True):
        assert (ours.name, ours.kind, ours.shape, ours.offset) == (
            theirs.name, theirs.kind, theirs.array.shape, 0
        )  # fmt: skip
        assert ours.array.tobytes() == theirs.array.tobytes()


def test_other_tools_can_read_it(tmp_path: Path) -> None:
    folder = write(tmp_path)
    assert sorted(f.name for f in folder.iterdir()) == [LAYOUT, RANK_0]
    held = load_file(folder / RANK_0)
    np.testing.assert_array_equal(held["exp_avg/layer.1.weight"], tensors()[3].array)
    layout = json.loads((folder / LAYOUT).read_text())
    assert layout["tensors"]["param/layer.1.weight"] == {
        "shape": [3, 5],
        "ranges": [{"rank": 0, "offset": 0, "size": 15}],
    }
    data = (folder / RANK_0).read_bytes()
    assert layout["files"] == [
        {"name": RANK_0, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    ]


@st.composite
def splits(draw: st.DrawFn) -> tuple[list[Shard], list[list[Shard]]]:
    """Tensors, and the same in flat ranges over some ranks."""
    world, whole, ranks = draw(st.integers(1, 5)), [], [[] for _ in range(5)]
    for n in range(draw(st.integers(1, 4))):
        shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
        size = math.prod(shape)
        values = np.random.default_rng(n).standard_normal(size).astype(np.float32)
        whole.append(Shard(f"t{n}", "param", values.reshape(shape)))
        cuts = sorted(draw(st.lists(st.integers(0, size), min_size=world - 1, max_size=world - 1)))
        for rank, (start, end) in enumerate(zip([0, *cuts], [*cuts, size], strict=True)):
            if end > start:
                ranks[rank].append(Shard(f"t{n}", "param", values[start:end], shape, start))
    return whole, ranks[:world]


@settings(max_examples=60, deadline=None)
@given(splits())
def test_any_split_over_ranks_reads_back_whole(
    tmp_path_factory: pytest.TempPathFactory, split: tuple[list[Shard], list[list[Shard]]]
) -> None:
    whole, ranks = split
    folder = tmp_path_factory.mktemp("split")
    written = [
        checkpoints.write_rank(folder, lambda r=r: iter(ranks[r]), r, len(ranks))  # type: ignore[misc]
        for r in range(len(ranks))
    ]
    layout = checkpoints.layout(written, {"state": state().as_json()})
    (folder / LAYOUT).write_text(json.dumps(layout))
    found = checkpoints.read(folder)
    assert found.world == len(ranks)
    read = {shard.name: shard for shard in found.shards()}
    assert {name: shard.array.shape for name, shard in read.items()} == {s.name: s.shape for s in whole}
    assert all(read[s.name].array.tobytes() == s.array.tobytes() for s in whole)
    for shard in whole:  # and a part of it by its rows
        rows, middle = found.rows(f"param/{shard.name}"), len(shard.array) // 2
        assert (rows.shape, rows.dtype) == (shard.array.shape, shard.array.dtype)
        assert np.array_equal(rows[:middle], shard.array[:middle])
        assert np.array_equal(rows[middle:], shard.array[middle:])


def reason(folder: Path) -> str:
    with pytest.raises(Problem) as caught:
        checkpoints.read(folder)
    assert (caught.value.code, caught.value.exit_code) == ("checkpoint.damaged", 2)
    return str(caught.value.values["reason"])


@pytest.mark.parametrize("name", [LAYOUT, RANK_0])
def test_a_missing_cut_or_longer_file_shows(tmp_path: Path, name: str) -> None:
    path = write(tmp_path) / name
    data = path.read_bytes()
    for damaged in (data[:-2], data[: len(data) // 2], b"", data + b"x"):
        path.write_bytes(damaged)
        assert reason(path.parent)
    path.unlink()
    assert "missing" in reason(path.parent)


def test_any_flipped_bit_in_the_tensors_shows(tmp_path: Path) -> None:
    path = write(tmp_path) / RANK_0
    data = path.read_bytes()
    for at in range(0, len(data), 37):
        path.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        assert "SHA-256" in reason(path.parent)


def places(node: object, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    for key in node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
        yield from places(node[key], (*at, key))  # type: ignore[index]


@pytest.mark.parametrize("value", [None, 3, "x", [], {}])
def test_any_changed_value_in_the_layout_shows(tmp_path: Path, value: object) -> None:
    path = write(tmp_path) / LAYOUT
    text = path.read_text()
    for *way, last in (at for at in places(json.loads(text)) if at):
        layout = node = json.loads(text)
        for key in way:
            node = node[key]
        if node[last] == value:
            continue
        node[last] = value
        path.write_text(json.dumps(layout))
        assert reason(path.parent)


def seal(layout: dict[str, Any]) -> str:
    """The layout as a writer with other ideas of its values would have written it."""
    about = {key: value for key, value in layout.items() if key != "check"}
    check = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
    return json.dumps({**about, "check": check})


@pytest.mark.parametrize("value", ["x", [], {}, True, 1.5])
def test_values_of_another_type_show_though_the_sum_is_right(tmp_path: Path, value: object) -> None:
    path = write(tmp_path) / LAYOUT
    text = path.read_text()
    tried = 0
    for *way, last in (at for at in places(json.loads(text)["state"]) if at):
        layout = json.loads(text)
        node = layout["state"]
        for key in way:
            node = node[key]
        if type(node[last]) is type(value) or (node[last] is None and value == 1.5):
            continue
        node[last] = value
        path.write_text(seal(layout))
        assert reason(path.parent), (way, last)
        tried += 1
    assert tried > 10
    for key in ("saved", "same", "state", "files", "tensors"):
        layout = {**json.loads(text), key: 5}
        path.write_text(seal(layout))
        assert reason(path.parent), key


def test_ranges_must_fill_the_tensor(tmp_path: Path) -> None:
    for first, second in (((0, 5), (6, 12)), ((0, 7), (6, 12)), ((0, 6), (6, 11))):
        folder = tmp_path / f"{first}{second}"
        folder.mkdir()
        flat = np.arange(12, dtype=np.float32)
        parts = [Shard("t", "param", flat[a:b], (3, 4), a) for a, b in (first, second)]
        ranks = [checkpoints.write_rank(folder, lambda p=p: iter([p]), r, 2) for r, p in enumerate(parts)]  # type: ignore[misc]
        layout = checkpoints.layout(ranks, {"state": state().as_json()})
        (folder / LAYOUT).write_text(json.dumps(layout))
        assert "t" in reason(folder)


def test_the_newest_whole_one_is_found_and_damage_is_said(tmp_path: Path) -> None:
    for step in (5, 10, 100, 90):
        write(tmp_path, step)
    shelf, err = Shelf(tmp_path), io.StringIO()
    assert shelf.steps() == [5, 10, 90, 100]
    (shelf.path(100) / RANK_0).write_bytes(b"")
    (shelf.path(90) / LAYOUT).unlink()
    found = resume.find(shelf, SAME, console(err))
    assert found is not None
    assert found.state.step == 10
    said = err.getvalue()
    assert said.count("damaged checkpoint") == 2
    assert f"{shelf.path(100) / RANK_0}: 0 bytes in place of" in said


def test_with_none_whole_there_is_none(tmp_path: Path) -> None:
    (write(tmp_path) / RANK_0).unlink()
    assert resume.find(Shelf(tmp_path), SAME, console()) is None
    assert resume.find(Shelf(tmp_path / "nowhere"), SAME, console()) is None


def test_a_checkpoint_under_another_steps_name_is_refused(tmp_path: Path) -> None:
    """Taken by its inner step or by its name, another step's work would be counted twice or cleared away."""
    write(tmp_path, step=5)
    write(tmp_path, step=7).rename(tmp_path / "step_9")
    with pytest.raises(Problem) as caught:
        resume.find(Shelf(tmp_path), SAME, console())
    assert (caught.value.code, caught.value.where) == ("checkpoint.renamed", str(tmp_path / "step_9"))
    assert "step_7" in caught.value.texts()["fix"]
    (tmp_path / "step_9").rename(tmp_path / "step_7")
    found = resume.find(Shelf(tmp_path), SAME, console())
    assert found is not None
    assert found.state.step == 7


def test_a_checkpoint_of_another_run_is_refused_with_the_difference(tmp_path: Path) -> None:
    write(tmp_path, same={"train.lr": 0.1, "seed": 1, "gone": 2})
    with pytest.raises(Problem) as caught:
        resume.find(Shelf(tmp_path), {"train.lr": 0.2, "seed": 1, "new": [3]}, console())
    assert (caught.value.code, caught.value.exit_code) == ("checkpoint.other_run", 2)
    assert str(caught.value.values["difference"]).splitlines() == [
        "- gone: 2", "+ gone: None", "- new: None", "+ new: [3]", "- train.lr: 0.1", "+ train.lr: 0.2"
    ]  # fmt: skip


def test_a_disk_that_cannot_be_read_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a moment's fault of a network disk would start the training over."""
    write(tmp_path)

    def broken(path: Path) -> str:
        with checkpoints.os_errors(path):
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(checkpoints, "_sha256", broken)
    with pytest.raises(Problem) as caught:
        resume.find(Shelf(tmp_path), SAME, console())
    assert caught.value.code == "io.device_error"


def save(saver: Saver, step: int, best: int | None = None) -> None:
    saver.save(state(step, best), lambda: iter(tensors(step)))
    saver.wait()


def test_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    with Saver(shelf, SAME, {}, keep=2, nbytes=0) as saver:
        seen = []
        for step, best in ((1, None), (2, 2), (3, 2), (4, 2), (5, 5), (6, 5), (7, 5)):
            save(saver, step, best)
            seen.append(shelf.steps())
    assert seen == [[1], [1, 2], [2, 3], [2, 3, 4], [4, 5], [5, 6], [5, 6, 7]]


def test_damaged_ones_beyond_the_start_go_only_when_a_new_one_is_whole(tmp_path: Path) -> None:
    for step in (5, 10, 15):
        write(tmp_path, step)
    (tmp_path / "step_15" / LAYOUT).unlink()
    with Saver(Shelf(tmp_path), SAME, {}, keep=2, nbytes=0, whole=10) as saver:
        save(saver, 12)
    assert Shelf(tmp_path).steps() == [10, 12]


def test_a_large_state_streams_to_the_same_bytes(tmp_path: Path) -> None:
    for name, nbytes in (("copied", 0), ("streamed", BACKGROUND_BYTES + 1)):
        with Saver(Shelf(tmp_path / name), SAME, {}, keep=1, nbytes=nbytes) as saver:
            saver.save(state(3), lambda: iter(tensors()))
    copied, streamed = (tmp_path / name / "step_3" / RANK_0 for name in ("copied", "streamed"))
    assert copied.read_bytes() == streamed.read_bytes()


def test_the_copy_is_of_the_moment(tmp_path: Path) -> None:
    live = state(3)
    with Saver(Shelf(tmp_path), SAME, {}, keep=1, nbytes=0) as saver:
        saver.save(live, lambda: iter(tensors()))
        live.step, live.best.step, live.health.recent[0] = 99, 99, 99.0
    assert checkpoints.read(tmp_path / "step_3").state == state(3)


def test_what_killed_runs_left_is_swept_up(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    write(folder)
    for path in (folder / f"step_9{files.PARTIAL}", tmp_path / f"checkpoints{files.PARTIAL}"):
        path.mkdir()
        (path / "half").write_text("x")
    (folder / "step_x").mkdir()  # not ours
    shelf = Shelf(folder)
    shelf.sweep()
    assert sorted(f.name for f in tmp_path.rglob("*")) == ["checkpoints", LAYOUT, RANK_0, "step_7", "step_x"]
    assert shelf.steps() == [7]
    shelf.clear()
    assert [f.name for f in tmp_path.rglob("*")] == ["checkpoints", "step_x"]


def test_only_what_has_the_name_of_a_checkpoint_is_one(tmp_path: Path) -> None:
    for name in ("step_4", "step_04", "step_", "step_-1", "step_٤", "Step_5"):
        (tmp_path / name).mkdir()
    assert Shelf(tmp_path).steps() == [4]


def test_data_are_known_by_every_byte(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    (tmp_path / "b").write_bytes(b"")
    first = resume.data_digest(tmp_path)
    (tmp_path / "b").write_bytes(b"5")
    (tmp_path / "a").write_bytes(b"1234")
    second = resume.data_digest(tmp_path)
    (tmp_path / "a").write_bytes(b"1254")
    third = resume.data_digest(tmp_path)
    (tmp_path / "a").rename(tmp_path / "c")
    assert len({first, second, third, resume.data_digest(tmp_path)}) == 4


def test_a_model_is_known_by_its_weights_not_by_its_files(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    weights = {f"t{n}": random.standard_normal((70, 50)).astype(np.float32) for n in range(3)}
    first = resume.model_digest(weights)
    write_folder(tmp_path, [stream(n, a) for n, a in reversed(weights.items())], shard_bytes=20_000)
    read = {n: a for f in tmp_path.glob("*.safetensors") for n, a in open_file(f).items()}
    assert len(list(tmp_path.glob("*.safetensors"))) == 3
    assert resume.model_digest(read) == first
    for change in ({"t2": weights["t2"] * np.float32(1.0001)}, {"t2": weights["t2"].astype(np.float16)}):
        assert resume.model_digest(weights | change) != first
