"""How long `tengtune explain` takes for a large log, and how much memory; beside it `grep -c` and `cat`.

    python bench/explain.py [--gb 1] [--folder DIR]

The log is made: training lines of every 10 ms, warnings here and there, an error at the end. `noisy` is the
other end: a plog in which every line is an [ERROR], a third of them one that is known.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

BEGIN = datetime(2026, 3, 1)
LAST = (
    b"Traceback (most recent call last):\n"
    b"RuntimeError: NPU out of memory. Tried to allocate 130.00 MiB (NPU 0; 29.50 GiB total capacity; "
    b"28.45 GiB already allocated; 28.45 GiB current active; 31.40 MiB free; 28.67 GiB reserved in total by "
    b"PyTorch)\n[ERROR] 2026-03-08-00:00:00 (PID:1, Device:0, RankID:0) ERR99999 UNKNOWN "
    b"application exception\n"
)


def plain(number: int) -> str:
    when = BEGIN + timedelta(seconds=number / 100)
    if number % 5000 == 4999:
        return f"{when:%Y-%m-%d %H:%M:%S},123 [WARNING] retry of shard {number % 97}, the fetch failed once"
    return (
        f"{when:%Y-%m-%d %H:%M:%S},123 [INFO] [rank{number % 8}] step {number}/9000000"
        f" loss {number % 997 / 99:.4f} lr {1e-5:.3e} grad_norm {number % 89 / 17:.3f}"
        f" tokens/s {11000 + number % 1000} mem 45.2 GiB"
    )


def noisy(number: int) -> str:
    when = f"{BEGIN + timedelta(seconds=number / 100):%Y-%m-%d-%H:%M:%S}.{number % 1000:03}.{number % 991:03}"
    head = f"[ERROR] HCCL({number % 8 + 100},python3):{when} [task_exception_handler.cc:{number % 900}]"
    said = (
        "[TaskExecStage][Timeout][Host]Task run failed",
        "call trace: hcclRet -> 9",
        "EI9999: inner error",
    )
    return f"{head} [{number}]{said[number % 3]}, streamID:[2], taskID[{number % 4000}]"


KINDS = {"plain": plain, "noisy": noisy}


def write(path: Path, kind: str, size: int) -> None:
    """A log of `size` bytes: a part of 64 MB made line by line, as often as it takes, and the end."""
    part = "\n".join(_until(kind, min(size, 64 << 20))).encode() + b"\n"
    with path.open("wb") as stream:
        while stream.tell() + len(part) <= size:
            stream.write(part)
        stream.write(part[: size - stream.tell()] + b"\n" + LAST)


def _until(kind: str, size: int) -> Iterator[str]:
    number = 0
    while size > 0:
        line = KINDS[kind](number)
        yield line
        size -= len(line) + 1
        number += 1


def run(command: list[str]) -> tuple[float, float, bytes]:
    """Seconds by the wall, peak memory (RSS) in MB, and the output."""
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    output = process.stdout.read()
    _, _, usage = os.wait4(process.pid, 0)
    process.returncode = 0
    return time.perf_counter() - begin, usage.ru_maxrss / 1024, output


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gb", type=float, default=1.0)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    tengtune = [sys.executable, "-m", "tengtune", "explain", "--json"]
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        for kind in KINDS:
            log = Path(name, f"{kind}.log")
            made = multiprocessing.get_context("spawn").Process(
                target=write, args=(log, kind, int(options.gb * 1e9))
            )
            made.start()
            made.join()
            commands = {
                "tengtune explain": [*tengtune, str(log)],
                "tengtune explain, .gz": [*tengtune, f"{log}.gz"],
                "grep -c 'out of memory'": ["grep", "-c", "out of memory", str(log)],
                "cat >/dev/null": ["sh", "-c", f"cat '{log}' | wc -c"],
            }
            subprocess.run(["gzip", "-1", "-k", str(log)], check=True)
            run(commands["cat >/dev/null"])  # into the page cache
            for label, command in commands.items():
                seconds, memory, output = run(command)
                said = json.loads(output.splitlines()[-1])["id"] if "tengtune" in label else ""
                print(f"{kind:6} {label:26} {seconds:6.2f} s {memory:6.0f} MB  {said}", flush=True)
            log.unlink()
            Path(f"{log}.gz").unlink()


if __name__ == "__main__":
    main()
