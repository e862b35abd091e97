"""Of several errors the one that failed first is the cause, across ranks; what is computed from figures."""

from __future__ import annotations

import pytest
from tests.explain_lab import at, diagnosis, found, read

from tengtune.explain.scan import readable
from tengtune.ui import language as languages
from tengtune.ui.language import Language
from tengtune.ui.problems import Problem

OOM = (
    "RuntimeError: NPU out of memory. Tried to allocate {tried} (NPU 0; {total} total capacity; "
    "{allocated} already allocated; {allocated} current active; {free} free; "
    "{reserved} reserved in total by PyTorch)"
)


def test_the_rank_that_failed_first_is_named() -> None:
    late = at("10:30:00", "EI0002: waited", 0) + at("10:30:02", "No space left on device", 0)
    early = at("10:00:00", "error code is 507035", 3)
    told = diagnosis(late, early, names=["rank_0.log", "rank_3.log"])
    assert told.error is not None
    assert (told.error.id, told.evidence[0].rank, told.evidence[0].file) == ("acl_507035", 3, "rank_3.log")
    assert [hit.error.id for hit in told.also if hit.error] == ["ei0002", "disk"]


def test_the_order_of_lines_does_not_count_where_times_do() -> None:
    """Several ranks write into one console."""
    log = at("10:00:09", "error code is 507035", 1) + at("10:00:01", "No space left on device", 2)
    told = diagnosis(log)
    assert told.error is not None
    assert (told.error.id, told.evidence[0].rank) == ("disk", 2)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_our_own_screen_of_a_killed_rank_is_known(
    language: Language, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its text is the launcher's; nobody else wrote a word of the reason."""
    monkeypatch.setattr(languages, "current", lambda: language)
    how = languages.say("cluster.killed_memory")
    screen = Problem("cluster.rank_failed", where="log", rank=1, how=how, lines="-", diagnosis="")
    line = screen.texts(language)["what"]
    assert found(f"train: fine-tune\n{line}\n".encode()) == "tengtune_rank_killed"


def test_without_times_the_first_line_counts() -> None:
    assert found(b"error code is 507035\nNo space left on device\n") == "acl_507035"


def test_a_symptom_gives_way_to_a_cause_and_a_warning_to_both() -> None:
    warning = at("09:59:00", "loss scale adjust to 1024")
    symptom = at("10:00:00", "EI0006: no link")
    cause = at("10:00:30", "Address already in use")
    assert found(warning) == "overflow_adj"
    assert found(warning, symptom) == "ei0006"
    assert found(warning, symptom, cause) == "port29500"


def test_what_fails_long_after_others_felt_it_is_no_cause() -> None:
    assert (
        found(at("10:00:00", "Heartbeat Lost Occurred"), at("10:05:00", "error code is 507899")) == "hb_lost"
    )


def test_failures_of_other_days_are_left_aside() -> None:
    old = at("2026-01-02-10:00:00", "No space left on device")
    told = diagnosis(old + at("10:00:00", "error code is 507035"))
    assert told.error is not None
    assert told.error.id == "acl_507035"
    assert [hit.error.id for hit in told.earlier if hit.error] == ["disk"]


def test_warnings_neither_make_a_failure_nor_join_two() -> None:
    warnings = b"".join(at(f"{hour:02}:30:00", "loss scale adjust to 8") for hour in range(24))
    old, new = at("02:00:00", "No space left on device"), at("12:00:00", "error code is 507035")
    for logs in ((warnings, old), (old, warnings)):
        assert found(*logs) == "disk"
    told = diagnosis(old, warnings, new)
    assert told.error is not None
    assert told.error.id == "acl_507035"
    assert {hit.error.id for hit in told.earlier if hit.error} == {"disk", "overflow_adj"}


@pytest.mark.parametrize(
    ("line", "id"),
    [
        ("runtime result = 507010.", "acl_507010"),
        ("rtGetDeviceCount:ErrCode=507899, desc=[x]", "acl_507899"),
        ("error code is 507035", "acl_507035"),
        ("return value is [507018]", "acl_507018"),
        ("errorCode: 507015 (x)", "acl_507015"),
        ("retry 507015 of 600000", None),
        ("step 507015", None),
        ("error code is 5070150", None),
        ("token EI00021 or AEI0002", None),
        ("ray: worker lost heartbeat, restarting it", None),
        ("+ set ASCEND_RT_VISIBLE_DEVICES=0,1", None),
        ("TOKEN environment variable is not set", None),
        ("version `GLIBCXX_3.4.29' found", None),
        ("iterator: GetNext", None),
    ],
)
def test_a_code_counts_where_it_is_one(line: str, id: str | None) -> None:
    assert found(line.encode()) == id


def test_a_line_without_a_time_has_that_of_its_neighbour() -> None:
    log = b"2026-01-15 10:00:00,123 [INFO] step 1\n\nRuntimeError: No space left on device\nmore\n"
    stamped = (
        b"more\nOSError: No space left on device\n[ERROR] 2026-01-15-11:00:00 (PID:1, Device:0, RankID:7) x\n"
    )
    assert [f"{hit.when}" for hit in read(log).hits if hit.error] == ["2026-01-15 10:00:00.123000"]
    assert [f"{hit.when}" for hit in read(stamped).hits if hit.error] == ["2026-01-15 11:00:00"]
    # between two: that of the nearer line
    for log_of, expected in (
        (log + stamped, ["10:00:00", "11:00:00"]),
        (stamped + log, ["11:00:00", "10:00:00"]),
    ):
        hits = [hit for hit in read(log_of).hits if hit.error and hit.error.id == "disk"]
        assert [f"{hit.when:%H:%M:%S}" for hit in hits] == expected


@pytest.mark.parametrize(
    ("stamp", "expected"),
    [
        ("2025-10-23-17:30:40.098.984", "2025-10-23 17:30:40.098984"),
        ("2024-08-18-22:15:47", "2024-08-18 22:15:47"),
        ("2025-04-10 16:54:20,197", "2025-04-10 16:54:20.197000"),
        ("2025/04/10 16:54:20", "2025-04-10 16:54:20"),
        ("2025-04-10T16:54:20.5Z", "2025-04-10 16:54:20.500000"),
        ("Thu Oct 23 17:25:58 2025", "2025-10-23 17:25:58"),
        ("2025-13-45 99:99:99", "None"),
        ("Abc Xyz 99 17:25:58 2025", "None"),
        ("0000-00-00 00:00:00", "None"),
    ],
)
def test_the_usual_times_are_read(stamp: str, expected: str) -> None:
    assert [
        str(hit.when) for hit in read(f"{stamp} No space left on device\n".encode()).hits if hit.error
    ] == [expected]


@pytest.mark.parametrize(
    ("line", "name", "rank"),
    [
        ("[rank3]: No space left on device", "x.log", 3),
        ("[default5]:No space left on device", "x.log", 5),
        ("(PID:1, Device:0, RankID:12) No space left on device", "x.log", 12),
        ("No space left on device", "run/log/rank_7.log", 7),
        ("No space left on device", "worker_2.log", 2),
        ("No space left on device", "log/device-4/device-1_2026.log", 1),
        ("[rank3]: No space left on device", "rank_7.log", 3),
        (
            "No space left on device\n[ERROR] 2026-01-01-00:00:00 (PID:1, Device:3, RankID:3) ERR99999",
            "x.log",
            3,
        ),
        ("(RankID:-1) No space left on device", "x.log", None),
        ("No space left on device", "x.log", None),
    ],
)
def test_the_rank_is_said_by_the_line_or_the_name(line: str, name: str, rank: int | None) -> None:
    hits = read(line.encode(), name).hits
    assert [hit.rank for hit in hits if hit.error and hit.error.id == "disk"] == [rank]


@pytest.mark.parametrize(
    ("figures", "cause"),
    [
        (("130.00 MiB", "29.50 GiB", "28.45 GiB", "31.40 MiB", "28.67 GiB"), "full"),
        (("926.00 MiB", "60.97 GiB", "8.99 GiB", "827.40 MiB", "59.48 GiB"), "fragmentation"),
        (("2.00 GiB", "60.97 GiB", "20.00 GiB", "1.00 GiB", "20.50 GiB"), "other_process"),
        (("20.00 MiB", "60.97 GiB", "58.00 GiB", "0 B", "59.00 GiB"), "full"),
        (("12.00 GiB", "60.97 GiB", "50.00 GiB", "1.00 GiB", "59.00 GiB"), "full"),
    ],
)
def test_the_figures_of_an_out_of_memory_text_are_judged(figures: tuple[str, ...], cause: str) -> None:
    tried, total, allocated, free, reserved = figures
    text = OOM.format(tried=tried, total=total, allocated=allocated, free=free, reserved=reserved)
    detail = diagnosis(text.encode()).detail
    assert detail is not None
    assert detail.data["cause"] == cause


def test_the_newer_form_of_the_figures_is_read_too() -> None:
    text = (
        "NPU out of memory. Tried to allocate 2.00 GiB. NPU 0 has a total capacity of 61.28 GiB of which "
        "1.10 GiB is free. Of the allocated memory 20.00 GiB is allocated by PyTorch, and 38.00 GiB is "
        "reserved by PyTorch but unallocated."
    )
    detail = diagnosis(text.encode()).detail
    assert detail is not None
    assert detail.data == {
        "cause": "fragmentation",
        "tried": 2 << 30,
        "total": int(61.28 * 2**30),
        "allocated": 20 << 30,
        "free": int(1.1 * 2**30),
        "reserved": 58 << 30,
    }


@pytest.mark.parametrize(
    "figures", ["", "1.2.3 GiB (NPU 0; 0 B total capacity", "9 GiB (NPU 0; x GiB total capacity"]
)
def test_figures_that_are_none_leave_the_error_as_it_is(figures: str) -> None:
    told = diagnosis(f"NPU out of memory. Tried to allocate {figures}".encode())
    assert told.error is not None
    assert (told.error.id, told.detail) == ("oom", None)


def test_the_missing_ranks_are_named() -> None:
    log = (
        at("10:00:00", "topo exchange server get socket timeout!")
        + at("10:00:00", "need connect rankNum is [6]")
        + at("10:00:00", "connected rankinfo[LINE 0]: [0000000000000000],[0000000000000002];")
        + at("10:00:00", "connected rankinfo[LINE 1]: [0000000000000005];")
    )
    detail = diagnosis(log).detail
    assert detail is not None
    assert detail.data == {"missing": [1, 3, 4]}


@pytest.mark.parametrize(
    ("calls", "code"), [("RR", "explain.same_collective"), ("RG", "explain.other_collectives")]
)
def test_ranks_in_different_collectives_are_told(calls: str, code: str) -> None:
    names = {"R": "AllReduce", "G": "AllGather"}
    log = b"".join(
        at("10:00:00", f"[TaskExecStage][Timeout] tag[{names[call]}_127.0.0.1_1]", rank)
        for rank, call in enumerate(calls)
    )
    detail = diagnosis(log).detail
    assert detail is not None
    assert detail.code == code


def test_without_a_known_error_the_three_most_suspicious_lines_are_shown() -> None:
    log = (
        b"[INFO] all is well\n[ERROR] a thing failed, retry 1\n[ERROR] a thing failed, retry 2\n"
        b"warning: no error so far\nTraceback (most recent call last):\n  File x\n"
        b"my.pkg.WidgetError: the widget is bent\nterminate called without an active exception\n"
    )
    told = diagnosis(log)
    assert told.error is None
    assert [hit.line for hit in told.evidence] == [7, 8, 2]


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("显存不足".encode("gb18030"), "显存不足"),
        ("显存不足".encode(), "显存不足"),
        (b"\xff\xfe odd", "\\xff\\xfe odd"),
        ("a\x00b\x08c\u009bd".encode(), "a b c d"),
        ("a\u202eb".encode(), "a b"),
    ],
)
def test_a_line_is_shown_without_what_moves_the_cursor(line: bytes, shown: str) -> None:
    assert readable(line) == shown
