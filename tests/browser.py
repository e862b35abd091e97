"""Chromium without a window, driven over its debugging pipe (DevTools protocol): no package is needed."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)
# The browser reads from descriptor 3 and writes to 4, which may be in use: by way of numbers that are not.
LAUNCHER = """
import fcntl, os, sys
read, write = (fcntl.fcntl(int(number), fcntl.F_DUPFD, 50) for number in sys.argv[1:3])
os.dup2(read, 3)
os.dup2(write, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """One page. `events`: everything the browser has reported, in order."""

    def __init__(self, out: int, back: int) -> None:
        self._out, self._back = out, back
        self._rest, self._number = b"", 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol; its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def open(self, file: Path, width: int, height: int = 900) -> None:
        """Load a file into a window of this size."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self.events.clear()
        self.call("Page.navigate", url=file.absolute().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def screenshot(self, file: Path) -> None:
        """The whole page as PNG."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(shot["data"]))

    def pdf(self, file: Path) -> None:
        """The page as it is printed."""
        file.write_bytes(base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"]))

    def of(self, method: str) -> list[dict[str, Any]]:
        """The parameters of all events of one kind since the page was opened."""
        return [event["params"] for event in self.events if event["method"] == method]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = os.read(self._back, 1 << 16)
            assert part, "the browser has gone"
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser; the test is skipped, with the reason, where there is none."""
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip("no Chromium here (Debian: apt-get install chromium)")
    to_us, from_us = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = [*OPTIONS, f"--user-data-dir={profile}"]
        process = subprocess.Popen(
            [*(sys.executable, "-c", LAUNCHER, str(from_us[0]), str(to_us[1]), program), *options],
            pass_fds=(from_us[0], to_us[1]),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(from_us[0])
        os.close(to_us[1])
        try:
            yield Browser(from_us[1], to_us[0])
        finally:
            process.terminate()
            process.wait(timeout=20)
            os.close(from_us[1])
            os.close(to_us[0])
