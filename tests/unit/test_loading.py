"""A Ctrl-C while a framework is loaded."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.fault_lab import python
from tests.training_lab import project

from tengtune.backends.loading import uninterrupted


def test_it_is_held_back_until_the_block_has_ended() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), uninterrupted():
        os.kill(os.getpid(), signal.SIGINT)
        done.append("whole")
    assert done == ["whole"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_it_comes_out_as_itself_whatever_the_block_ends_with() -> None:
    with pytest.raises(KeyboardInterrupt), uninterrupted():
        os.kill(os.getpid(), signal.SIGINT)
        raise NameError("name 'callback' is not defined")


def test_who_ignores_it_or_has_its_own_way_keeps_it() -> None:
    for own in (signal.SIG_IGN, lambda number, frame: None):
        before = signal.signal(signal.SIGINT, own)
        try:
            with uninterrupted():
                assert signal.getsignal(signal.SIGINT) is own
        finally:
            signal.signal(signal.SIGINT, before)


def test_a_second_one_ends_the_process_at_once() -> None:
    done = python(
        "import os, signal, time\n"
        "from tengtune.backends.loading import uninterrupted\n"
        "with uninterrupted():\n"
        "    for seconds in (0, 0, 1.1):\n"
        "        time.sleep(seconds)\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        print('still there', flush=True)\n"
    )
    # The second comes at once: a launcher that passes the same one on.
    assert (done.returncode, done.stdout, done.stderr) == (130, "still there\nstill there\n", "")


LOADED_WITH_CTRL_C = """
import os, signal, sys
from tengtune.cli.main import main

class Finder:
    "A Ctrl-C when this module is looked for."
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
main(sys.argv[2:])
"""


@pytest.mark.parametrize(
    ("module", "command"),
    [
        (
            "mindspore.train.callback",
            "data convert data.json --to mindrecord --model model --out x.mindrecord",
        ),
        ("mindspore.nn.wrap", "train run.yaml -s backend=mindspore"),
        ("torch.nn", "train run.yaml -s backend=torch"),
    ],
)
def test_a_command_that_is_interrupted_while_it_loads_says_so(
    module: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project(tmp_path)
    monkeypatch.chdir(tmp_path)
    done = python(LOADED_WITH_CTRL_C, module, *command.split(), TENGTUNE_LANG="en")
    assert done.returncode == 130
    assert done.stderr.endswith("warning: Stopped by Ctrl-C.\n")
    assert "Error" not in done.stderr
    assert not list(tmp_path.glob("x.*"))
