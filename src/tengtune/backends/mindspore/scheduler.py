"""The scheduler of MindSpore's dynamic cluster: `python -m tengtune.backends.mindspore.scheduler PID`.

It brings the ranks together, and ends with them, or with the process PID that started it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress


def main() -> None:
    """Serve until all ranks have left."""
    # What asks the ranks to end reaches their whole process group; they need us until they have saved.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _leave_with(int(sys.argv[1]))
    import mindspore

    mindspore.set_device("CPU")
    with suppress(RuntimeError):  # a rank is gone: the launcher tells which, and why
        mindspore.communication.init()


def _leave_with(parent: int) -> None:
    """End at once when the process that started this one is gone: nobody would notice what is left."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(0)

    threading.Thread(target=watch, name="parent", daemon=True).start()


if __name__ == "__main__":
    main()
