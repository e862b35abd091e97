"""`tengtune data convert --to mindrecord`, read by MindSpore, and training on what it wrote."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.test_data_cli import events, tengtune
from tests.fault_lab import KILLED_ANYWHERE, python
from tests.fault_lab import small_disk as small_disk
from tests.golden.test_mindrecord_golden import qwen1_model
from tests.mindrecord_lab import GOLDEN, compose, unpack
from tests.tiny import ENDOFTEXT
from tests.training_lab import project

from tengtune.data.mindrecord import MindRecord
from tengtune.data.store import open_store

ROWS = ("--to", "mindrecord", "--model", "model", "--seq-len", "60")
IGNORED = -100


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model folder, data.json with 40 records, run.yaml with rows of 64 tokens."""
    project(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read_by_mindspore(path: Path) -> list[dict[str, Any]]:
    import tengtune.backends.mindspore  # noqa: F401 (sets the log level)

    from mindspore.dataset import MindDataset  # isort: skip

    rows = MindDataset(str(path), num_parallel_workers=1, shuffle=False)
    return list(rows.create_dict_iterator(num_epochs=1, output_numpy=True))


@pytest.mark.parametrize("label", ["labels", "target_ids"])
@pytest.mark.parametrize("shards", [1, 4])
def test_mindspore_reads_what_was_written(
    folder: Path, capsys: pytest.CaptureFixture[str], label: str, shards: int
) -> None:
    options = ("--columns", label, "--shards", str(shards), "--out", "x.mindrecord")
    code, out, err = tengtune(capsys, "data", "convert", "data.json", *ROWS, *options)
    first = "x.mindrecord" if shards == 1 else "x.mindrecord0"
    assert (code, out.strip()) == (0, first)
    assert f"{first}: 40 records" in err
    names = ["x.mindrecord"] if shards == 1 else [f"x.mindrecord{n}" for n in range(4)]
    assert sorted(p.name for p in folder.glob("x.*")) == sorted([*names, *(f"{n}.db" for n in names)])
    rows = read_by_mindspore(folder / first)
    assert len(rows) == 40
    # What the data step makes of the same records, which other tests compare with the reference.
    (folder / "all.yaml").write_text("model: model\ndata: {files: data.json, seq_len: 64, heldout: 0}\n")
    tengtune(capsys, "data", "all.yaml")
    shown = [json.loads(tengtune(capsys, "data", "show", "all.yaml", str(n), "--json")[1]) for n in range(40)]
    expected = {
        tuple(show["ids"]): [i if t else IGNORED for i, t in zip(show["ids"], show["trained"], strict=True)]
        for show in shown
    }
    assert len(expected) == 40
    for row in rows:
        assert set(row) == {"input_ids", label, "attention_mask"}
        assert all(column.dtype == np.int32 and column.shape == (61,) for column in row.values())
        end = int(np.flatnonzero(row[label] != IGNORED)[-1]) + 1
        assert row[label][:end].tolist() == expected.pop(tuple(row["input_ids"][:end].tolist()))
        assert row["input_ids"][end + 1 :].tolist() == [ENDOFTEXT] * (60 - end)  # after a line break
        assert (row["attention_mask"] == (row["input_ids"] != ENDOFTEXT)).all()
    assert not expected


def test_longer_conversations_are_cut_split_or_dropped(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    turns = [{"role": r, "content": f"{r} {n} " + "x" * 9} for n in range(2) for r in ("user", "assistant")]
    long = {"messages": [{"role": "system", "content": "s"}, *turns]}
    short = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    (folder / "two.json").write_text(json.dumps([long, short]))
    found = {}
    for too_long in ("cut", "split", "drop"):
        options = ("--too-long", too_long, "--system", "", "--json", "--out", f"{too_long}.mindrecord")
        code, out, _ = tengtune(capsys, "data", "convert", "two.json", *ROWS, *options)
        assert code == 0
        faults = [event["code"] for event in events(out) if event["event"] == "fault"]
        found[too_long] = (faults, MindRecord(folder / f"{too_long}.mindrecord").records)
    assert found == {"cut": (["cut"], 2), "split": (["split"], 3), "drop": (["too_long"], 1)}


def losses(folder: Path, name: str) -> list[float]:
    lines = (folder / "runs" / name / "metrics.jsonl").read_text().splitlines()
    return [record["loss"] for record in map(json.loads, lines) if "loss" in record]


@pytest.mark.slow
def test_it_trains_on_both_back_ends_as_the_texts_do(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, *_ = tengtune(capsys, "data", "convert", "data.json", *ROWS, "--out", "x.mindrecord")
    assert code == 0
    (folder / "run.yaml").write_text((folder / "run.yaml").read_text().replace("lr: 10", "lr: 0.01"))
    found = {}
    for backend in ("torch", "mindspore"):
        for data in ("data.json", "x.mindrecord")[backend == "mindspore" :]:  # compiling takes its time
            name = f"{backend}-{data}"
            set_to = (f"backend={backend}", f"data.files={data}", f"name={name}", "train.max_steps=3")
            settings = [part for each in set_to for part in ("-s", each)]
            code, _, err = tengtune(capsys, "train", "run.yaml", *settings)
            assert code == 0, err
            found[name] = losses(folder, name)
            assert len(found[name]) == 3
    assert found["torch-x.mindrecord"] == found["torch-data.json"]
    np.testing.assert_allclose(found["mindspore-x.mindrecord"], found["torch-x.mindrecord"], rtol=1e-4)


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ((*ROWS, "--out", "x.bin"), "mindrecord.name", "For example: x.mindrecord"),
        ((*ROWS, "--out", "x.mindrecord1"), "mindrecord.name", "For example: x.mindrecord"),
        (("--to", "mindrecord", "--out", "x.mindrecord"), "check.rows_need_model", "--model DIR"),
        (("--to", "messages", "--out", "x.json", "--too-long", "cut"), "check.rows_only", "--too-long"),
        ((*ROWS, "--out", "there.mindrecord"), "check.out_exists", "there.mindrecord1.db"),
    ],
)
def test_refusals(
    folder: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], code: str, words: str
) -> None:
    (folder / "there.mindrecord1.db").write_text("part of another")
    before = sorted(folder.iterdir())
    status, out, err = tengtune(capsys, "data", "convert", "data.json", *options)
    assert (status, out) == (2, "")
    assert code in err
    assert words in err
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("name", ["x.mindrecord", "x.mindrecord1.db"])
@pytest.mark.parametrize("force", [(), ("--force",)])
def test_a_folder_under_its_name_is_told_before_anything_goes(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str, force: tuple[str, ...]
) -> None:
    (folder / "x.mindrecord0").write_text("of an older one")
    (folder / name).mkdir()
    status, _, err = tengtune(capsys, "data", "convert", "data.json", *ROWS, "--out", "x.mindrecord", *force)
    assert status == 2
    assert "io.is_folder" in err
    assert name in err
    assert (folder / "x.mindrecord0").read_text() == "of an older one"


def test_a_mindrecord_without_a_label_is_told_by_its_labels(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compose(folder / "x.mindrecord", [{"input_ids": [5, 6], "labels": [IGNORED, IGNORED]}] * 3)
    status, _, err = tengtune(capsys, "data", "-s", "data.files=x.mindrecord")
    assert status == 2
    assert "None of the 3 records of token ids" in err
    assert "3 x no_label" in err
    assert "map them" not in err


def test_nothing_to_write_leaves_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "none.json").write_text('[{"instruction": "a", "output": ""}]')
    status, out, err = tengtune(capsys, "data", "convert", "none.json", *ROWS, "--out", "x.mindrecord")
    assert (status, out) == (2, "")
    assert "check.nothing_written" in err
    assert not list(folder.glob("x.*"))


def test_records_that_mindspore_drops_or_changes_are_noticed(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tengtune.backends.mindspore import mindrecord

    real = mindrecord.FileWriter.write_raw_data
    changes = {
        "dropped": lambda records: [{**records[0], "labels": [1]}, *records[1:]],  # no array: left out
        "changed": lambda records: [{**records[0], "labels": records[0]["labels"] + 1}, *records[1:]],
        "refused": lambda records: [{**each, "labels": each["labels"].astype(np.int64)} for each in records],
    }
    for what, code in (("dropped", "not_same"), ("changed", "not_same"), ("refused", "failed")):
        change = changes[what]
        monkeypatch.setattr(
            mindrecord.FileWriter, "write_raw_data", lambda self, rows, to=change: real(self, to(rows))
        )
        status, out, err = tengtune(capsys, "data", "convert", "data.json", *ROWS, "--out", "x.mindrecord")
        assert (status, out) == (4, ""), what
        assert f"mindrecord.{code}" in err
        assert not list(folder.glob("x.*"))
    assert "no valid data" in err


def test_init_sizes_a_run_for_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for shards in ("1", "2"):
        options = ("--shards", shards, "--force", "--out", "x.mindrecord")
        _, first, _ = tengtune(capsys, "data", "convert", "data.json", *ROWS, *options)
        sized = []
        for data in (first.strip(), "data.json"):
            code, _, err = tengtune(capsys, "init", "model", data, "-o", f"{Path(data).suffix[1:]}.yaml")
            assert code == 0
            sized.append(err)
        assert sized[0] == sized[1]
        assert "Records: 40" in sized[0]
        for suffix in (Path(first.strip()).suffix[1:], "json"):
            (folder / f"{suffix}.yaml").unlink()


def test_in_a_run_file_all_shards_count_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tengtune(capsys, "data", "convert", "data.json", *ROWS, "--shards", "2", "--out", "x.mindrecord")
    code, _, err = tengtune(capsys, "data", "-s", "data.files=x.mindrecord,data.json")
    assert code == 0
    assert "x.mindrecord: 40 records of token ids" in err
    assert "80 of 80 records kept" in err
    code, _, err = tengtune(capsys, "data", "-s", "data.files=x.mindrecord,data.json")
    assert "up to date" in err
    Path(folder / "x.mindrecord1.db").touch()
    code, _, err = tengtune(capsys, "data", "-s", "data.files=x.mindrecord,data.json")
    assert "up to date" not in err
    code, _, err = tengtune(
        capsys, "data", "-s", "data.files=x.mindrecord0,x.mindrecord1", "-s", "name=twice"
    )
    assert code == 2
    assert "data.shard_twice" in err
    with closing(sqlite3.connect(folder / "x.mindrecord1.db")) as database:
        database.execute("DELETE FROM INDEXES")
        database.commit()
    code, _, err = tengtune(capsys, "--lang", "zh", "data", "-s", "data.files=x.mindrecord", "-s", "name=z")
    assert code == 2
    assert ".db 里有 0 条记录" in err


def test_check_and_convert_say_that_there_are_no_texts(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tengtune(capsys, "data", "convert", "data.json", *ROWS, "--out", "x.mindrecord")
    for command in (("check",), ("convert", "--to", "messages", "--out", "x.json")):
        code, _, err = tengtune(capsys, "data", *command, "x.mindrecord")
        assert code == 2
        assert "holds token ids, no texts" in err


WITHOUT_MINDSPORE = """
import sys
from importlib import util
known, sys.modules["mindspore"] = util.find_spec, None
util.find_spec = lambda name, *rest: None if name == "mindspore" else known(name, *rest)
from tengtune.cli.main import main
main(sys.argv[1:])
"""


def test_without_mindspore_it_is_read_and_only_writing_is_refused(folder: Path) -> None:
    unpack("qwen.mindrecord.tar.xz", folder)
    shutil.rmtree(folder / "model")
    qwen1_model(folder / "model")
    (folder / "all.yaml").write_text(
        "model: model\n"
        "data: {files: qwen.mindrecord, weights: {qwen.mindrecord: 2}, seq_len: 65, heldout: 0}\n"
    )
    done = python(WITHOUT_MINDSPORE, "data", "all.yaml")
    assert done.returncode == 0, done.stderr
    assert "24 of 24 records kept" in done.stderr
    store = open_store(folder / "runs" / "all" / "data" / "train")
    with np.load(GOLDEN / "expected.npz") as expected:
        labels = expected["labels"][:, 1:]  # no document's first token is a label
        ids = expected["input_ids"]
    assert store.trained_tokens == 2 * int((labels != IGNORED).sum())
    shown = store.example(0)
    assert shown.ids.tolist() == ids[0, : len(shown.ids)].tolist()
    done = python(WITHOUT_MINDSPORE, "data", "convert", "data.json", *ROWS, "--out", "x.mindrecord")
    assert done.returncode == 3
    assert "mindrecord.no_mindspore" in done.stderr
    assert not list(folder.glob("x.*"))


KILLED = (
    KILLED_ANYWHERE
    + """
import sys
from pathlib import Path
import numpy as np
from tengtune.backends.mindspore.mindrecord import write
from tengtune.data.mindrecord import MindRecord, first_shard
from tengtune.data.record_rows import Form
from mindspore.dataset import MindDataset

def theirs(path):
    try:
        return MindDataset(str(path), num_parallel_workers=1).get_dataset_size()
    except RuntimeError:
        return 0

def ours(path):
    try:
        return sum(1 for _ in MindRecord(path).rows(["input_ids"]))
    except Exception:
        return 0

def work(out, count, rows, shards):
    def batches():
        for start in range(0, rows, 100):
            count[0] -= 1
            if count[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            ids = np.arange(start * 9, (start + 100) * 9, dtype=np.int32).reshape(100, 9)
            yield ids, ids
    write(out, batches(), Form(9, 0, "labels"), shards)

out = Path(sys.argv[1]) / "x.mindrecord"
for rows, shards in ((200, 2), (300, 1)):
    for point in range(100):
        child = os.fork()
        if child == 0:
            count = [point]
            for name in ("fsync", "replace", "mkdir", "unlink"):
                setattr(os, name, killing(count, getattr(os, name)))
            work(out, count, rows, shards)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        found = sorted(out.parent.glob("x.mindrecord*"))
        whole = {(ours(p), theirs(p)) for p in found if p.is_file() and p.suffix != ".db"}
        print(rows, shards, point, status, sorted(whole), sep="\\t")
        if status == 0:
            print([p.name for p in found])
            break
"""
)


@pytest.mark.slow
def test_a_killed_write_leaves_the_old_or_nothing_that_can_be_read(tmp_path: Path) -> None:
    """Killed at every step: first where nothing is, then over two shards."""
    done = python(KILLED, tmp_path, GLOG_v="3")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    seen: dict[str, list[str]] = {"200": [], "300": []}
    for rows, _, _, status, whole in (line.split("\t") for line in lines if "\t" in line):
        assert status in ("0", "9")
        seen[rows].append(whole)
    assert len(lines) > 20
    both, one = "[(200, 200)]", "[(300, 300)]"
    assert set(seen["200"]) == {"[]", "[(0, 0)]", both}
    assert set(seen["300"]) == {both, "[(0, 0)]", "[]", one}
    for stages, whole in ((seen["200"], both), (seen["300"], one)):
        assert all(each == whole for each in stages[stages.index(whole) :])
    assert [line for line in lines if "\t" not in line] == [
        "['x.mindrecord0', 'x.mindrecord0.db', 'x.mindrecord1', 'x.mindrecord1.db']",
        "['x.mindrecord', 'x.mindrecord.db']",
    ]


def test_a_full_disk(folder: Path, capsys: pytest.CaptureFixture[str], small_disk: Path | None) -> None:
    if small_disk is None:
        pytest.skip("no disk can be mounted here")
    records = [{"instruction": f"{n} " + "x " * 40, "output": "y " * 40} for n in range(4000)]
    (folder / "large.json").write_text(json.dumps(records))
    options = ("--model", "model", "--to", "mindrecord", "--out", str(small_disk / "x.mindrecord"))
    status, out, err = tengtune(capsys, "data", "convert", "large.json", *options)
    assert (status, out) == (4, "")
    assert "mindrecord.failed" in err
    assert "No free disk" in err
    assert not list(small_disk.iterdir())
