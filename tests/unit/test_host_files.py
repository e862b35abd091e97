"""Version files, device nodes, lspci and hccn_tool: every saved text is read to what it says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.host_lab import LATEST, SITE, FakeHost, healthy

from tengtune.host import chips, machine, network, nodes, packages, releases, versions
from tengtune.host.hccn import Port, read_conf, read_tool
from tengtune.host.place import MOST_BYTES, Output, Place

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
OLD = ("C30", "C13", "C15", "C17")
MIDDLE = ("C13", "C15", "C17", "C18", "C19")
TOOLKIT = ("C15", "C18", "C19", "C20", "C21", "C23")

RELEASES: dict[str, tuple[object, ...]] = {
    "driver_version.info__24.1.0": ("24.1.0", "C19", MIDDLE, ("7.0.0", "7.6.99"), None),
    "driver_version.info__24.1.rc1": ("24.1.rc1", "C15", OLD, ("7.0.0", "7.2.99"), None),
    "driver_version.info__24.1.rc2.2": ("24.1.rc2.2", "C18", (*OLD, "C18"), ("7.0.0", "7.2.99"), None),
    "driver_version.info__24.1.rc3": ("24.1.rc3", "C19", MIDDLE, ("7.0.0", "7.5.99"), None),
    "driver_version.info__25.0.rc1.1": (
        "25.0.rc1.1", "C21", ("C17", "C18", "C19", "C20", "C21"), ("7.0.0", "7.7.99"), None,
    ),
    "driver_version.info__25.3.rc1": (
        "25.3.rc1", "C23", ("C19", "C20", "C21", "C22", "C23"), ("7.0.0", "8.9.9"), None,
    ),
    "driver_version.info__25.5.0_partial": ("25.5.0", "C23", (), None, None),
    "firmware_version.info__7.7.0.1.231_partial": ("7.7.0.1.231", None, (), None, None),
    "firmware_version.info__7.8.0.5.216_partial": ("7.8.0.5.216", None, (), None, None),
    "ascend_toolkit_install.info__8.0.0": (
        "8.0.0", "C20", ("C15", "C17", "C18", "C19", "C20"), None, "aarch64",
    ),
    "ascend_toolkit_install.info__8.2.RC1": ("8.2.RC1", "C22", TOOLKIT, None, "aarch64"),
    "ascend_toolkit_install.info__8.3.RC2": ("8.3.RC2", "C23", TOOLKIT, None, "aarch64"),
    "ascend_toolkit_install.info__8.5.1_partial": ("8.5.1", "C25", (), None, "x86_64"),
}  # fmt: skip
CONFIGS = {
    "version.cfg__6.0.1": ("6.0.1", False),
    "version.cfg__8.0.0": ("8.0.0", True),
    "version.cfg__8.0.0_NO_KERNELS": ("8.0.0", False),
    "version.cfg__8.0.RC3": ("8.0.RC3", True),
}
OTHERS = {
    "ascend_install.info__a": "yes",
    "ascend_install.info__b_container_build": "no",
    "ls_dev_davinci_nonroot_problem.txt": "",
    "lspci_910B_4card.txt": "",
    "README.md": "",
}


def text(name: str) -> str:
    return (FIXTURES / name).read_text("utf-8")


def test_no_file_is_left_out() -> None:
    assert {path.name for path in (FIXTURES / "host").iterdir()} == {*RELEASES, *CONFIGS, *OTHERS}


@pytest.mark.parametrize("name", RELEASES)
def test_version_files(name: str) -> None:
    version, mark, marks, firmware, arch = RELEASES[name]
    expected = {"version": version, "mark": mark, "marks": marks, "firmware": firmware, "arch": arch}
    found = versions.read_release(text(f"host/{name}"), "p")
    assert {key: getattr(found, key) for key in expected} == expected


@pytest.mark.parametrize("name", CONFIGS)
def test_version_cfg(name: str) -> None:
    version, kernels = CONFIGS[name]
    assert versions.read_config(text(f"host/{name}")) == versions.Config(version, kernels)


@pytest.mark.parametrize("name", [name for name, every in OTHERS.items() if every])
def test_where_the_driver_was_installed(name: str, tmp_path: Path) -> None:
    found = versions.read_pairs(text(f"host/{name}"))
    assert found["Driver_Install_For_All"] == OTHERS[name]
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ascend_install.info").write_text(text(f"host/{name}"), "utf-8")
    assert versions.driver_root(Place(tmp_path)) == "/usr/local/Ascend"


def test_device_nodes() -> None:
    found = nodes.read_listing(text("host/ls_dev_davinci_nonroot_problem.txt"))
    assert [node.card for node in found] == [1, 2, 3, 4, None]
    assert found[0] == nodes.Node("davinci1", "root", "root", "rw-rw----")
    assert found[-1] == nodes.Node("davinci_manager", "root", "root", "rw-------")
    someone = nodes.User(1000, "wang", frozenset({"1000", "HwHiAiUser"}))
    assert [someone.may_use(node) for node in found] == [False] * 5
    assert someone.may_use(nodes.Node("davinci0", "root", "HwHiAiUser", "rw-rw----")) is True
    assert someone.may_use(nodes.Node("davinci0")) is None
    assert nodes.User(0, "root", frozenset()).may_use(found[-1]) is True


def test_cards_on_the_bus_without_a_driver(tmp_path: Path) -> None:
    saved = Output(text("host/lspci_910B_4card.txt"))
    found = chips.on_the_bus(Place(tmp_path), saved)
    assert [(at, generation.name) for at, generation in found] == [
        ("01:00.0", "A2"), ("02:00.0", "A2"), ("81:00.0", "A2"), ("82:00.0", "A2"),
    ]  # fmt: skip
    numbers = Output(
        "c1:00.0 Processing accelerators [1200]: Huawei Technologies Co., Ltd. [19e5:d801] (rev 71)"
    )
    assert [each.name for _, each in chips.on_the_bus(Place(tmp_path), numbers)] == ["910"]
    other = Output("01:00.0 Ethernet controller [0200]: Huawei Technologies Co., Ltd. Hi1822 [19e5:1822]")
    assert chips.on_the_bus(Place(tmp_path), other) == []


def test_cards_on_the_bus_without_lspci(tmp_path: Path) -> None:
    for address, vendor, device in [
        ("0000:c1:00.0", "0x19e5", "0xd500"),
        ("0000:00:00.0", "0x8086", "0xd802"),
    ]:
        folder = tmp_path / "sys/bus/pci/devices" / address
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "device").write_text(f"{device}\n")
    found = chips.on_the_bus(Place(tmp_path), Output("", "missing"))
    assert [(at, each.name) for at, each in found] == [("0000:c1:00.0", "310P")]


HCCN = {
    "link_g_up.txt": ("link", "UP"),
    "net_health_ok.txt": ("health", "Success"),
    "net_health_init.txt": ("health", "Init"),
    "net_health_fault.txt": ("health", "Fault"),
    "tls_g_switch.txt": ("tls", "0"),
}


@pytest.mark.parametrize("name", HCCN)
def test_hccn_tool(name: str) -> None:
    part, expected = HCCN[name]
    assert network.read(part, text(f"hccn/{name}")) == expected


def test_hccn_addresses() -> None:
    assert read_tool(text("hccn/ip_g.txt")) == Port("10.0.112.213", "255.255.0.0")
    assert read_conf(FIXTURES / "hccn" / "hccn.conf") == {
        0: Port("10.0.137.205", "255.255.0.0"),
        7: Port("10.0.170.143", "255.255.0.0"),
    }
    whole = text("hccn/prepost_check_all.txt")
    read = {part: network.read(part, whole) for part in ("health", "link", "tls")}
    assert read == {"health": "Init", "link": "UP", "tls": "0"}
    assert read_tool(whole) == Port("10.0.0.10", "255.255.255.0")


IN_ORDER = [
    ["22.0.0", "23.0.rc2", "23.0.rc2.3", "23.0.2.1", "24.1.rc1", "24.1.rc2.2", "24.1.rc3", "24.1.0"],
    ["24.1.0", "24.1.0.3", "25.0.RC1", "25.0.rc1.1", "25.2.0", "25.3.RC1", "25.5.0", "26.0.RC1", "26.1.0"],
    ["7.0.RC1", "7.0.0", "8.0.RC1", "8.0.RC2.alpha002", "8.0.0", "8.2.RC1", "8.3.RC1.alpha003", "8.3.RC1"],
    ["8.5.0", "9.0.0-beta.1", "9.0.0-beta.2", "9.0.0", "9.1.0-beta.3", "9.1.0", "9.2.0"],
    ["2.1.0.rc1", "2.1.0", "2.1.0.post3", "2.1.0.post10", "2.3.1rc1", "2.3.1", "2.10.0"],
]


@pytest.mark.parametrize("row", IN_ORDER, ids=lambda row: str(row[0]))
def test_versions_in_order(row: list[str]) -> None:
    for place, version in enumerate(row):
        assert [releases.older(version, other) for other in row] == [place < at for at in range(len(row))]


@pytest.mark.parametrize("version", ["", "x.x.x", "latest", "9.1.X", "25", "8.0.RC1-", "９.０.０"])
def test_what_is_no_version_is_not_compared(version: str) -> None:
    compared = releases.older(version, "8.0.0")
    assert compared is (False if version == "25" else None)


def test_patterns_and_ranges() -> None:
    assert releases.same("25.3.RC1", "25.3.X")
    assert releases.same("25.0.rc1", "25.0.RC1")
    assert not releases.same("25.30.0", "25.3.X")
    assert releases.within("9.2.3", "8.5.0", "9.2.X")
    assert releases.within("9.3.0", "8.5.0", "9.2.X") is False
    assert releases.within("8.5.0-beta.1", "8.5.0", "9.2.X") is False
    assert releases.within("7.8.0.5.216", "7.0.0", "8.9.9")
    assert releases.within("?", "7.0.0", "8.9.9") is None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ldd (Debian GLIBC 2.36-9+deb12u13) 2.36", "2.36"),
        ("ldd (GNU libc) 2.28", "2.28"),
        ("ldd (Ubuntu GLIBC 2.35-0ubuntu3.8) 2.35", "2.35"),
        ("musl libc (x86_64)", None),
        ("", None),
    ],
)
def test_glibc(line: str, expected: str | None) -> None:
    assert machine.glibc(line) == expected


def test_links_stay_inside_a_saved_root(tmp_path: Path) -> None:
    (tmp_path / "usr/local/Ascend/cann-9.0.0").mkdir(parents=True)
    (tmp_path / "usr/local/Ascend/cann-9.0.0/version.cfg").write_text("runtime_running_version=[1:9.0.0]")
    (tmp_path / "usr/local/Ascend/cann").symlink_to("/usr/local/Ascend/cann-9.0.0")
    (tmp_path / "loop").symlink_to("/loop")
    (tmp_path / "out").symlink_to("../../../../etc/passwd")
    place = Place(tmp_path)
    assert place.read("/usr/local/Ascend/cann/version.cfg") == "runtime_running_version=[1:9.0.0]"
    assert place.read("/loop") is None
    assert place.path("/out") == tmp_path / "etc/passwd"


def test_a_pipe_in_a_saved_root_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    os.mkfifo(tmp_path / "etc/os-release")
    assert Place(tmp_path).read("/etc/os-release") is None


def test_a_command_without_end(tmp_path: Path) -> None:
    """It is killed long before its time is up, and what it printed is kept in bounds."""
    host = FakeHost(tmp_path)
    host.does("npu-smi", "exec yes '| 0     910B3               |'")
    output = Place(tmp_path, 300.0).run(["npu-smi", "info"])
    assert output.fault == "hangs"
    assert len(output.text) == MOST_BYTES


def test_commands_that_fail_or_are_not_there(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    host.does("npu-smi", "echo dcmi failed >&2; exit 3")
    host.file("bin/lspci", "no program")
    (tmp_path / "bin/lspci").chmod(0o755)
    host.says("uname -m", "aarch64")
    found = Place(tmp_path).run_all([["npu-smi", "info"], ["lspci"], ["df"], ["uname", "-m"]])
    assert found["npu-smi", "info"] == Output("dcmi failed\n", "failed")
    assert found[("lspci",)] == found[("df",)] == Output("", "missing")
    assert found["uname", "-m"] == Output("aarch64")


@pytest.mark.parametrize(
    ("library", "sourced"),
    [
        ("/usr/local/Ascend/ascend-toolkit/latest/lib64", True),
        ("/usr/local/Ascend/ascend-toolkit/8.3.RC1/lib64", True),
        ("/usr/local/Ascend/ascend-toolkit/latest/aarch64-linux/lib64", True),
        ("/usr/local/Ascend/driver/lib64", False),
        ("/usr/local/Ascend/ascend-toolkit/8.3.RC10/lib64", False),
        ("", False),
    ],
)
def test_whether_set_env_was_sourced(library: str, sourced: bool, tmp_path: Path) -> None:
    healthy(tmp_path)
    place = Place(tmp_path)
    environment = {"ASCEND_TOOLKIT_HOME": LATEST, "LD_LIBRARY_PATH": f"/lib:{library}:"}
    cann = versions.find_cann(place, environment)
    assert cann is not None
    assert (cann.home, cann.version) == (LATEST, "8.3.RC1")
    assert versions.is_sourced(place, cann, environment) is sourced
    assert versions.is_sourced(place, cann, {"LD_LIBRARY_PATH": library}) is False


def test_cann_of_nnae_alone(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    host.file("usr/local/Ascend/nnae/latest/compiler/version.info", "Version=8.0.RC3\n")
    cann = versions.find_cann(Place(tmp_path), {})
    assert cann is not None
    assert cann.version == "8.0.RC3"


def test_packages_of_a_saved_root(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    host.package("torch", "2.7.1+cpu")
    host.package("torch_npu", "2.7.1", "torch (==2.7.1)", arch="x86_64")
    host.file(f"{SITE}/mindspore-2.7.1.dist-info/METADATA", b"\xff\xfe\x00damaged")
    found = packages.read(Place(tmp_path), {})
    assert found.version == "3.10"
    assert dict(found.packages) == {
        "torch": packages.Package("torch", "2.7.1+cpu", None, "aarch64"),
        "torch_npu": packages.Package("torch_npu", "2.7.1", "2.7.1", "x86_64"),
    }


@pytest.mark.parametrize(
    ("head", "machine"),
    [
        (b"\x7fELF\x02\x01" + bytes(12) + b"\xb7\x00", "aarch64"),
        (b"\x7fELF\x02\x02" + bytes(12) + b"\x00\x3e", "x86_64"),
        (b"\x7fELF\x02\x01" + bytes(12) + b"\x34\x12", "ELF 4660"),
        (b"\x7fELF\x02\x01", None),
        (b"INPUT(libtorch.so)  ", None),
        (b"", None),
    ],
)
def test_what_a_library_was_built_for(head: bytes, machine: str | None, tmp_path: Path) -> None:
    (tmp_path / "lib.so").write_bytes(head)
    assert packages.elf_machine(tmp_path / "lib.so") == machine
    assert packages.elf_machine(tmp_path / "missing.so") is None
