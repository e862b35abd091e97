"""What makes a line suspicious though it tells of no error that we know. None of it is a diagnosis."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tengtune.explain.known import CODINGS
from tengtune.explain.sieve import SHORTEST

Suspicion = tuple[int, re.Pattern[bytes]]
HINT = 1
"""How suspicious a line is that only says that something stands below it."""
_ANYWAY = re.compile(b"")

_ENGLISH: Mapping[bytes, Suspicion] = {
    rb"Error": (5, re.compile(rb"(?:^|[\s\]:])[A-Za-z_][\w.]*Error\b(?:: |$)")),
    rb"Exception": (5, re.compile(rb"(?:^|[\s\]:])[A-Za-z_][\w.]*Exception\b(?:: |$)")),
    rb".exceptions.": (5, re.compile(rb"(?:^|[\s\]:])(?:\w+\.)+[A-Z]\w*(?:: |$)")),
    rb"Timeout": (5, re.compile(rb"(?:^|[\s\]:])(?:\w+\.)+[A-Z]\w*Timeout(?:Expired)?(?:: |$)")),
    rb"Segmentation fault": (5, _ANYWAY),
    rb"core dumped": (5, _ANYWAY),
    rb"terminate called": (5, _ANYWAY),
    rb"Killed": (4, re.compile(rb"\bKilled\b")),
    rb"KeyboardInterrupt": (4, _ANYWAY),
    rb"FATAL": (4, re.compile(rb"\bFATAL\b")),
    rb"Fatal": (4, re.compile(rb"\bFatal\b")),
    rb"CRITICAL": (4, re.compile(rb"\bCRITICAL\b")),
    rb"ERROR": (3, re.compile(rb"\bERROR\b")),
    rb"Aborted": (3, re.compile(rb"\bAborted\b")),
    rb"out of memory": (3, _ANYWAY),
    rb"command not found": (3, _ANYWAY),
    rb"error": (2, re.compile(rb"(?i)\berror\b")),
    rb"ailed": (2, re.compile(rb"(?i)\bfailed\b")),
    rb"FAILED": (2, re.compile(rb"\bFAILED\b")),
    rb"abort": (2, re.compile(rb"(?i)\babort")),
    rb"No such file or dir": (2, _ANYWAY),
    rb"ermission denied": (2, _ANYWAY),
    rb"imed out": (2, re.compile(rb"(?i)\btimed out\b")),
    rb"onnection refused": (2, _ANYWAY),
    rb"Traceback (most recent": (HINT, _ANYWAY),
}
_CHINESE = {
    **dict.fromkeys(("错误：", "错误:", "[错误]", "【错误】", "失败：", "失败:", "异常：", "异常:"), 3),
    **dict.fromkeys(("训练失败", "启动失败", "加载失败", "保存失败", "连接失败", "运行失败", "执行失败"), 3),
    **dict.fromkeys(("内存不足", "显存不足", "掉卡", "未找到命令", "核心已转储", "异常退出", "异常终止"), 3),
    **dict.fromkeys(("没有那个文件或目录", "权限不够", "连接超时", "拒绝连接", "报错：", "报错:"), 2),
}
"""As tools and launch scripts write; a word alone is too short to be looked for in GB 18030."""


def _both_codings() -> dict[bytes, Suspicion]:
    """A count of none ("失败：0") is not suspicious."""
    texts = {text.encode(coding): score for text, score in _CHINESE.items() for coding in CODINGS}
    return {
        text: (score, re.compile(re.escape(text) + rb"(?!\s*0(?![.\d]))"))
        for text, score in texts.items()
        if len(text) >= SHORTEST
    }


SUSPICIOUS: Mapping[bytes, Suspicion] = {**_ENGLISH, **_both_codings()}
"""Text -> how suspicious a line with it is, from 1 to 5, and what must match besides."""
