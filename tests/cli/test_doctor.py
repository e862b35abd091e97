"""tengtune doctor, as people run it: one host a story, told with what stands in the way and what mends it."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from tests.host_lab import ASCEND, SITE, TOOLKIT, FakeHost, Held, healthy, table

from tengtune.cli.main import main

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
RUN = "model: Qwen/Qwen2.5-0.5B-Instruct\ndata: d.json\ntrain: {global_batch: 48}\n"
BF16 = RUN.replace(
    "model: Qwen/Qwen2.5-0.5B-Instruct", "model: {path: Qwen/Qwen2.5-0.5B-Instruct, dtype: bfloat16}"
)


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return healthy(tmp_path / "host")


def doctor(host: FakeHost, *arguments: str, lang: str = "en") -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "tengtune",
        "doctor",
        "--lang",
        lang,
        "--from",
        str(host.root),
        *arguments,
    ]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, cwd=host.root.parent
    )


class Answer:
    """What --json says: the exit code, and the findings that are not OK by name."""

    def __init__(self, host: FakeHost, run: str = "", *arguments: str) -> None:
        if run:
            (host.root.parent / "run.yaml").write_text(run, "utf-8")
        self.code, text = self.ask(host, *(["run.yaml"] if run else []), *arguments, "--json")
        self.data: dict[str, Any] = json.loads(text)
        self.found = {each["check"]: each for each in self.data["findings"]}
        assert self.code == (0 if self.data["fit"] else 3)

    @staticmethod
    def ask(host: FakeHost, *arguments: str) -> tuple[int, str]:
        done = doctor(host, *arguments)
        assert "Traceback" not in done.stderr
        assert done.stdout, done.stderr
        return done.returncode, done.stdout

    @property
    def faults(self) -> dict[str, str]:
        """But for what is said of every run on a saved host: that its files were not looked for."""
        found = {name: each["level"] for name, each in self.found.items() if each["level"] != "ok"}
        assert found.pop("need_elsewhere", "unknown") == "unknown"
        return found

    def fix(self, name: str) -> str:
        return str(self.found[name]["fix"])


class Quick(Answer):
    """The same in this process, for the many cases beside the stories."""

    @staticmethod
    def ask(host: FakeHost, *arguments: str) -> tuple[int, str]:
        out = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), pytest.raises(SystemExit) as end:
            patch.chdir(host.root.parent)
            main(["doctor", "--from", str(host.root), *arguments])
        return int(end.value.code or 0), out.getvalue()


def test_healthy_a2(host: FakeHost) -> None:
    answer = Answer(host, BF16 + "parallel: {ranks: 8}\n")
    assert answer.faults == {}
    assert answer.code == 0
    assert len(answer.data["cards"]) == 8
    assert answer.data["cards"][7] == {
        "card": 7, "npu": 7, "chip": 0, "name": "910B3", "generation": "A2", "health": "OK", "codes": [],
        "memory_mb": {"used": 3314, "total": 65536}, "in_use": False, "processes": [],
    }  # fmt: skip
    wanted = {
        "chip", "free", "firmware", "driver_pair", "kernels", "sourced", "torch_pair", "nodes", "addresses",
        "links", "no_variables", "machine", "memory", "disk", "run_cards", "need_elsewhere", "need_fits",
    }  # fmt: skip
    assert set(answer.found) == wanted


def test_first_generation_asked_for_bfloat16(host: FakeHost) -> None:
    host.says("npu-smi info", table("910B", total=32768, idle=1, ddr=15137))
    host.cann("8.3.RC1", kernels=("ascend910",))
    answer = Answer(host, BF16 + "parallel: {ranks: 8}\n")
    assert answer.faults == {"no_bfloat16": "block"}
    assert "model.dtype=float16" in answer.fix("no_bfloat16")
    assert answer.data["cards"][0]["generation"] == "910"


@pytest.mark.parametrize(
    ("cann", "driver", "expected"),
    [("8.0.0", "23.0.3", ("driver_older", "warn")), ("9.2.0", "25.2.0", ("driver_excluded", "block"))],
)
def test_driver_older_than_cann(cann: str, driver: str, expected: tuple[str, str], host: FakeHost) -> None:
    host.cann(cann)
    host.driver(driver)
    answer = Answer(host)
    name, level = expected
    assert answer.faults[name] == level
    assert "--upgrade" in answer.fix(name)
    assert answer.code == (3 if level == "block" else 0)


@pytest.mark.parametrize(
    ("cann", "driver", "name"),
    [
        ("6.3.RC1", "23.0.RC1", "driver_listed"),
        ("6.3.RC2", "23.0.RC2", "driver_marks"),
        ("7.0.RC1", "23.0.RC3", "driver_marks"),
        ("6.0.1", "22.0.4", "driver_marks"),
    ],
)
def test_a_pair_that_no_list_names_is_not_blocked(cann: str, driver: str, name: str, host: FakeHost) -> None:
    host.says("npu-smi info", table("910A", version=driver, total=32768, idle=1, ddr=15137))
    host.driver(driver, mark="C13")
    host.cann(cann, mark="C11", kernels=("ascend910",))
    answer = Quick(host)
    assert answer.found[name]["level"] == ("ok" if name == "driver_listed" else "unknown")
    assert "block" not in answer.faults.values()


def test_kernels_missing(host: FakeHost) -> None:
    for path in sorted((host.root / TOOLKIT / "opp").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    host.cann("8.3.RC1", kernels=())
    answer = Answer(host)
    assert answer.faults == {"kernels_missing": "block"}
    assert "./Ascend-cann-kernels-910b_8.3.RC1_linux-aarch64.run --install" in answer.fix("kernels_missing")


def test_kernels_of_another_chip(host: FakeHost) -> None:
    host.says("npu-smi info", table("910ProB", total=32768, idle=1, ddr=15137))
    answer = Quick(host)
    assert answer.faults == {"kernels_other": "block"}
    assert "Ascend-cann-kernels-910_8.3.RC1" in answer.fix("kernels_other")


def test_firmware_outside_its_range(host: FakeHost) -> None:
    host.driver("25.3.rc1", firmware="[7.0.0,7.6.99]")
    answer = Answer(host)
    assert answer.faults == {"firmware_out": "block"}
    assert "7.0.0 - 7.6.99" in answer.found["firmware_out"]["why"]


def test_cards_held_by_another_container(host: FakeHost) -> None:
    host.says("npu-smi info", (FIXTURES / "npu-smi" / "err_busy_-8020_b.txt").read_text("utf-8"))
    answer = Answer(host, RUN + "parallel: {ranks: 8}\n")
    assert answer.faults == {"smi_busy": "block", "run_unseen": "unknown", "need_cards_unknown": "unknown"}
    assert "docker stop" in answer.fix("smi_busy")
    assert "on_the_bus" in answer.found


def test_user_outside_the_group(host: FakeHost) -> None:
    host.user(groups="1000")
    host.says("npu-smi info", (FIXTURES / "npu-smi" / "err_nopermission_-8005.txt").read_text("utf-8"))
    answer = Answer(host)
    assert answer.faults == {"smi_denied": "block", "not_in_group": "block"}
    assert "sudo usermod -aG HwHiAiUser wang" in answer.fix("not_in_group")


def test_nodes_that_no_group_opens(host: FakeHost) -> None:
    host.says("ls -l /dev", (FIXTURES / "host" / "ls_dev_davinci_nonroot_problem.txt").read_text("utf-8"))
    answer = Quick(host)
    assert answer.faults == {"nodes_missing": "block", "nodes_closed": "block"}
    assert "--install-for-all" in answer.fix("nodes_closed")


def test_container_without_the_driver(host: FakeHost) -> None:
    host.file(".dockerenv", "")
    host.remove(f"{ASCEND}/driver/version.info", "bin/npu-smi_info.txt")
    answer = Answer(host)
    assert answer.faults == {"no_driver_mounted": "block", "cann_alone": "unknown"}
    assert "source=/usr/local/Ascend/driver,target=/usr/local/Ascend/driver,readonly" in answer.fix(
        "no_driver_mounted"
    )


@pytest.mark.parametrize("how", ["missing", "a folder", "empty"])
def test_a_driver_that_only_npu_smi_tells_of(how: str, host: FakeHost) -> None:
    """That there is none is not said of a machine whose npu-smi shows its version and cards."""
    host.remove(f"{ASCEND}/driver/version.info")
    path = host.root / ASCEND / "driver/version.info"
    if how == "a folder":
        path.mkdir()
    elif how == "empty":
        path.touch()
    answer = Quick(host)
    assert answer.code == 0
    assert answer.faults == {"driver_by_smi": "warn", "firmware_unknown": "unknown"}
    assert "25.3.rc1" in answer.found["driver_by_smi"]["what"]
    assert answer.found["driver_pair"]["level"] == "ok"


def test_a_table_saved_by_another_system(host: FakeHost) -> None:
    host.file("bin/npu-smi_info.txt", table().replace("\n", "\r\n").encode("utf-16"))
    assert Quick(host).faults == {}


def test_ports_with_one_address(host: FakeHost) -> None:
    lines = (f"address_{n}=10.0.0.{10 + n % 7}\nnetmask_{n}=255.255.255.0\n" for n in range(8))
    host.file("etc/hccn.conf", "".join(lines))
    answer = Quick(host)
    assert answer.faults == {"address_twice": "warn"}
    assert answer.found["address_twice"]["what"] == "cards 0, 7 have the same address: 10.0.0.10"


def test_container_without_device_nodes(host: FakeHost) -> None:
    host.file(".dockerenv", "")
    host.says("ls -l /dev", "total 0\ncrw-rw-rw- 1 root root 1, 3 Nov 20 10:00 null\n")
    answer = Quick(host)
    assert answer.faults == {"nodes_not_mapped": "block"}
    assert "--device /dev/davinci0 --device /dev/davinci_manager" in answer.fix("nodes_not_mapped")


def test_set_env_not_sourced(host: FakeHost) -> None:
    host.environment(ASCEND_HOME_PATH="", LD_LIBRARY_PATH="")
    answer = Answer(host)
    assert answer.faults == {"not_sourced": "block"}
    assert answer.fix("not_sourced") == "`source /usr/local/Ascend/ascend-toolkit/set_env.sh`"


@pytest.mark.parametrize(("nodes", "level"), [(1, "warn"), (2, "block")])
def test_link_down_on_one_card(nodes: int, level: str, host: FakeHost) -> None:
    host.ports(down=(5,))
    answer = Answer(host, RUN + f"parallel: {{ranks: {8 * nodes}, nodes: {nodes}}}\n")
    assert answer.faults == {"link_down": level}
    assert "hccn_tool -i 5" in answer.fix("link_down")


def test_torch_npu_for_another_torch(host: FakeHost) -> None:
    host.package(
        "torch_npu", "2.6.0.post3", "torch==2.6.0+cpu", site="home/wang/venv/lib/python3.10/site-packages"
    )
    host.package("torch", "2.7.1", site="home/wang/venv/lib/python3.10/site-packages")
    host.environment(VIRTUAL_ENV="/home/wang/venv")
    answer = Answer(host)
    assert answer.faults == {"torch_other": "block"}
    assert "torch_npu==2.7.1` for torch 2.7.1" in answer.fix("torch_other")


def test_torch_npu_beside_a_torch_that_has_none(host: FakeHost) -> None:
    host.package("torch_npu", "2.7.1", "torch==2.7.1", site="opt/py/lib/python3.10/site-packages")
    host.package("torch", "2.15.0", site="opt/py/lib/python3.10/site-packages")
    host.environment(VIRTUAL_ENV="/opt/py")
    answer = Quick(host)
    assert answer.faults == {"torch_other_alone": "block"}
    assert answer.fix("torch_other_alone") == "`pip install torch==2.7.1`"


def test_mindspore_of_another_machine_type(host: FakeHost) -> None:
    host.package("mindspore", "2.7.1", arch="x86_64")
    answer = Answer(host, RUN + "backend: mindspore\nparallel: {ranks: 8}\n")
    assert answer.faults == {"machine_type": "block"}
    assert "aarch64" in answer.fix("machine_type")
    assert "mindspore_pair" in answer.found


def test_a_training_on_inference_cards(host: FakeHost) -> None:
    text = (FIXTURES / "npu-smi" / "info_310P3_Duo_25.2.0.txt").read_text("utf-8")
    host.says("npu-smi info", text)
    host.cann("8.3.RC1", kernels=("ascend310p",))
    answer = Answer(host, RUN + "parallel: {ranks: 1}\n")
    assert answer.faults["chip_inference"] == "warn"
    assert answer.faults["run_on_inference"] == "block"
    assert [card["chip"] for card in answer.data["cards"]] == [0, 1]


def test_a_command_that_hangs(host: FakeHost) -> None:
    """What it started holds the output open and is killed, too."""
    host.remove("bin/npu-smi_info.txt")
    host.does("npu-smi", "sleep 600 & echo $! > sleeping; echo '| npu-smi 25.3.rc1  Version'; wait")
    answer = Answer(host, "", "--timeout", "0.4")
    assert answer.faults == {"smi_hangs": "unknown"}
    assert "0.4 s" in answer.found["smi_hangs"]["what"]
    sleeping = int((host.root.parent / "sleeping").read_text("utf-8"))
    assert (
        not Path(f"/proc/{sleeping}/cmdline").exists() or not Path(f"/proc/{sleeping}/cmdline").read_bytes()
    )


def test_eight_cards_asked_and_two_held(host: FakeHost) -> None:
    held = (Held(2, 43000, "VLLMWorker_TP", 3001), Held(6, 43000, "python", 3002))
    host.says("npu-smi info", table(held=held))
    answer = Answer(host, RUN + "parallel: {ranks: 8}\n")
    assert answer.faults == {"busy": "warn", "held": "block"}
    assert "2: VLLMWorker_TP (3001, 45.1 GB); 6: python (3002, 45.1 GB)" in answer.found["held"]["why"]
    assert "tengtune run run.yaml -s parallel.ranks=6" in answer.fix("held")
    assert "kill 3001 3002" in answer.fix("busy")
    four = Answer(host, RUN + "parallel: {ranks: 4}\n")
    assert four.faults == {"busy": "warn", "held_others": "block"}
    assert "ASCEND_RT_VISIBLE_DEVICES=0,1,3,4" in four.fix("held_others")


@pytest.mark.parametrize(
    ("visible", "ranks", "fault", "fix"),
    [
        ("", 3, "ring_count", "tengtune run run.yaml -s parallel.ranks=2"),
        ("2,3,4,5", 4, "ring_crossed", "ASCEND_RT_VISIBLE_DEVICES=0,1,2,3"),
        ("3,4", 2, "ring_crossed", "ASCEND_RT_VISIBLE_DEVICES=0,1"),
        ("4,5,6,7", 4, "", ""),
    ],
)
def test_rings_of_the_first_generation(
    visible: str, ranks: int, fault: str, fix: str, host: FakeHost
) -> None:
    host.says("npu-smi info", table("910A", total=32768, idle=1, ddr=15137))
    host.cann("8.3.RC1", kernels=("ascend910",))
    host.environment(ASCEND_RT_VISIBLE_DEVICES=visible)
    answer = Quick(host, RUN + f"parallel: {{ranks: {ranks}}}\n")
    assert answer.faults == ({fault: "block"} if fault else {})
    assert not fault or fix in answer.fix(fault)


def test_no_ring_of_the_first_generation_is_free(host: FakeHost) -> None:
    held = tuple(Held(npu, 20000) for npu in (0, 1, 6))
    host.says("npu-smi info", table("910A", total=32768, idle=1, ddr=15137, held=held))
    host.cann("8.3.RC1", kernels=("ascend910",))
    host.environment(ASCEND_RT_VISIBLE_DEVICES="2,3,4,5")
    answer = Quick(host, RUN + "parallel: {ranks: 4}\n")
    assert answer.faults == {"busy": "warn", "ring_full": "block"}


def test_back_end_missing(host: FakeHost) -> None:
    answer = Quick(host, RUN + "backend: mindspore\nparallel: {ranks: 8}\n")
    assert answer.faults == {"no_backend": "block"}
    assert ".[mindspore]" in answer.fix("no_backend")


def test_what_else_is_in_the_way_of_a_run_without_its_back_end(host: FakeHost) -> None:
    host.says("npu-smi info", table("910A", total=32768, idle=1, ddr=15137))
    host.cann("8.3.RC1", kernels=("ascend910",))
    shutil.rmtree(host.root / SITE)
    answer = Quick(host, RUN + "backend: torch\nparallel: {ranks: 6}\n")
    assert answer.faults == {"no_framework": "warn", "no_backend": "block", "ring_count": "block"}


def test_numbers_of_the_host_inside_a_container(host: FakeHost) -> None:
    host.nodes(count=1)
    host.says("npu-smi info", table(count=1))
    host.environment(ASCEND_RT_VISIBLE_DEVICES="3")
    answer = Quick(host)
    assert answer.faults == {"visible": "block"}
    assert "export ASCEND_RT_VISIBLE_DEVICES=0`" in answer.fix("visible")


def test_a_card_that_is_ill(host: FakeHost) -> None:
    host.says("npu-smi info", table(health={3: "Warning", 5: "Alarm"}))
    host.says(
        "npu-smi info -t health -i 3", (FIXTURES / "npu-smi" / "sub_health_warning_80E01801.txt").read_text()
    )
    answer = Quick(host)
    ill = [each for each in answer.data["findings"] if each["check"] == "health"]
    assert [(each["level"], each["what"]) for each in ill] == [
        ("warn", "card 3: health Warning"), ("block", "card 5: health Alarm"),
    ]  # fmt: skip
    assert "Multi-bit ECC errors when accessing the HBM" in ill[0]["why"]
    assert "npu-smi info -t health -i 5" in ill[1]["fix"]
    others = Quick(host, RUN + "parallel: {ranks: 3}\n")
    assert others.code == 0, "the run does not take the card that is ill"


def test_cards_on_two_sockets(host: FakeHost) -> None:
    host.says("npu-smi info", table("910B4-1", count=4))
    host.says(
        "npu-smi info -t topo", (FIXTURES / "npu-smi" / "sub_topo_pcie4_910B4-1.txt").read_text("utf-8")
    )
    host.environment(ASCEND_RT_VISIBLE_DEVICES="1,2")
    answer = Quick(host, RUN + "parallel: {ranks: 2}\n")
    assert answer.faults == {"bus_groups": "warn"}
    assert "ASCEND_RT_VISIBLE_DEVICES=0,1" in answer.fix("bus_groups")


def test_hccls_variables(host: FakeHost) -> None:
    host.environment(
        HCCL_CONNECT_TIMEOUT="2000", HCCL_RDMA_TIMEOUT="99", HCCL_BUFFSIZE="many", INF_NAN_MODE_ENABLE="0"
    )
    host.says("hccn_tool -i 3 -tls -g", "dev_id:3, tls switch[1](0:disable, 1:enable)\n")
    answer = Quick(host)
    assert answer.faults == {"variable": "warn", "timeouts": "warn", "inf_nan": "block", "tls": "warn"}
    wrong = [each["what"] for each in answer.data["findings"] if each["check"] == "variable"]
    assert wrong == ["HCCL_BUFFSIZE=many is out of range", "HCCL_RDMA_TIMEOUT=99 is out of range"]


@pytest.mark.parametrize(
    ("torch", "name", "fix"),
    [
        ("2.7.1", "no_torch_npu", "torch_npu==2.7.1`"),
        ("2.15.0", "no_torch_npu_for", "torch==2.8.0 torch_npu==2.8.0"),
    ],
)
def test_torch_without_torch_npu(torch: str, name: str, fix: str, host: FakeHost) -> None:
    host.package("torch", torch, site="opt/py/lib/python3.10/site-packages")
    host.environment(VIRTUAL_ENV="/opt/py")
    answer = Quick(host, RUN + "parallel: {ranks: 8}\n")
    assert answer.faults == {name: "warn", "run_without_npu": "block"}
    assert fix in answer.fix(name)


def test_ranks_follow_the_saved_hosts_cards(host: FakeHost) -> None:
    assert answer_cards(host) == "0, 1, 2, 3, 4, 5, 6, 7"
    host.environment(ASCEND_RT_VISIBLE_DEVICES="4,5,6")
    assert answer_cards(host) == "4, 5, 6"


def answer_cards(host: FakeHost) -> str:
    what: str = Quick(host, RUN).found["run_cards"]["what"]
    return what.rpartition(": ")[2]


def test_what_no_back_end_has(host: FakeHost) -> None:
    answer = Quick(host, RUN + "parallel: {ranks: 8, offload: optimizer}\n")
    assert answer.faults == {"refused": "block"}


FULL = "data: d.json\ntrain: {method: full}\nparallel: {ranks: 8}\n"
LORA = "model: Qwen/Qwen-7B-Chat\ndata: d.json\nparallel: {ranks: 8}\n"


def disk(host: FakeHost, kilobytes: int) -> None:
    head = "Filesystem 1024-blocks Used Available Capacity Mounted on\n"
    host.says("df -Pk", f"{head}/dev/a {kilobytes} 1 {kilobytes} 1% /\n")


def memory(host: FakeHost, total: int, available: int) -> None:
    host.file("proc/meminfo", f"MemTotal: {total} kB\nMemFree: 10 kB\nMemAvailable: {available} kB\n")


def needed(answer: Answer, name: str) -> float:
    """The GB of a finding."""
    return float(answer.found[name]["what"].split("needs ")[1].split(" GB")[0])


def test_plans_sum_of_a_run_on_the_cards_that_are_there(host: FakeHost) -> None:
    """All of a 7B is 7.72 billion parameters of 16 bytes on each card of PyTorch: 124 GB."""
    answer = Quick(host, "model: Qwen/Qwen-7B-Chat\n" + FULL)
    assert answer.faults == {"need_card": "block"}
    assert needed(answer, "need_card") > 7.72 * 16
    assert 'tengtune plan run.yaml --hardware "8x 910B3"' in answer.fix("need_card")
    small = Quick(host, "model: Qwen/Qwen2.5-0.5B\n" + FULL)
    assert small.faults == {}
    assert small.found["need_fits"]["level"] == "ok"


def test_one_screen_has_one_gb(host: FakeHost) -> None:
    """1e9 bytes: 32768 MiB are 34.36, 2802 MiB 2.94, 20000 MiB 20.97, 24684084 KiB 25.28 of them. And what is
    lacking is not called enough: the sum is of the cards that the run asks for."""
    memory(host, 24684084, 24684084)
    small = {"name": "910B4", "count": 2, "total": 32768, "idle": 2802}
    host.says("npu-smi info", table(**small, held=(Held(1, 20000),)))
    (host.root.parent / "run.yaml").write_text(LORA.replace("8}", "4}"), "utf-8")
    out = Quick.ask(host, "run.yaml")[1]
    rows = [line.split() for line in out.splitlines()[1:3]]
    assert rows[0] == ["0", "910B4", "A2", "OK", "34.4", "2.9", "31.4", "-"]
    assert rows[1][4:] == ["34.4", "23.9", "10.5", "python", "(4711,", "21.0", "GB)"]
    assert "2 cards 910B4 (A2), 34.4 GB each" in out
    assert "memory: 25.28 GB of 25.28 GB available" in out
    assert "the run would fit on the 4 cards it asks for, of which 2 are seen: " in out
    assert " a card of 31.7 GB that frameworks get, " in out
    assert "the run fits" not in out
    (host.root.parent / "run.yaml").write_text(LORA.replace("8}", "2}"), "utf-8")
    assert "by plan's sum the run fits: " in Quick.ask(host, "run.yaml")[1]


def test_memory_and_disk_that_a_run_needs(host: FakeHost) -> None:
    """Merged and downloaded model, 2 x 15.4 GB, and a LoRA's small checkpoints: 31 GB."""
    disk(host, 29_000_000)
    memory(host, 12_000_000, 11_000_000)
    assert Quick(host, LORA).faults == {"need_memory": "block", "need_disk": "block"}
    memory(host, 900_000_000, 9_500_000)
    assert Quick(host, LORA).faults == {"need_memory_now": "warn", "need_disk": "block"}


@pytest.mark.parametrize(
    ("method", "gigabytes", "helps"),
    [("full", 250, True), ("full", 215, False), ("lora", 29, False), ("lora", 31.4, True)],
)
def test_fewer_checkpoints_are_advised_where_they_are_enough(
    method: str, gigabytes: float, helps: bool, host: FakeHost
) -> None:
    """Two models of 15.44 GB, and three checkpoints, or with train.keep=1 two: of 12 bytes x 7.72e9 weights
    309 and 216 GB in all, of LoRA's (rank 8: 17.9e6 with one A for q, k and v) 31.5 and 31.3."""
    disk(host, int(gigabytes * 1e9 / 1024))
    found = Quick(host, LORA + f"train: {{method: {method}}}\n").found
    name = "need_disk_keep" if helps else "need_disk"
    assert {each for each in found if "need_disk" in each} == {name}
    assert ("train.keep=1" in found[name]["fix"]) == helps
    saved = {"full": "92.7 GB", "lora": "0.2 GB"}[method]
    assert (saved in found[name]["fix"]) == helps


def test_a_run_on_the_cpu_of_a_small_machine(tmp_path: Path) -> None:
    """14.17 billion parameters of 4 bytes on each of 8 ranks are 453 GB."""
    host = FakeHost(tmp_path / "host")
    host.package("torch", "2.13.0")
    memory(host, 25_000_000, 24_000_000)
    disk(host, 900_000_000)
    answer = Quick(host, LORA.replace("7B", "14B"))
    assert answer.faults == {"need_memory": "block"}
    assert needed(answer, "need_memory") > 450


def test_what_was_not_judged_is_said(host: FakeHost) -> None:
    answer = Quick(host, "model: folder/of-mine\ndata: d.json\nparallel: {ranks: 8}\n")
    assert answer.faults == {"need_unreckoned": "unknown"}
    assert answer.found["need_elsewhere"]["level"] == "unknown"


def test_new_frameworks_on_old_cards(host: FakeHost) -> None:
    host.says("npu-smi info", table("910A", total=32768, idle=1, ddr=15137))
    host.driver("26.2.RC1")
    host.cann("9.2.0", kernels=("ascend910",))
    site = "opt/py/lib/python3.10/site-packages"
    for name, version in (("torch", "2.14.0"), ("torch_npu", "2.14.0"), ("mindspore", "2.10.0")):
        host.package(name, version, site=site)
    host.environment(VIRTUAL_ENV="/opt/py")
    answer = Quick(host)
    names = ("cann_after", "framework_after", "mindspore_after")
    assert answer.faults == dict.fromkeys(names, "unknown")
    assert answer.found["framework_after"]["what"].startswith("torch_npu 2.14.0 on ")
    assert answer.found["mindspore_after"]["what"].startswith("MindSpore 2.10.0 on ")
    assert "`backend: torch`" in answer.fix("mindspore_after")


def test_mindspore_on_the_first_generation(host: FakeHost) -> None:
    """The newest that a source names for it is older than what the back end runs on."""
    host.says("npu-smi info", table("910A", total=32768, idle=1, ddr=15137))
    host.cann("8.2.RC1", kernels=("ascend910",))
    host.package("mindspore", "2.7.0", site=SITE)
    answer = Quick(host, RUN + "backend: mindspore\nparallel: {ranks: 8}\n")
    assert answer.faults["no_backend_on_card"] == "block"
    assert "2.2.13" in answer.found["no_backend_on_card"]["why"]
    assert "tengtune run run.yaml -s backend=torch" in answer.fix("no_backend_on_card")
    assert "mindspore_off" not in answer.found


def test_no_torch_npu_is_advised_that_the_cann_does_not_take(host: FakeHost) -> None:
    """No list has one for CANN 6.3.RC1; CANN 8.0.RC2 is on that of TorchNPU 7.1.0 and 7.2.0 as well."""
    host.package("torch", "2.13.0", site="opt/py/lib/python3.10/site-packages")
    host.environment(VIRTUAL_ENV="/opt/py")
    host.cann("6.3.RC1")
    answer = Quick(host)
    assert answer.faults["no_torch_npu_at_all"] == "warn"
    assert "pip install" not in answer.fix("no_torch_npu_at_all")
    assert "CANN 9.2.0" in answer.fix("no_torch_npu_at_all")
    host.package("torch", "2.6.0", site="opt/py2/lib/python3.10/site-packages")
    host.environment(VIRTUAL_ENV="/opt/py2")
    host.cann("8.0.RC2")
    assert answer_fix(host, "no_torch_npu") == "`pip install torch_npu==2.6.0.post3`"
    host.package("torch_npu", "2.6.0", "torch==2.6.0", site="opt/py2/lib/python3.10/site-packages")
    host.cann("6.3.RC1")
    assert answer_fix(host, "torch_off_cann") == "Install CANN 8.2.RC1; the driver has to go with it."


def answer_fix(host: FakeHost, name: str) -> str:
    return Quick(host).fix(name)


def test_python_and_glibc_too_old(host: FakeHost) -> None:
    site = "opt/py/lib/python3.14/site-packages"
    host.package("torch", "2.12.0", site=site)
    host.package("torch_npu", "2.12.0", "torch==2.12.0", site=site)
    host.environment(VIRTUAL_ENV="/opt/py")
    host.says("ldd --version", "ldd (GNU libc) 2.17\n")
    answer = Quick(host)
    assert answer.faults == {"torch_off": "warn", "python": "block", "glibc_old": "block"}
    assert "torch==2.8.0 torch_npu==2.8.0" in answer.fix("torch_off")


def test_what_is_not_known_is_never_ok(host: FakeHost) -> None:
    host.says("npu-smi info", table("910C7", version="99.1.0"))
    host.driver("99.1.0", mark="C99", firmware="")
    host.remove(f"{ASCEND}/firmware/version.info")
    host.cann("77.0.0", mark="C99")
    host.package("torch_npu", "2.7.1.post99", "torch==2.7.1", site="opt/py/lib/python3.10/site-packages")
    host.package("torch", "2.7.1", site="opt/py/lib/python3.10/site-packages")
    host.package("mindspore", "5.0.0", site="opt/py/lib/python3.10/site-packages")
    host.environment(VIRTUAL_ENV="/opt/py")
    answer = Quick(host, RUN + "parallel: {ranks: 8}\n")
    assert answer.faults == {
        "chip_unknown": "unknown", "firmware_unknown": "unknown", "driver_unknown": "unknown",
        "kernels_unknown": "unknown", "torch_npu_unknown": "unknown", "mindspore_unknown": "unknown",
        "run_cards_unknown": "unknown", "need_cards_unknown": "unknown",
    }  # fmt: skip


def test_a_host_of_which_little_is_known(tmp_path: Path) -> None:
    host = FakeHost(tmp_path / "host")
    host.environment()
    answer = Quick(host)
    assert answer.code == 0
    assert answer.faults == {
        "no_framework": "warn", "memory_unread": "unknown", "disk_unread": "unknown",
        "machine_unread": "unknown",
    }  # fmt: skip
    assert "no_card" in answer.found


@pytest.mark.parametrize("run", ["", RUN])
@pytest.mark.parametrize(
    ("below", "near"),
    [("empty", ""), ("notes/only", ""), ("some host/bin", "some host"), ("some host/usr/local", "some host"),
     (".", "some host")],
)  # fmt: skip
def test_a_folder_that_is_no_hosts_root(
    below: str, near: str, run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wrong, empty, too deep, or not deep enough: none of them is a machine without cards."""
    healthy(tmp_path / "all" / (near or "notes/other"))
    folder = tmp_path / "all" / below
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "notes.txt").write_text("npu-smi", "utf-8")
    (tmp_path / "run.yaml").write_text(run, "utf-8")
    arguments = [*([str(tmp_path / "run.yaml")] if run else []), "--from", str(folder)]
    with pytest.raises(SystemExit) as end:
        main(["doctor", *arguments])
    said = capsys.readouterr()
    assert (end.value.code, said.out) == (2, "")
    assert "There is nothing of a host in this folder" in said.err
    meant = f"--from '{tmp_path / 'all' / near}'`"
    assert (meant in said.err.replace("\n", "")) == bool(near)


def test_a_card_without_driver(tmp_path: Path) -> None:
    host = FakeHost(tmp_path / "host")
    host.says("lspci -nn", (FIXTURES / "host" / "lspci_910B_4card.txt").read_text("utf-8"))
    answer = Quick(host)
    assert answer.faults["no_driver"] == "block"
    assert answer.found["on_the_bus"]["what"] == "on the PCI bus: 4 cards (A2)"
    assert ".run --full --install-for-all" in answer.fix("no_driver")


def test_what_is_known_of_the_machine_is_told_and_no_more(host: FakeHost) -> None:
    host.remove("etc/os-release", "bin/ldd_--version.txt")
    assert Quick(host).found["machine"]["what"] == "Kunpeng-920, 192 cores, aarch64, Python 3.10"


def test_quiet_leaves_out_what_is_well(host: FakeHost) -> None:
    host.environment(ASCEND_HOME_PATH="")
    out = doctor(host, "-q").stdout.splitlines()
    assert [line.split()[0] for line in out if line] == ["BLOCK", "why", "fix", "In"]
    host.environment()
    assert doctor(host, "-q").stdout.split()[:2] == ["Nothing", "found"]


@pytest.mark.parametrize(
    ("lang", "tag", "verdict"), [("en", "BLOCK", "In the way: 1."), ("zh", "阻断", "阻断项 1 个")]
)
def test_the_screen(lang: str, tag: str, verdict: str, host: FakeHost) -> None:
    host.environment(ASCEND_HOME_PATH="")
    host.says("npu-smi info", table(held=(Held(6, 43000),)))
    done = doctor(host, lang=lang)
    assert done.returncode == 3
    lines = done.stdout.splitlines()
    assert len(lines) <= 40
    assert [line.split()[:4] for line in lines[1:9]] == [[str(n), "910B3", "A2", "OK"] for n in range(8)]
    assert "python (4711, 45.1 GB)" in lines[7]
    assert lines[10].startswith(tag)
    assert verdict in lines[-1]
    assert done.stderr == ""


def test_from_what_is_no_folder(tmp_path: Path) -> None:
    done = doctor(FakeHost(tmp_path / "nothing"))
    assert done.returncode == 2
    assert "no such folder" in done.stderr


def test_this_machine_is_read_without_a_framework(tmp_path: Path) -> None:
    code = (
        "import sys; from tengtune.cli.main import main\n"
        "try: main(['doctor', '--json'])\nexcept SystemExit: pass\n"
        "print(sorted({'torch', 'torch_npu', 'mindspore', 'pydantic', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    result, loaded = done.stdout.splitlines()
    assert {each["check"] for each in json.loads(result)["findings"]} >= {"machine", "memory", "disk"}
    assert loaded == "[]"
