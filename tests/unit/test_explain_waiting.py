"""A time-out that names the rank it waited for: that rank is told, and what it died of is the cause.

The sentences are those of HCCL's manuals, of its logs on plog and console, and of MindSpore's scheduler.
"""

from __future__ import annotations

import pytest
from tests.explain_lab import at, diagnosis, found

from tengtune.explain import screen
from tengtune.explain.logs import Account
from tengtune.ui import language as languages
from tengtune.ui.language import Language

NOTIFY = (
    "The wait execution of the Notify register times out. Reason: The Notify register has not received the "
    "Notify record from remote rank"
)
DIED = (
    b'2026-01-15 10:00:00,000 step 3\nTraceback (most recent call last):\n  File "t.py", line 3\n'
    b"KeyError: 'input_ids'\n"
)
WAITS = {
    "older": f"EI0002: [PID: 1] {NOTIFY} [3].base information: [streamID:[14], taskID[4]]",
    "newer": f"Communication_Error_Timeout(EI0002): {NOTIFY}: [3]. base information: [streamID:[14]]",
    "newest": "EI0002: A timeout occurs when the Notify register waits for execution. Waiting peer rank: 3;",
    "link": "EI0006: Getting socket times out.\n\tTransport init error. Reason: [Create][DestLink]Create "
    "Dest error! createLink para:rank[0]-localUserrank[0]-localIpAddr[::1], dst_rank[1]-remoteUserrank[3]",
    "plog link": "Transport init error! createLink para:rank[0]-localUserrank[0]-localIpAddr[10.0.0.1/0], "
    "remoteRank[3]-remoteUserrank[3]-remoteIpAddr[10.0.0.1/3]",
    "table": "wait socket establish timeout, role[1] rank[0] timeout[120 s]\n[ERROR] HCCL   |  10.0.0.9(3)   "
    "|  16666  |   10.0.0.8(0)   |  3234403008  |  client  | time out |   DISABLE  | LinkInfo",
    "scheduler": "The total number of timed out node is 1. Timed out node list is: [const vector]{3}, "
    "worker 3 is the first one timed out, please check its log.",
    "scheduler, short": "The node: 3 is timed out. It may exit with exception, please check this node's log.",
}


@pytest.mark.parametrize("how", WAITS)
def test_the_rank_that_a_text_waits_for_is_named(how: str) -> None:
    told = diagnosis(at("10:10:00", WAITS[how]))
    assert told.detail is not None
    assert told.detail.data == {"absent": [3]}


@pytest.mark.parametrize("how", WAITS)
def test_that_ranks_own_exception_before_is_the_cause(how: str) -> None:
    told = diagnosis(DIED, at("10:10:00", WAITS[how]), names=["rank_3.log", "rank_0.log"])
    assert told.error is not None
    assert (told.error.id, told.error.kind) == ("own_exception", "root")
    assert (told.evidence[0].file, told.evidence[0].line) == ("rank_3.log", 4)
    assert {hit.file for hit in told.also} == {"rank_0.log"}


@pytest.mark.parametrize(
    "name",
    ["rank_3.log", "worker_3.log", "log/rank_3/error.log", "attempt_0/3/stderr.log", "device-3/plog_1.log"],
)
def test_a_ranks_log_is_known_by_its_path(name: str) -> None:
    assert found_with(name, DIED) == "own_exception"


@pytest.mark.parametrize("died", [b"[rank3]: KeyError: 'a'\n", b"[default3]:KeyError: 'a'\n"])
def test_a_console_marks_the_rank(died: bytes) -> None:
    assert found(died + at("10:10:00", WAITS["older"])) == "own_exception"


@pytest.mark.parametrize(
    ("name", "died"),
    [
        ("rank_2.log", DIED),  # another rank's
        ("x.log", DIED),  # nobody knows whose
        ("rank_3.log", DIED.replace(b"10:00:00", b"10:20:00")),  # later
    ],
)
def test_another_exception_is_not_the_cause(name: str, died: bytes) -> None:
    assert found_with(name, died) == "ei0002"


def test_a_known_error_of_that_rank_is_told_as_what_it_is() -> None:
    died = b"2026-01-15 10:00:00,000 x\nModuleNotFoundError: No module named 'einops'\n"
    assert found_with("rank_3.log", died) == "no_module"
    assert found_with("rank_3.log", b"Killed\n") == "sigkill"  # without a time
    assert found_with("rank_3.log", DIED + b"OSError: [Errno 28] No space left on device\n") == "disk"


def test_of_a_chain_of_exceptions_the_first_is_the_cause() -> None:
    chain = DIED + b"During handling of the above exception, another:\nRuntimeError: step failed\n"
    told = diagnosis(
        b"my.Error: a retry\n" + b"x\n" * 100 + chain, waiting(), names=["rank_3.log", "rank_0.log"]
    )
    assert [hit.line for hit in told.evidence[:2]] == [105, 107]


def test_a_rank_that_waits_itself_is_not_the_one() -> None:
    """0 waits for 1, 1 for 3, 3 for nobody."""
    logs = [at("10:10:00", f"EI0002: {NOTIFY} [{other}].", own) for own, other in ((0, 1), (1, 3))]
    detail = diagnosis(*logs).detail
    assert detail is not None
    assert detail.data == {"absent": [3]}


def test_a_ring_in_which_all_wait_names_nobody() -> None:
    logs = [at("10:10:00", f"EI0002: {NOTIFY} [{(own + 1) % 3}].", own) for own in range(3)]
    assert diagnosis(*logs).detail is None
    unnamed = b"".join(f"EI0002: {NOTIFY} [{other}].\n".encode() for other in range(2))
    assert diagnosis(unnamed).detail is None


@pytest.mark.parametrize("rank", ["unknown", "4294967295", "local"])
def test_a_rank_that_hccl_does_not_know_is_not_named(rank: str) -> None:
    assert diagnosis(at("10:10:00", f"EI0002: {NOTIFY} [{rank}].base")).detail is None


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_screen_names_rank_and_log(language: Language, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(languages, "current", lambda: language)
    shown = screen.text(Account(diagnosis(waiting()), 1, 1, 99))
    assert "rank_3.log" in shown
    shown = screen.text(Account(diagnosis(DIED, waiting(), names=["rank_3.log", "x.log"]), 2, 5, 99))
    assert "rank 3" in shown.lower()
    assert "KeyError: 'input_ids'" in shown


def waiting() -> bytes:
    return at("10:10:00", WAITS["older"])


def found_with(name: str, died: bytes) -> str | None:
    error = diagnosis(died, waiting(), names=[name, "rank_0.log"]).error
    return error.id if error else None
