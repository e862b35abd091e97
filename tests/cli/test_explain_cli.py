"""`tengtune explain` as it is typed: files, folders, pipes, packed logs, what is no log; and the launcher."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import random
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.explain_lab import LOGS, STEP, at

from tengtune.cluster.launch import Start
from tengtune.cluster.place import PROGRESS, Place
from tengtune.cluster.watch import Crew
from tengtune.explain.streams import sources
from tengtune.ui.console import Console
from tengtune.ui.problems import Problem, screen

FULL = b"OSError: [Errno 28] No space left on device\n"


def explain(*arguments: object, stdin: bytes = b"", **environment: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    command = [sys.executable, "-m", "tengtune", "explain", *map(str, arguments)]
    where = {**os.environ, "TENGTUNE_LANG": "en", **environment}
    done = subprocess.run(command, env=where, input=stdin, capture_output=True, timeout=60, check=False)
    assert b'Traceback (most recent call last):\n  File "/' not in done.stderr
    return done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")


def answer(*arguments: object, stdin: bytes = b"") -> dict[str, Any]:
    code, out, _ = explain(*arguments, "--json", stdin=stdin)
    result: dict[str, Any] = json.loads(out.splitlines()[-1])
    assert code == (0 if result["explained"] else 1)
    return result


def test_the_screen_has_cause_evidence_and_what_to_do(tmp_path: Path) -> None:
    log = tmp_path / "rank_3.log"
    log.write_bytes(STEP * 3 + (LOGS / "22_oom_fragmentation_64G.log").read_bytes())
    code, out, err = explain(log)
    assert (code, err) == (0, "")
    assert f"{log}:4, rank 3, 2026-01-01 00:00:00" in out
    assert "Tried to allocate 926.00 MiB" in out
    assert "50.49 GiB lie idle" in out  # 59.48 - 8.99
    assert "expandable_segments:True" in out
    assert "Read: 1 log, 4 lines" in out


@pytest.mark.parametrize("locale", ["zh_CN.UTF-8", "zh_CN.GB18030", "C", "POSIX"])
def test_the_answer_comes_in_any_locale(locale: str) -> None:
    data = "卡住了\n".encode("gb18030") + FULL
    code, out, _ = explain("-", stdin=data, LC_ALL=locale, LANG=locale, TENGTUNE_LANG="", PYTHONUTF8="0")
    assert code == 0
    assert "-:2" in out


def test_a_chinese_reader_gets_chinese(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_bytes(FULL)
    _, out, _ = explain(tmp_path / "x.log", "--lang", "zh")
    assert "原因：磁盘满了" in out
    assert "办法" in out


def test_what_is_unknown_stays_unknown_with_the_most_suspicious_lines() -> None:
    log = (
        b"fine\n[ERROR] (PID:1, Device:0, RankID:0) ERR99999 UNKNOWN application exception\n"
        b"EZ9999: Inner Error!\nWidgetError: bent\n"
    )
    code, out, _ = explain("-", stdin=log)
    assert code == 1
    assert "Cause unknown" in out
    assert "err99999, ez9999" in out
    assert out.index("-:4") < out.index("-:2")
    told = answer("-", stdin=log)
    assert told["explained"] is False
    assert "id" not in told


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (b"", "is empty"),
        (b"\n \r\n", "is empty"),
        (b"all is well\nTraining finished successfully\n", "Nothing in it looks like a failure"),
        (b"\0" * 5000, "not text"),
        (b"\xff" * 5000, "not text"),
        (random.Random(7).randbytes(5000), "not text"),
    ],
)
def test_a_log_without_anything_is_an_answer_too(log: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "x.log").write_bytes(log)
    for place in ("-", tmp_path / "x.log"):
        code, out, _ = explain(place, stdin=log)
        assert code == 1
        assert said in out.splitlines()[0]
        assert "unknown" not in out


def test_a_folder_of_ranks_names_the_first_that_failed(tmp_path: Path) -> None:
    for rank in range(4):
        plog = tmp_path / f"rank_{rank}" / "plog"
        plog.mkdir(parents=True)
        text = (
            at("10:00:00", "error code is 507053", 2)
            if rank == 2
            else at("10:30:05", "EI0002: notify wait", rank)
        )
        (plog / "plog-1.log").write_bytes(text)
    for other in ("metrics.jsonl", "model.safetensors", "error.h", "merges.txt", ".hidden"):
        (tmp_path / other).write_bytes(FULL)
    (tmp_path / "core").write_bytes(b"\x7fELF\0" + FULL)
    (tmp_path / "latest.log").symlink_to(tmp_path / "rank_0" / "plog" / "plog-1.log")
    os.mkfifo(tmp_path / "pipe.log")
    told = answer(tmp_path)
    assert (told["id"], told["ranks"], told["logs"]) == ("acl_507053", [2], 4)
    assert told["evidence"][0]["time"] == "2026-01-15 10:00:00"
    assert [each["id"] for each in told["also"]] == ["ei0002"]
    several = [tmp_path / "rank_0", tmp_path / "rank_2"]
    assert answer(*several)["logs"] == 2
    assert answer(*several, tmp_path / "rank_0")["logs"] == 2


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("bzip2", bz2.compress(FULL)),
        ("xz", lzma.compress(FULL)),
        ("zstd", b"\x28\xb5\x2f\xfd" + bytes(20)),
        ("7z", b"7z\xbc\xaf\x27\x1c" + bytes(20)),
        ("zip", b"PK\x03\x04" + bytes(20)),
    ],
)
def test_a_log_packed_otherwise_is_not_said_to_hold_nothing(kind: str, data: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.log").write_bytes(data)
    code, out, err = explain(tmp_path / "x.log")
    assert (code, out, "code explain.packed" in err, kind in err) == (2, "", True, True)


@pytest.mark.parametrize(
    "name", ["x.log.1", "X.LOG", "x.log.2026-01-01", "nohup.out", "messages", "job.o4711", "a.gz"]
)
def test_logs_of_a_folder_are_known_by_their_names(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(FULL)
    assert [source.path for source in sources(str(tmp_path))] == [tmp_path / name]


def test_packed_logs_are_read(tmp_path: Path) -> None:
    """By what they are, not by their names; several members; a tail that is cut off is told."""
    packed = gzip.compress(STEP * 50_000) + gzip.compress(FULL * 2)
    for name, data in (("x.log.gz", packed), ("x.log", packed), ("padded.gz", packed + bytes(512))):
        (tmp_path / name).write_bytes(data)
        told = answer(tmp_path / name)
        assert (told["id"], told["evidence"][0]["line"], told["lines"]) == ("disk", 50_001, 50_002)
    assert answer("-", stdin=packed)["id"] == "disk"
    broken = gzip.compress(FULL + os.urandom(50_000))[:-20_000]
    (tmp_path / "broken.gz").write_bytes(broken)
    code, out, err = explain(tmp_path / "broken.gz")
    assert code == 0
    assert "No space left" in out
    assert "breaks off" in err
    (tmp_path / "none.gz").write_bytes(b"\x1f\x8b" + b"not gzip")
    assert explain(tmp_path / "none.gz")[0] == 1


def test_a_log_in_utf_16_is_read(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_bytes(FULL.decode().encode("utf-16"))
    assert answer(tmp_path / "x.log")["id"] == "disk"


@pytest.mark.parametrize(
    "kind", ["fifo", "device", "socket", "missing", "no name", "empty folder", "no reading"]
)
def test_what_is_no_log_is_refused(tmp_path: Path, kind: str) -> None:
    path, expected = tmp_path / "x", "io.not_plain"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path = Path("/dev/zero")
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as plug:
            plug.bind(str(path))
    elif kind in ("missing", "no name"):
        expected = "io.not_found"
    elif kind == "empty folder":
        path.mkdir()
        expected = "explain.no_logs"
    else:
        path, expected = Path("/proc/self/mem"), "io.device_error"
    code, out, err = explain("" if kind == "no name" else path)
    assert code in (2, 3)
    assert out == ""
    assert expected in err


def test_an_own_error_is_found_through_its_file(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(
        "flux: {kind: root, find: [flux capacitor drained], "
        "en: {means: No flux., fix: Fill it.}, zh: {means: 没有通量。, fix: 补充。}}\n",
        "utf-8",
    )
    log = b"the flux capacitor drained\n"
    assert explain("-", stdin=log)[0] == 1
    code, out, _ = explain("-", "--facts", own, stdin=log)
    assert code == 0
    assert "No flux." in out
    assert "Fill it." in out
    own.write_text("flux: {kind: root}\n")
    code, _, err = explain("-", "--facts", own, stdin=log)
    assert code == 2
    assert "explain.bad_facts" in err
    assert "code io.not_plain" in explain("-", "--facts", "/dev/zero", stdin=log)[2]


@pytest.mark.parametrize(
    ("said", "there"), [("NPU out of memory. Tried to allocate 2.00 GiB", True), ("bent", False)]
)
def test_the_launcher_says_what_the_failing_ranks_error_means(tmp_path: Path, said: str, there: bool) -> None:
    starts = []
    for rank in range(2):
        script = (
            f"import sys; print({said!r}, file=sys.stderr); sys.exit(1)"
            if rank
            else "import time; time.sleep(9)"
        )
        place = Place(rank, 2, rank, 2)
        variables = {PROGRESS: str(tmp_path / f"rank_{rank}.beats")}
        starts.append(Start(place, variables, [sys.executable, "-c", script], tmp_path / f"rank_{rank}.log"))
    with pytest.raises(Problem) as caught:
        Crew(starts, Console("quiet"), None).run()
    assert caught.value.code == "cluster.rank_failed"
    text = screen(caught.value, colour=False)
    assert said in text
    assert ("The error behind it (oom)" in text) is there
    assert ("npu-smi info" in text) is there
