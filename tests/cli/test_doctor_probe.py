"""tengtune doctor --probe: what the probes of a host's cards give, and the real ones on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from tests.host_lab import FakeHost, Held, healthy, table
from tests.tiny import tiny_model

from tengtune.doctor import probe, trial
from tengtune.doctor.finding import Case, Finding
from tengtune.host.place import Place
from tengtune.host.survey import survey
from tengtune.ui.console import Console

Patch = pytest.MonkeyPatch

STAND_IN = """\
#!/bin/bash
# python -X faulthandler -m MODULE DEVICE ANSWERS TRIAL...
module=$4 device=$5 answers=$6; shift 6
echo "$module $device ${ASCEND_RT_VISIBLE_DEVICES-none} ${RANK-alone}/${WORLD_SIZE-} $*" >>"LOG"
say() { echo "$1" >>"$answers"; }
say '{"begins": "load"}'
say '{"ended": "load", "version": "2.7.1", "device": "npu:0", "name": "Ascend910B3", "count": 1}'
for trial; do
  say "{\\"begins\\": \\"$trial\\"}"
  ERROR=0.0001
  TRYING
  say "{\\"ended\\": \\"$trial\\", \\"error\\": $ERROR, \\"limit\\": 0.01}"
done
say '{"done": true}'
"""


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return healthy(tmp_path / "host")


class Probed:
    """What doctor --probe finds on a host's cards when the programs do as `trying` says in shell."""

    def __init__(self, host: FakeHost, patch: Patch, trying: str = "", seconds: float = 30) -> None:
        python, log = host.root.parent / "python", host.root.parent / "started"
        text = STAND_IN.replace("TRYING", trying or ":").replace("LOG", str(log))
        python.write_text(text, "utf-8")
        python.chmod(0o755)
        patch.setattr(sys, "executable", str(python))
        case = Case(survey(Place(host.root), host.root))
        self.findings = list(probe.check(case, Console("quiet"), seconds))
        self.started = sorted(log.read_text("utf-8").splitlines()) if log.exists() else []

    @property
    def faults(self) -> dict[str, str]:
        return {each.code: each.level for each in self.findings if each.level != "ok"}

    def one(self, code: str) -> Finding:
        (found,) = [each for each in self.findings if each.code == f"doctor.{code}"]
        return found


def test_each_card_alone_then_two_together(host: FakeHost, monkeypatch: Patch) -> None:
    host.says("npu-smi info", table(count=4))
    monkeypatch.setenv("RANK", "7")
    found = Probed(host, monkeypatch)
    module, trials = "tengtune.backends.torch.probe npu", "product_float16 product_bfloat16 attention fused"
    alone = [f"{module} {card} alone/ {trials}" for card in range(4)]
    assert found.started == sorted([*alone, f"{module} 0,1 0/2 sum", f"{module} 0,1 1/2 sum"])
    assert found.faults == {}
    assert [each.texts()["what"] for each in found.findings] == [
        "probe, card 0, 1, 2, 3: PyTorch 2.7.1 (Ascend910B3) loads",
        *(
            f"probe, card 0, 1, 2, 3, PyTorch: {trial}: right (off by 1.0e-04, 1.0e-02 allowed)"
            for trial in (
                "float16 products against float32",
                "bfloat16 products against float32",
                "attention against its formula",
                "fused attention against plain attention",
            )
        ),
        "probe, card 0, 1, PyTorch: the sum over 2 processes (all-reduce): right "
        "(off by 1.0e-04, 1.0e-02 allowed)",
    ]


def test_the_first_generation_is_not_asked_for_bfloat16(host: FakeHost, monkeypatch: Patch) -> None:
    host.says("npu-smi info", table("910A", count=2, total=32768, idle=1, ddr=15137))
    found = Probed(host, monkeypatch)
    assert not any("bfloat16" in line for line in found.started)
    assert "do not have it" in found.one("probe_without_bf16").texts()["what"]


def test_held_cards_are_left_alone(host: FakeHost, monkeypatch: Patch) -> None:
    host.says("npu-smi info", table(count=3, held=(Held(0, 40000),)))
    found = Probed(host, monkeypatch)
    assert {line.split()[2] for line in found.started} == {"1", "2", "1,2"}
    assert found.faults == {"doctor.probe_held": "unknown"}


def test_the_shells_choice_of_cards_holds(host: FakeHost, monkeypatch: Patch) -> None:
    host.environment(ASCEND_RT_VISIBLE_DEVICES="5")
    found = Probed(host, monkeypatch)
    assert {line.split()[2] for line in found.started} == {"5"}
    assert found.one("probe_one").level == "ok"


def test_cards_that_npu_smi_does_not_show(host: FakeHost, monkeypatch: Patch) -> None:
    """Their nodes tell of them; without those one is tried, which says why there is none."""
    host.says("npu-smi info", "dcmi model initialized failed, because the device is used. ret is -8020\n")
    host.nodes(count=2)
    assert {line.split()[2] for line in Probed(host, monkeypatch).started} == {"0", "1", "0,1"}
    host.nodes(count=0)
    (host.root.parent / "started").unlink()
    assert {line.split()[2] for line in Probed(host, monkeypatch).started} == {"0"}


def test_a_wrong_product_on_one_card(host: FakeHost, monkeypatch: Patch) -> None:
    host.says("npu-smi info", table(count=2))
    found = Probed(
        host, monkeypatch, '[ "$ASCEND_RT_VISIBLE_DEVICES $trial" = "1 product_float16" ] && ERROR=0.5'
    )
    texts = found.one("probe_wrong").texts()
    assert found.faults == {"doctor.probe_wrong": "block"}
    assert texts["what"] == "probe, card 1, PyTorch: float16 products against float32: wrong"
    assert "5.0e-01" in texts["why"]
    assert "1.0e-02" in texts["why"]
    assert (
        "`ASCEND_RT_VISIBLE_DEVICES=1 python -X faulthandler -m tengtune.backends.torch.probe npu"
        in texts["fix"]
    )


def test_a_process_that_crashes(host: FakeHost, monkeypatch: Patch) -> None:
    host.says("npu-smi info", table(count=1))
    said = "RuntimeError: EI0006: Getting socket times out"
    crash = f'[ $trial = attention ] && {{ echo "{said}" >&2; kill -SEGV $$; }}'
    found = Probed(host, monkeypatch, crash)
    texts = found.one("probe_died").texts()
    assert found.faults == {"doctor.probe_died": "block"}
    assert "died in: attention against its formula" in texts["what"]
    assert texts["why"].startswith("Segmentation fault: ")
    assert "EI0006" in texts["why"]
    assert len(texts["fix"]) > 20


@pytest.mark.parametrize(
    ("said", "why", "fix"),
    [
        ("E40021: Failed to compile Op [x]. No module named 'decorator'", "decorator", "install decorator`"),
        ("Traceback (most recent call last):\n  lab.Bent: by hand", "lab.Bent: by hand", ""),
    ],
)
def test_why_a_process_died_is_said_and_the_package_is_named(
    host: FakeHost, monkeypatch: Patch, said: str, why: str, fix: str
) -> None:
    host.says("npu-smi info", table(count=1))
    lines = "; ".join(f'echo "{line}" >&2' for line in said.splitlines())
    died = Probed(host, monkeypatch, f"[ $trial = attention ] && {{ {lines}; exit 1; }}").one("probe_died")
    assert why in died.texts()["why"]
    assert fix in died.texts()["fix"]


def test_a_probe_that_hangs(host: FakeHost, monkeypatch: Patch) -> None:
    """It is killed with what it started, and the sum over both cards is not tried."""
    host.says("npu-smi info", table(count=2))
    asleep = "{ sleep 600 & echo $! >../sleeping; wait; }"
    hang = f'[ "$ASCEND_RT_VISIBLE_DEVICES $trial" = "1 attention" ] && {asleep}'
    monkeypatch.chdir(host.root)
    found = Probed(host, monkeypatch, hang, seconds=1)
    assert found.faults == {"doctor.probe_hangs": "unknown"}
    assert "nothing for 1 s in: attention" in found.one("probe_hangs").texts()["what"]
    assert not any(line.endswith("sum") for line in found.started)
    sleeping = Path("/proc", (host.root.parent / "sleeping").read_text("utf-8").strip(), "stat")
    with suppress(OSError):  # killed, and soon gone
        while " Z " not in sleeping.read_text("utf-8"):
            time.sleep(0.02)


def test_a_probe_that_prints_without_end(host: FakeHost, monkeypatch: Patch) -> None:
    """It is killed long before the time is over, and its disk is not full."""
    host.says("npu-smi info", table(count=1))
    monkeypatch.setattr(trial, "MOST_SAID", 1 << 16)
    found = Probed(host, monkeypatch, "[ $trial = attention ] && yes", seconds=3600)
    assert found.faults == {"doctor.probe_hangs": "unknown"}


def test_who_failed_is_told_and_not_who_waited(host: FakeHost, monkeypatch: Patch) -> None:
    host.says("npu-smi info", table(count=2))
    fail = """case "$trial $RANK" in
      "sum 1") echo "ValueError: bad link" >&2; exit 1;;
      "sum 0") sleep 60;; esac"""
    found = Probed(host, monkeypatch, fail)
    assert found.faults == {"doctor.probe_died": "block"}
    assert "ValueError: bad link" in found.one("probe_died").texts()["why"]


def test_without_bfloat16_or_the_fused_operator_a_training_goes_on(
    host: FakeHost, monkeypatch: Patch
) -> None:
    host.says("npu-smi info", table(count=1))
    answer = """{"ended": "'$trial'", "failed": "RuntimeError: no", "text": "no"}"""
    fail = f"case $trial in fused|product_bfloat16) say '{answer}'; continue;; esac"
    found = Probed(host, monkeypatch, fail)
    assert found.faults == {"doctor.probe_no_fused": "warn", "doctor.probe_no_bf16": "warn"}
    assert "model.dtype=float16" in found.one("probe_no_bf16").texts()["fix"]


def test_who_is_asked_to_end_takes_the_probes_along(tmp_path: Path, monkeypatch: Patch) -> None:
    torch, pid = tmp_path / "site" / "torch" / "__init__.py", tmp_path / "pid"
    torch.parent.mkdir(parents=True)
    text = f"import os, time; open({str(pid)!r}, 'w').write(f'{{os.getpid()}}\\n'); time.sleep(600)\n"
    torch.write_text(text, "utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"), prepend=":")
    doctor = subprocess.Popen([sys.executable, "-m", "tengtune", "doctor", "--probe", "-q"], cwd=tmp_path)
    while not pid.exists() or not pid.read_text("utf-8").endswith("\n"):
        assert doctor.poll() is None
        time.sleep(0.02)
    doctor.terminate()
    assert doctor.wait(60) == 128 + 15
    cmdline = Path("/proc", pid.read_text("utf-8").strip(), "cmdline")
    assert not cmdline.exists() or not cmdline.read_bytes()


def real(folder: Path, backend: str, *arguments: str) -> tuple[int, dict[str, dict[str, str]]]:
    """doctor --probe on this machine: the exit code, and the findings of --json by what they say first."""
    (folder / "run.yaml").write_text(
        f"model: m\ndata: d.json\nbackend: {backend}\nparallel: {{ranks: 2}}\n", "utf-8"
    )
    (folder / "d.json").write_text("[]", "utf-8")
    tiny_model(folder / "m")
    command = [sys.executable, "-m", "tengtune", "doctor", "run.yaml", "--probe", "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=folder)
    assert "Traceback" not in done.stderr
    findings = json.loads(done.stdout.splitlines()[-1])["findings"]
    return done.returncode, {each["what"]: each for each in findings if each["check"].startswith("probe")}


@pytest.mark.parametrize("backend", ["torch", pytest.param("mindspore", marks=pytest.mark.slow)])
def test_the_real_probes_on_the_cpu(backend: str, tmp_path: Path) -> None:
    """Which proves the installation only, and says so."""
    code, found = real(tmp_path, backend)
    assert code == 0
    assert {each["level"] for each in found.values()} == {"ok"}
    checks = [each["check"] for each in found.values()]
    assert checks == ["probe_cpu", "probe_load", *["probe_right"] * (4 if backend == "torch" else 3)]
    assert any("all-reduce" in what for what in found)


def test_a_torch_npu_without_cann(tmp_path: Path, monkeypatch: Patch) -> None:
    """The error's own words, as torch_npu 2.13.0 says them without CANN, and what `explain` knows of them."""
    torch = tmp_path / "site" / "torch" / "__init__.py"
    torch.parent.mkdir(parents=True)
    said = "libhccl.so: cannot open shared object file: No such file or directory"
    torch.write_text(f"raise ImportError({said!r})\n", "utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"), prepend=":")
    code, found = real(tmp_path, "torch")
    (died,) = [each for each in found.values() if each["check"] == "probe_died"]
    assert code == 3
    assert died["level"] == "block"
    assert said in died["why"]
    assert "set_env.sh" in died["fix"]
