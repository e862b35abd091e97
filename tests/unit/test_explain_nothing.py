"""Logs without an error that we know: what is suspicious is shown, and else what kind of nothing it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.explain_lab import STEP, diagnosis, found, read

from tengtune.explain import known, screen
from tengtune.explain.logs import Account, explain
from tengtune.explain.scan import Content

TRACE = "Traceback (most recent call last):"

SUSPICIOUS = [
    "requests.exceptions.TooManyRedirects: Exceeded 30 redirects.",
    "subprocess.TimeoutExpired: Command 'x' timed out after 9 seconds",
    "错误：设备 0 内存不足",
    "训练失败：显存不足",
    "[错误] 昇腾卡 3 掉卡",
    "【错误】rank 1 异常退出",
    "加载失败: /data/x",
    "bash: my-tool: command not found",
    "bash: my-tool: 未找到命令",
    "cat: /data/x: No such file or directory",
    "./run.sh: Permission denied",
    "connect to node2 port 22: Connection refused",
    "Aborted",
    "KeyboardInterrupt",
    TRACE,
]


@pytest.mark.parametrize("text", SUSPICIOUS)
@pytest.mark.parametrize("coding", ["utf-8", "gb18030"])
def test_what_a_person_would_look_at_is_shown(text: str, coding: str) -> None:
    """A warning before it is not; nor is the last word that all went well."""
    told = diagnosis(f"WARNING slow\n{text}\n训练结束 finished successfully\n".encode(coding))
    assert told.error is None
    assert [hit.text for hit in told.evidence] == [text]


@pytest.mark.parametrize(
    "text", ["失败：0", "失败: 0 条，错误：0 条", "epoch 错误率 0.1", "connect_timeout: 30"]
)
@pytest.mark.parametrize("coding", ["utf-8", "gb18030"])
def test_what_says_that_nothing_failed_is_not(text: str, coding: str) -> None:
    assert diagnosis(f"{text}\n".encode(coding)).evidence == []


def test_a_line_that_is_told_as_a_warning_is_not_shown_as_suspicious_too() -> None:
    told = diagnosis(b"x.sh: line 3: npu-smi: command not found\nKeyError: 'a'\n")
    assert [hit.text for hit in told.evidence] == ["KeyError: 'a'"]


def test_a_hint_is_not_shown_beside_what_it_stands_for() -> None:
    told = diagnosis(f"{TRACE}\n  File x\nKeyError: 'a'\n".encode())
    assert [hit.text for hit in told.evidence] == ["KeyError: 'a'"]


@pytest.mark.parametrize("coding", ["utf-8", "gb18030", "utf-8-sig"])
@pytest.mark.parametrize("log", ["昇腾卡 0 正常\n" * 900, "\x1b[31mfine\x1b[0m\r 5%\b\t\f\n", "x"])
def test_a_text_is_a_text(log: str, coding: str) -> None:
    assert read(log.encode(coding)).content == "text"


CONTENTS: dict[bytes, Content] = {
    b"": "empty",
    b" \r\n\t": "empty",
    bytes(9000): "binary",
    bytes(range(256)) * 9: "binary",
    bytes(100_000) + STEP: "text",  # the hole of a log that was cut while written to
    STEP * 9 + b"\0\x01" * 9 + STEP * 9: "text",
}


@pytest.mark.parametrize("log", CONTENTS, ids=range(len(CONTENTS)))
def test_what_a_log_is_is_told(log: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.log").write_bytes(log)
    account = explain([str(tmp_path)], known.load(), print)
    assert account.content == CONTENTS[log]
    assert screen.data(account)["content"] == CONTENTS[log]
    (tmp_path / "y.log").write_bytes(STEP)
    assert explain([str(tmp_path)], known.load(), print).content == "text"


def test_an_error_is_told_whatever_the_rest_is() -> None:
    assert found(bytes(range(256)) * 40 + b"\nNo space left on device\n" + bytes(9000)) == "disk"


def test_only_where_nothing_is_said_at_all_it_is_no_failure() -> None:
    general = diagnosis(b"EZ9999\n")
    assert "ez9999" in screen.text(Account(general, 1, 1, 9))
    assert "looks like a failure" not in screen.text(Account(general, 1, 1, 9))
