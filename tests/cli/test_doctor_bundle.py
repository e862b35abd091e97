"""tengtune doctor --collect and --from BUNDLE: the same verdicts, nothing private, nothing hostile."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_doctor import BF16, FIXTURES, RUN
from tests.host_lab import ASCEND, FakeHost, Held, healthy, table

from tengtune.cli.main import main

Patch = pytest.MonkeyPatch


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return healthy(tmp_path / "host")


def doctor(folder: Path, *arguments: str) -> tuple[int, str, str]:
    """The command in this process: exit code, what it says, and what it notes."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(folder)
        with pytest.raises(SystemExit) as end:
            main(["doctor", *arguments])
    return int(end.value.code or 0), out.getvalue(), err.getvalue()


def result(folder: Path, *arguments: str) -> dict[str, Any]:
    _, out, _ = doctor(folder, *arguments, "--json")
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def contents(bundle: Path) -> dict[str, bytes]:
    with tarfile.open(bundle) as tar:
        return {each.name: tar.extractfile(each).read() for each in tar if each.isfile()}  # type: ignore[union-attr]


def unwell(host: FakeHost) -> None:
    host.says("npu-smi info", table(health={3: "Warning", 5: "Alarm"}, held=(Held(2, 43000), Held(6, 9000))))
    said = (FIXTURES / "npu-smi" / "sub_health_warning_80E01801.txt").read_text()
    host.says("npu-smi info -t health -i 3", said)


def unlike(host: FakeHost) -> None:
    """Versions of four numbers, which look like addresses."""
    host.driver("24.1.0.3", firmware="[7.0.0,7.6.99]")
    host.file(f"{ASCEND}/firmware/version.info", "Version=7.8.0.2\n")
    host.cann("8.3.0.1", mark="C99")


def inside_a_home(host: FakeHost) -> None:
    site = "home/wang/venv/lib/python3.11/site-packages"
    host.package("torch", "2.7.1", site=site)
    host.package("torch_npu", "2.6.0.post3", "torch==2.6.0+cpu", site=site)
    host.package("mindspore", "2.7.1", arch="x86_64", site=site)
    home = "/home/wang/Ascend/ascend-toolkit/latest"
    (host.root / "home/wang/Ascend").symlink_to("/usr/local/Ascend")
    host.environment(
        VIRTUAL_ENV="/home/wang/venv",
        ASCEND_HOME_PATH=home,
        LD_LIBRARY_PATH=f"{home}/lib64",
        HCCL_BUFFSIZE="many",
    )


def without_packages(host: FakeHost) -> None:
    for path in host.root.glob("usr/local/lib/python3.10/site-packages/*/METADATA"):
        path.unlink()


def in_a_container(host: FakeHost) -> None:
    host.file(".dockerenv", "")
    host.says("ls -l /dev", "total 0\ncrw-rw-rw- 1 root root 1, 3 Nov 20 10:00 null\n")
    host.environment(ASCEND_HOME_PATH="", LD_LIBRARY_PATH="", ASCEND_RT_VISIBLE_DEVICES="3,9")


def old_library(host: FakeHost) -> None:
    host.says("uname -m", "x86_64\n")
    host.package("mindspore", "2.7.1", arch="x86_64")
    host.file("usr/lib64/libstdc++.so.6", b"\x7fELF\0GLIBCXX_3.4.9\0GLIBCXX_3.4.19\0" + bytes(100))


def closed(host: FakeHost) -> None:
    host.nodes(mode="rw-rw----", group="wangs")
    host.user(groups="1000")
    host.remove("etc/hccn.conf")
    (host.root / "etc/hccn.conf").mkdir()


def wrong_conf(host: FakeHost) -> None:
    host.file("etc/hccn.conf", "address_0=10.0.0.1\naddress_0=10.0.0.2\n")
    host.ports = lambda *a: None  # type: ignore[method-assign, assignment]


def on_the_bus(host: FakeHost) -> None:
    host.remove("bin/npu-smi_info.txt", "bin/lspci_-nn.txt", f"{ASCEND}/driver/version.info")
    devices = [("0x19e5", "0xd802"), ("0x19e5", "0xd802"), ("0x19e5", "0x1234"), ("0x8086", "0x9999")]
    (host.root / "sys/bus/pci/devices").mkdir(parents=True)
    for number, (vendor, device) in enumerate(devices):
        name = f"devices/pci0000:00/0000:c{number}:00.0"
        host.file(f"sys/{name}/vendor", f"{vendor}\n")
        host.file(f"sys/{name}/device", f"{device}\n")
        (host.root / f"sys/bus/pci/devices/0000:c{number}:00.0").symlink_to(f"../../../{name}")


def hanging(host: FakeHost) -> None:
    host.remove("bin/npu-smi_info.txt")
    host.does("npu-smi", "echo begun; sleep 600")


def first_generation(host: FakeHost) -> None:
    host.says("npu-smi info", table("910B", total=32768, idle=1, ddr=15137))
    host.cann("8.3.RC1", kernels=("ascend910",))


STORIES: list[tuple[Callable[[FakeHost], None] | None, str]] = [
    (None, BF16 + "parallel: {ranks: 8}\n"),
    (unwell, RUN + "parallel: {ranks: 8}\n"),
    (unlike, ""),
    (inside_a_home, RUN),
    (without_packages, ""),
    (in_a_container, ""),
    (old_library, ""),
    (closed, RUN + "parallel: {ranks: 16, nodes: 2}\n"),
    (wrong_conf, ""),
    (on_the_bus, ""),
    (hanging, ""),
    (first_generation, BF16 + "parallel: {ranks: 3}\n"),
]


NAMES = [story.__name__ if story else "well" for story, _ in STORIES]


@pytest.mark.parametrize(("story", "run"), STORIES, ids=NAMES)
def test_a_bundle_is_judged_as_the_host_is(
    story: Callable[[FakeHost], None] | None, run: str, host: FakeHost, tmp_path: Path
) -> None:
    if story:
        story(host)
    arguments = ["--from", str(host.root), "--timeout", "0.4"]
    if run:
        (tmp_path / "run.yaml").write_text(run, "utf-8")
        arguments.insert(0, "run.yaml")
    before = result(tmp_path, *arguments)
    code, _, notes = doctor(tmp_path, *arguments, "--collect", "host.tar.gz")
    assert code == (0 if before["fit"] else 3)
    assert "judged otherwise" not in notes
    (tmp_path / "elsewhere").mkdir()
    after = result(tmp_path / "elsewhere", "--from", "../host.tar.gz")
    assert [(each["level"], each["check"]) for each in after["findings"]] == [
        (each["level"], each["check"]) for each in before["findings"]
    ]
    assert after["cards"] == before["cards"]
    assert after["fit"] == before["fit"]
    plain = [re.sub(r"wangs?|user-\d", "*", each["what"]) for each in before["findings"]]
    assert [re.sub(r"wangs?|user-\d", "*", each["what"]) for each in after["findings"]] == plain
    files = contents(tmp_path / "host.tar.gz")
    assert b"wang" not in b"".join([*files.values(), *map(str.encode, files)])


def test_what_is_private_is_masked_alike(host: FakeHost, tmp_path: Path, monkeypatch: Patch) -> None:
    """In the shell's variables, the run file, its log and the cards' logs. With one key: 11 of 256 make
    an address that begins with 192.168.7, too."""
    monkeypatch.setattr("tengtune.host.mask.secrets.token_bytes", bytes)
    host.environment(
        HCCL_IF_IP="192.168.7.21", ASCEND_PROCESS_LOG_PATH="/home/wang/plog", HF_TOKEN="hf_" + "Z9" * 17,
        MASTER_ADDR="trainer7.corp.example", TENGTUNE_PASSWORD="correct horse",
    )  # fmt: skip
    plog = (
        "[EVENT] HCCL local 192.168.7.21 remote 192.168.7.22 nic 52:54:00:12:34:56 fe80::5054:ff:fe12:3456\n"
    )
    host.file("home/wang/plog/debug/plog/plog-12_2026.log", plog + "token of trainer7: correct horse\n")
    (host.root / "home/wang/plog/plog-99_link.log").symlink_to("/etc/shadow")
    host.file("etc/shadow", "root:secret-of-the-machine\n")
    (tmp_path / "run.yaml").write_text(
        RUN + "output: {dir: runs}\n# for li@gpu3 api_key=abc123def\n", "utf-8"
    )
    (tmp_path / "runs/run/log").mkdir(parents=True)
    (tmp_path / "runs/run/log/train.log").write_text(
        "GET https://zhao:geheim99@hub.example/x from 10.0.0.13\n"
    )
    _, _, notes = doctor(tmp_path, "run.yaml", "--from", str(host.root), "--collect", "host.tar.gz")
    files = contents(tmp_path / "host.tar.gz")
    everything = b"\n".join([*files.values(), *(name.encode() for name in files)]).decode("utf-8", "replace")
    private = (
        "wang", "trainer7", "192.168.7", "52:54:00", "5054:ff", "correct horse", "Z9Z9", "li@", "gpu3",
        "abc123def", "geheim99", "zhao", "10.0.0.", "secret-of-the-machine",
    )  # fmt: skip
    assert [each for each in private if each in everything] == []
    conf = re.findall(r"address_\d=(\S+)", files["etc/hccn.conf"].decode())
    assert len(set(conf)) == 8
    assert len({ip_network(f"{each}/24", strict=False) for each in conf}) == 1
    log = files["tengtune/log/train.log"].decode()
    assert conf[3] in log, "the same address, 10.0.0.13, is the same afterwards"
    assert "Masked: " in notes
    assert "look through it" in notes


def test_a_line_that_is_cut_is_left_out(host: FakeHost, tmp_path: Path) -> None:
    """Half a token looks like none."""
    token = "hf_" + "Q7" * 17
    steps = "step\n" * ((256 << 10) // 5 + 10)
    begin = steps[: (256 << 10) - 12]
    host.file("home/wang/ascend/log/plog/plog-1_2.log", f"{begin}\n{token}\n{steps}")
    (tmp_path / "run.yaml").write_text(RUN + "output: {dir: runs}\n", "utf-8")
    (tmp_path / "runs/run/log").mkdir(parents=True)
    (tmp_path / "runs/run/log/train.log").write_text(f"{steps}{token}\n{steps[: (256 << 10) - 13]}\n")
    doctor(tmp_path, "run.yaml", "--from", str(host.root), "--collect", "host.tar.gz")
    files = contents(tmp_path / "host.tar.gz")
    logs = {name: text for name, text in files.items() if name.endswith(".log")}
    assert len(logs) == 2
    assert all(b"Q7" not in text and text.startswith(b"step\n") for text in logs.values())


def test_the_files_own_name_is_not_in_it(host: FakeHost, tmp_path: Path) -> None:
    doctor(tmp_path, "--from", str(host.root), "--collect", "of-wang-and-zhao.tar.gz")
    assert b"zhao" not in (tmp_path / "of-wang-and-zhao.tar.gz").read_bytes()


def test_other_makers_devices_are_left_out(host: FakeHost, tmp_path: Path) -> None:
    on_the_bus(host)
    doctor(tmp_path, "--from", str(host.root), "--collect", "host.tar.gz")
    files = contents(tmp_path / "host.tar.gz")
    assert "sys/devices/pci0000:00/0000:c2:00.0/device" in files
    assert b"c3:00.0" not in b"".join([*files.values(), *map(str.encode, files)])


def test_a_bundle_of_a_bundle(host: FakeHost, tmp_path: Path) -> None:
    """What hangs and what is linked is handed on."""
    hanging(host)
    before = doctor(tmp_path, "--from", str(host.root), "--timeout", "0.4", "--collect", "1.tar.gz", "--json")
    for number in (1, 2):
        arguments = ["--from", f"{number}.tar.gz", "--collect", f"{number + 1}.tar.gz", "--json"]
        code, out, notes = doctor(tmp_path, *arguments)
        assert code == before[0]
        assert "differs" not in out + notes
        found, wanted = (json.loads(text.splitlines()[-1])["findings"] for text in (out, before[1]))
        assert [each["check"] for each in found] == [each["check"] for each in wanted]


def test_an_existing_file_stays(host: FakeHost, tmp_path: Path) -> None:
    arguments = ["--from", str(host.root), "--collect", "host.tar.gz"]
    (tmp_path / "host.tar.gz").write_text("mine")
    code, _, notes = doctor(tmp_path, *arguments)
    assert code == 2
    assert "--force" in notes
    assert (tmp_path / "host.tar.gz").read_text() == "mine"
    assert doctor(tmp_path, *arguments, "--force")[0] == 0
    assert "tengtune/bundle.json" in contents(tmp_path / "host.tar.gz")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["host", "host.tar.gz"]


def test_this_machine(tmp_path: Path) -> None:
    """Its own verdicts come back, and none of its variables but those of a training."""
    command = [sys.executable, "-m", "tengtune", "doctor", "--json"]
    environment = os.environ | {"MY_DIARY": "dear diary", "GH_TOKEN": "ghp_" + "q" * 36}
    done = subprocess.run(
        [*command, "--collect", "host.tar.gz"],
        capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path, env=environment,
    )  # fmt: skip
    before = json.loads(done.stdout.splitlines()[-1])
    after = result(tmp_path, "--from", "host.tar.gz")
    assert [each["check"] for each in after["findings"]] == [each["check"] for each in before["findings"]]
    everything = b"".join(contents(tmp_path / "host.tar.gz").values())
    assert b"diary" not in everything
    assert b"qqqq" not in everything
    assert not re.search(rb"\b%s\b" % re.escape(os.uname().nodename.encode()), everything)


def test_probes_come_along(host: FakeHost, tmp_path: Path, monkeypatch: Patch) -> None:
    from tengtune.doctor import saved
    from tengtune.doctor.finding import block
    from tengtune.ui.console import Console

    values = {
        "place": "card 3",
        "framework": "PyTorch",
        "trial": "loading",
        "reason": "on 10.0.0.13",
        "advice": "x",
    }
    monkeypatch.chdir(tmp_path)
    with saved.source(host.root, 10) as source:
        case, findings = saved.judge(source, None)
        findings.append(block("doctor.probe_died", **values))
        saved.collect(Path("host.tar.gz"), source, case, findings, Console("quiet"), False)
    last = result(tmp_path, "--from", "host.tar.gz")["findings"][-1]
    assert (last["level"], last["check"]) == ("block", "probe_died")
    assert last["what"] == "probe, card 3, PyTorch: the process died in: loading"
    assert last["why"] != values["reason"]


def test_a_saved_host_is_not_probed(host: FakeHost, tmp_path: Path) -> None:
    code, _, notes = doctor(tmp_path, "--from", str(host.root), "--probe")
    assert code == 2
    assert "cannot be probed" in notes


def packed(members: Iterable[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as tar:
        for member, content in members:
            member.size = len(content) if member.isreg() else 0
            tar.addfile(member, io.BytesIO(content))
    return data.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, target, 0o755
    return info


def manifest(**changes: object) -> tuple[tarfile.TarInfo, bytes]:
    tree = {"version": 1, "seconds": 10.0, "links": {}, "faults": {}, "run": None, "probes": []}
    return member("tengtune/bundle.json"), json.dumps(tree | changes).encode()


def one_folder() -> bytes:
    """A member of a tar, as it lies in it."""
    return gzip.decompress(packed([(member("a", tarfile.DIRTYPE), b"")]))[:512]


HOSTILE: dict[str, Callable[[], bytes]] = {
    "dots": lambda: packed([manifest(), (member("etc/../../evil"), b"x")]),
    "absolute": lambda: packed([manifest(), (member("/tmp/evil"), b"x")]),
    "symlink": lambda: packed([manifest(), (member("etc", tarfile.SYMTYPE, "/etc"), b"")]),
    "hard link": lambda: packed([manifest(), (member("a", tarfile.LNKTYPE, "/etc/passwd"), b"")]),
    "pipe": lambda: packed([manifest(), (member("etc/hccn.conf", tarfile.FIFOTYPE), b"")]),
    "device": lambda: packed([manifest(), (member("dev/davinci0", tarfile.CHRTYPE), b"")]),
    "twice": lambda: packed([manifest(), (member("a"), b"x"), (member("a"), b"y")]),
    "below a file": lambda: packed([manifest(), (member("a"), b"x"), (member("a/b"), b"y")]),
    "long name": lambda: packed([manifest(), (member("n" * 3000), b"x")]),
    "bomb": lambda: gzip.compress(bytes(80 << 20), 9),
    "big file": lambda: packed([manifest(), (member("proc/cpuinfo"), bytes(5 << 20))]),
    "many files": lambda: gzip.compress(one_folder() * 4001),
    "cut": lambda: packed([manifest(), (member("a"), os.urandom(9000))])[:4000],
    "no gzip": lambda: b"hello",
    "empty": lambda: b"",
    "no manifest": lambda: packed([(member("a"), b"x")]),
    "other version": lambda: packed([manifest(version=2)]),
    "deep": lambda: packed([(member("tengtune/bundle.json"), b"[" * 100_000)]),
    "links are no texts": lambda: packed([manifest(links={"/a": 5})]),
    "run elsewhere": lambda: packed([manifest(run={"file": "../../x", "overrides": [], "weights": 0})]),
    "foreign probe": lambda: packed([manifest(probes=[["ok", "doctor.chip", {}]])]),
    "probe without values": lambda: packed([manifest(probes=[["ok", "doctor.probe_load", {}]])]),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_bundles_are_refused(kind: str, tmp_path: Path) -> None:
    (tmp_path / "host.tar.gz").write_bytes(HOSTILE[kind]())
    code, out, notes = doctor(tmp_path, "--from", "host.tar.gz")
    assert code == 2, out
    assert "Problem" in notes
    assert [path.name for path in tmp_path.iterdir()] == ["host.tar.gz"]
    assert not (tmp_path.parent / "evil").exists()


def test_nothing_of_a_bundle_is_run_or_leads_out(tmp_path: Path) -> None:
    """A program in it is not started, and its links stay inside."""
    script = f"#!/bin/sh\ntouch {tmp_path}/started\n".encode()
    links = {"/etc/os-release": "/../../../../../../../etc/os-release", "/proc/cpuinfo": "/proc/cpuinfo"}
    data = packed([manifest(links=links), (member("bin/npu-smi"), script)])
    (tmp_path / "host.tar.gz").write_bytes(data)
    found = result(tmp_path, "--from", "host.tar.gz")
    checks = [each["check"] for each in found["findings"]]
    assert "machine_unread" in checks
    assert not (tmp_path / "started").exists()
