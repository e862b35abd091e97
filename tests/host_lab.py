"""Hosts made of files, as `tengtune doctor --from` reads them: a healthy one, and what stories change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ASCEND = "usr/local/Ascend"
TOOLKIT = f"{ASCEND}/ascend-toolkit/8.3.RC1"
LATEST = "/usr/local/Ascend/ascend-toolkit/latest"
SITE = "usr/local/lib/python3.10/site-packages"
MACHINES = {"aarch64": 0xB7, "x86_64": 0x3E}

EDGE = "+---------------------------+---------------+----------------------------------------------------+"
HEADER = """\
+------------------------------------------------------------------------------------------------+
| npu-smi {version:<17}Version: {version:<53}|
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
"""
ROWS = """\
| {npu:<6}{name:<20}| {health:<14}| 93.2        47                0    / 0             |
| 0                         | 0000:{bus}:00.0  | 0           {spare:<5}/ {ddr:<12}{used:<5}/ {total:<13}|
+===========================+===============+====================================================+
"""
PROCESSES = """\
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
"""
PROCESS = "| {npu:<8}0                 | {pid:<14}| {name:<25}| {memory:<24}|\n"


@dataclass(frozen=True)
class Held:
    """A process on a card."""

    npu: int
    memory: int
    name: str = "python"
    pid: int = 4711


def table(
    name: str = "910B3",
    count: int = 8,
    version: str = "25.3.rc1",
    total: int = 65536,
    idle: int = 3314,
    ddr: int = 0,
    health: Mapping[int, str] | None = None,
    held: tuple[Held, ...] = (),
) -> str:
    """What `npu-smi info` prints."""
    text = HEADER.format(version=version)
    for npu in range(count):
        used = idle + sum(each.memory for each in held if each.npu == npu)
        well = (health or {}).get(npu, "OK")
        values = {"bus": f"{npu + 1:02X}", "spare": min(ddr, 900), "ddr": ddr, "used": used, "total": total}
        text += ROWS.format(npu=npu, name=name, health=well, **values)
    text += PROCESSES
    for npu in range(count):
        rows = [each for each in held if each.npu == npu]
        text += "".join(
            PROCESS.format(npu=npu, pid=each.pid, name=each.name, memory=each.memory) for each in rows
        )
        text += "" if rows else f"| No running processes found in NPU {npu:<61}|\n"
        text += EDGE + "\n"
    return text


class FakeHost:
    """A folder that stands for a host's root."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def file(self, path: str, text: str | bytes) -> None:
        """Write a file of the host."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text if isinstance(text, bytes) else text.encode())

    def says(self, command: str, text: str) -> None:
        """What a command of the host prints."""
        self.file(f"bin/{command.replace(' ', '_').replace('/', '_')}.txt", text)

    def does(self, program: str, script: str) -> None:
        """A stand-in for a program."""
        self.file(f"bin/{program}", f"#!/bin/sh\n{script}\n")
        (self.root / "bin" / program).chmod(0o755)

    def remove(self, *paths: str) -> None:
        """Take files of the host away."""
        for path in paths:
            (self.root / path).unlink()

    def environment(self, **variables: str) -> None:
        """The variables of the shell that set_env.sh made, changed."""
        usual = {
            "HOME": "/home/wang",
            "ASCEND_HOME_PATH": LATEST,
            "LD_LIBRARY_PATH": f"/usr/local/Ascend/driver/lib64:{LATEST}/lib64",
        }
        pairs = [f"{name}={value}" for name, value in (usual | variables).items() if value]
        self.file("proc/self/environ", "\0".join(pairs))

    def driver(self, version: str, mark: str = "C23", firmware: str = "[7.0.0,8.9.9]") -> None:
        """Install a driver; mark: its Innerversion's."""
        self.file(
            f"{ASCEND}/driver/version.info",
            f"Version={version}\nInnerversion=V100R001{mark}SPC002B212\n"
            f"compatible_version=[V100R001C19],[V100R001C22],[V100R001{mark}]\ncompatible_version_fw={firmware}\n",
        )

    def cann(self, version: str, mark: str = "C23", kernels: tuple[str, ...] = ("ascend910b",)) -> None:
        """Install a CANN, in the place of the one that is there."""
        self.file(
            f"{TOOLKIT}/aarch64-linux/ascend_toolkit_install.info",
            f"package_name=Ascend-cann-toolkit\nversion={version}\ninnerversion=V100R001{mark}SPC002B210\n"
            "compatible_version=[V100R001C15],[V100R001C19],[V100R001C23]\narch=aarch64\nos=linux\n",
        )
        line = f"opp_kernel_running_version=[7.8.0:{version}]\n" if kernels else ""
        self.file(
            f"{TOOLKIT}/version.cfg", f"# version: 1.0\nruntime_running_version=[7.8.0:{version}]\n{line}"
        )
        for name in kernels:
            self.file(f"{TOOLKIT}/opp/built-in/op_impl/ai_core/tbe/kernel/{name}/a.json", "{}")

    def package(
        self, name: str, version: str, needs: str = "", arch: str = "aarch64", site: str = SITE
    ) -> None:
        """Install a Python package with one shared library."""
        requires = f"Requires-Dist: {needs}\n" if needs else ""
        self.file(
            f"{site}/{name}-{version}.dist-info/METADATA",
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}",
        )
        head = (
            b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00" + MACHINES[arch].to_bytes(2, "little") + bytes(44)
        )
        self.file(f"{site}/{name}/lib/lib{name}.so", head)

    def nodes(self, count: int = 8, mode: str = "rw-rw----", group: str = "HwHiAiUser") -> None:
        """The driver's device nodes."""
        names = [f"davinci{number}" for number in range(count)]
        rows = [f"c{mode}  1 HwHiAiUser {group} 236, {n} Nov 20 10:00 {name}" for n, name in enumerate(names)]
        rows += [
            f"c{mode}. 1 HwHiAiUser {group} 511, 0 Nov 20 10:00 {name}"
            for name in ("davinci_manager", "devmm_svm", "hisi_hdc")
        ]
        self.says(
            "ls -l /dev", "total 0\ncrw-rw-rw- 1 root root 1, 3 Nov 20 10:00 null\n" + "\n".join(rows) + "\n"
        )

    def user(self, uid: int = 1000, groups: str = "1000 1001") -> None:
        """Who runs it."""
        self.file(
            "proc/self/status",
            f"Name:\tpython\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nGid:\t{uid}\nGroups:\t{groups}\n",
        )
        self.file("etc/passwd", "root:x:0:0::/root:/bin/bash\nwang:x:1000:1000::/home/wang:/bin/bash\n")
        self.file("etc/group", "root:x:0:\nwang:x:1000:\nHwHiAiUser:x:1001:wang\n")

    def ports(self, count: int = 8, down: tuple[int, ...] = ()) -> None:
        """The cards' network ports."""
        lines = (f"address_{n}=10.0.0.{n + 10}\nnetmask_{n}=255.255.255.0\n" for n in range(count))
        self.file("etc/hccn.conf", "".join(lines))
        for card in range(count):
            self.says(f"hccn_tool -i {card} -link -g", f"link status: {'DOWN' if card in down else 'UP'}\n")
            self.says(f"hccn_tool -i {card} -net_health -g", "net health status: Success\n")
            self.says(f"hccn_tool -i {card} -tls -g", f"dev_id:{card}, tls switch[0](0:disable, 1:enable)\n")


def healthy(root: Path) -> FakeHost:
    """Eight 910B3 with a released set of driver, firmware, CANN, operators, torch and torch_npu."""
    host = FakeHost(root)
    host.says("npu-smi info", table())
    host.says(
        "lspci -nn", "c1:00.0 Processing accelerators [1200]: Huawei Technologies Co., Ltd. [19e5:d802]\n" * 8
    )
    host.driver("25.3.rc1")
    host.file(f"{ASCEND}/firmware/version.info", "Version=7.8.0.2.212\n")
    host.cann("8.3.RC1")
    (root / ASCEND / "ascend-toolkit/latest").symlink_to("/usr/local/Ascend/ascend-toolkit/8.3.RC1")
    host.file(f"{ASCEND}/ascend-toolkit/set_env.sh", "export ASCEND_HOME_PATH=...\n")
    host.file(f"{TOOLKIT}/lib64/libascendcl.so", "")
    host.environment()
    host.package("torch", "2.7.1+cpu")
    host.package("torch_npu", "2.7.1", "torch==2.7.1+cpu")
    host.nodes()
    host.user()
    host.ports()
    host.file("etc/os-release", 'NAME="openEuler"\nPRETTY_NAME="openEuler 22.03 (LTS-SP4)"\n')
    host.file("proc/cpuinfo", "".join(f"processor\t: {n}\nmodel name\t: Kunpeng-920\n\n" for n in range(192)))
    host.file("proc/meminfo", "MemTotal:  1583208960 kB\nMemFree: 1000 kB\nMemAvailable:  1500000000 kB\n")
    host.says("uname -m", "aarch64\n")
    host.says("ldd --version", "ldd (GNU libc) 2.34\nCopyright\n")
    host.says(
        "df -Pk",
        "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/sda1 999000000 1 900000000 1% /\n",
    )
    return host
