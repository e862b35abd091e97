"""Damaged outputs of a host's tools: a reading, or that it is not known; never an exception, a hang, or a
number that the text does not hold."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.faults.test_data_mutations import no_hang
from tests.host_lab import Held, healthy, table

from tengtune import recipe as recipes
from tengtune.doctor.examine import examine
from tengtune.doctor.finding import Case
from tengtune.host import network, nodes, npu_smi, npu_smi_queries, releases, versions
from tengtune.host.hccn import read_conf
from tengtune.host.place import Place
from tengtune.host.survey import survey
from tengtune.ui.problems import Problem

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
TABLES = sorted((FIXTURES / "npu-smi").glob("info_*.txt"))
NOISE = [
    "DrvMngGetConsoleLogLevel failed. (g_conLogLevel=3)\n",
    "grep: warning: stray \\ before /\n",
    "dcmi model initialized failed, because the device is used. ret is -8020\n",
    "|",
    "| | | |\n",
    "+====+\n",
    "\x00\x1b[31m\ufffd",
    "| 0     910B3               | OK            | 9",
    "设备健康状态：正常\n",
]
WORDS = [
    "NA",
    "-",
    "OK",
    "Alarm",
    "0",
    "99999999999999999999",
    "９",
    "1e9",
    "12345/ 65536",
    "",
    "Bus-Id",
    "Process id",
]


def lines_cut(lines: list[str], chance: random.Random) -> list[str]:
    at = chance.randrange(len(lines))
    lines[at] = lines[at][: chance.randrange(len(lines[at]) + 1)]
    return lines[: at + 1] if chance.random() < 0.3 else lines


def lines_lost(lines: list[str], chance: random.Random) -> list[str]:
    del lines[chance.randrange(len(lines))]
    return lines or [""]


def lines_moved(lines: list[str], chance: random.Random) -> list[str]:
    lines.insert(chance.randrange(len(lines)), lines.pop(chance.randrange(len(lines))))
    return lines


def columns_widened(lines: list[str], chance: random.Random) -> list[str]:
    return [line.replace("|", "|" + " " * chance.randrange(4), chance.randrange(3)) for line in lines]


def columns_moved(lines: list[str], chance: random.Random) -> list[str]:
    """Cells change places, in one row or in all."""
    one = chance.randrange(len(lines)) if chance.random() < 0.5 else None
    order = chance.random()
    for at, line in enumerate(lines):
        cells = line.strip().strip("|").split("|")
        if one in (None, at) and line.strip().startswith("|") and len(cells) > 1:
            random.Random(order).shuffle(cells)
            lines[at] = f"|{'|'.join(cells)}|"
    return lines


def columns_lost(lines: list[str], chance: random.Random) -> list[str]:
    at = chance.randrange(4)
    return [
        re.sub(r"\|[^|]*(?=\|)", "", line, count=1) if at == 0 else line.replace("|", "", 1) for line in lines
    ]


def noise(lines: list[str], chance: random.Random) -> list[str]:
    lines.insert(chance.randrange(len(lines) + 1), chance.choice(NOISE))
    return lines


def words_changed(lines: list[str], chance: random.Random) -> list[str]:
    at = chance.randrange(len(lines))
    lines[at] = re.sub(r"\S+", lambda m: chance.choice([m[0], m[0], chance.choice(WORDS)]), lines[at])
    return lines


def other_locale(lines: list[str], chance: random.Random) -> list[str]:
    return [line.replace("Health", "健康").replace(".", ",") for line in lines]


MUTATIONS: list[Callable[[list[str], random.Random], list[str]]] = [
    lines_cut, lines_lost, lines_moved, columns_widened, columns_moved, columns_lost, noise, words_changed,
    other_locale,
]  # fmt: skip


def mutated(text: str, chance: random.Random) -> str:
    lines = text.splitlines()
    for _ in range(chance.choice((1, 1, 2, 4))):
        lines = chance.choice(MUTATIONS)(lines or [""], chance)
    return chance.choice(("\n", "\n", "\r\n")).join(lines)


def numbers(text: str) -> set[int]:
    """The whole numbers in a text, each as it is written; a 0 may stand anywhere."""
    return {int(number) for number in re.findall(r"(?<![0-9])[0-9]{1,9}(?![0-9])", text)} | {0}


def judged(text: str) -> npu_smi.Table:
    """The table; what it says stands in the text, and memory in a row that is closed."""
    table = npu_smi.read(text)
    closed = "\n".join(line for line in text.splitlines() if line.strip().endswith("|"))
    for chip in table.chips:
        known = (chip.hbm_used_mb, chip.hbm_total_mb, chip.memory_used_mb, chip.memory_total_mb)
        # A row without its closing bar is cut: its numbers are not to be trusted.
        assert {number for number in known if number is not None} <= numbers(closed)
        assert chip.health in (None, "OK", "Warning", "Alarm", "Critical", "UNKNOWN")
        table.in_use(chip)
    for process in table.processes:
        assert {process.pid, process.memory_mb or 0} <= numbers(closed)
    return table


@pytest.mark.parametrize("count", [400, pytest.param(20_000, marks=pytest.mark.soak)])
def test_tables(count: int) -> None:
    chance = random.Random(count)
    texts = [path.read_text("utf-8") for path in TABLES]
    seen = 0
    for _ in range(count):
        text = mutated(chance.choice(texts), chance)
        with no_hang(text.encode("utf-8", "replace")):
            try:
                seen += bool(judged(text).chips)
            except Exception as error:
                raise AssertionError(f"{type(error).__name__}: {error} on {text!r}") from error
    assert seen > count / 2


READERS: dict[str, Callable[[str], object]] = {
    "npu-smi/sub_m_": npu_smi_queries.read_map,
    "npu-smi/sub_l_": npu_smi_queries.read_list,
    "npu-smi/sub_board": npu_smi_queries.read_board,
    "npu-smi/sub_usages": npu_smi_queries.read_usages,
    "npu-smi/sub_common": npu_smi_queries.read_common,
    "npu-smi/sub_health": npu_smi_queries.read_health,
    "npu-smi/sub_topo": lambda text: npu_smi_queries.read_topo(text).groups,
    "npu-smi/err": npu_smi.fault,
    "host/driver": versions.read_release,
    "host/ascend_toolkit": versions.read_release,
    "host/version.cfg": versions.read_config,
    "host/ls": nodes.read_listing,
    "hccn/link": lambda text: network.read("link", text),
    "hccn/tls": lambda text: network.read("tls", text),
}


@pytest.mark.parametrize("count", [15, pytest.param(1500, marks=pytest.mark.soak)])
@pytest.mark.parametrize("prefix", READERS)
def test_other_outputs(prefix: str, count: int) -> None:
    folder, _, start = prefix.partition("/")
    texts = [path.read_text("utf-8") for path in sorted((FIXTURES / folder).glob(f"{start}*"))]
    assert texts
    chance = random.Random(prefix)
    for _ in range(count):
        text = mutated(chance.choice(texts), chance)
        with no_hang(text.encode("utf-8", "replace")):
            try:
                READERS[prefix](text)
            except Exception as error:
                raise AssertionError(f"{type(error).__name__}: {error} on {text!r}") from error


@pytest.mark.parametrize("count", [30, pytest.param(1000, marks=pytest.mark.soak)])
def test_hccn_conf(count: int, tmp_path: Path) -> None:
    chance = random.Random(count)
    text = (FIXTURES / "hccn" / "hccn.conf").read_text("utf-8")
    for _ in range(count):
        (tmp_path / "hccn.conf").write_text(mutated(text, chance), "utf-8", newline="")
        try:
            read_conf(tmp_path / "hccn.conf")
        except Problem as problem:
            assert problem.texts()["what"]


@pytest.mark.parametrize("count", [300, pytest.param(20_000, marks=pytest.mark.soak)])
def test_versions(count: int) -> None:
    """Any two texts are in an order, or cannot be compared; never both before each other."""
    chance = random.Random(count)
    known = ["24.1.rc2.2", "25.0.RC1", "9.1.0-beta.3", "2.7.1.post2+cpu", "8.5.0", "7.8.0.5.216"]
    for _ in range(count):
        pair = []
        for _ in range(2):
            letters = list(chance.choice(known))
            letters[chance.randrange(len(letters))] = chance.choice("0123456789.rcRCpostx-+ \n九")
            pair.append("".join(letters))
        left, right = releases.older(*pair), releases.older(*reversed(pair))
        assert (left is None) == (right is None), pair
        assert not (left and right), pair


@pytest.mark.parametrize("count", [12, pytest.param(400, marks=pytest.mark.soak)])
def test_whole_hosts(count: int, tmp_path: Path) -> None:
    """Any file of a host damaged: every finding has its texts, and its level is one of the four."""
    host = healthy(tmp_path / "host")
    files = sorted(path for path in host.root.rglob("*") if path.is_file() and path.suffix != ".so")
    chance = random.Random(count)
    for _ in range(count):
        chosen = chance.sample(files, 4)
        before = {path: path.read_bytes() for path in chosen}
        for path in chosen:
            path.write_text(mutated(before[path].decode("utf-8"), chance), "utf-8", newline="")
        with no_hang(b""):
            case = Case(survey(Place(host.root, 5.0), tmp_path))
            findings = examine(case)
        assert {finding.level for finding in findings} <= {"ok", "warn", "block", "unknown"}
        for finding in findings:
            texts = finding.texts()
            assert finding.level == "ok" or {"what", "why", "fix"} <= texts.keys(), finding
        for path, content in before.items():
            path.write_bytes(content)


CUT = table("910B4", count=3, total=32768, held=(Held(1, 200, "npu-smi"), Held(1, 100, "look")))
"""Nobody works on these cards: two small processes look at one of them."""
ENDS = [at for at, letter in enumerate(CUT) if letter == "\n"] + list(range(len(CUT) - 700, len(CUT), 9))


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_what_a_cut_table_no_longer_says_is_never_well(ranks: int, tmp_path: Path) -> None:
    """At whatever place it ends: no card is called free whose processes are not told to the end, and a card
    that may be behind the end is not said to be lacking."""
    host = healthy(tmp_path / "host")
    (tmp_path / "run.yaml").write_text("model: m\ndata: d.json\ntrain: {global_batch: 48}\n", "utf-8")
    recipe = recipes.load(tmp_path / "run.yaml", [f"parallel.ranks={ranks}"], 3)
    edge = CUT.splitlines()[-1][:4]
    for end in ENDS:
        host.says("npu-smi info", CUT[:end])
        case = Case(survey(Place(host.root, 5.0), tmp_path), recipe, inputs="told")
        levels = {each.code.removeprefix("doctor."): each.level for each in examine(case)}
        text = CUT[:end]
        told = [
            f"found in NPU {npu} " in text and "|\n" in f"{text}\n".split(f"NPU {npu} ")[1] for npu in (0, 2)
        ]
        middle = edge in text.rpartition("look")[2] if "look" in text else False
        free = [told[0], middle, told[1]]
        assert ("free" in levels) == all(free), text
        assert ("run_cards" in levels) == (ranks < 4 and all(free[:ranks])), text
        whole = "Process id" in text
        assert ("too_few" in levels) == (ranks == 4 and whole), text
        if not whole:
            assert "unknown" in {levels.get("smi_cut"), levels.get("smi_unread")}, text
        elif not all(free):
            assert levels["busy_unknown"] == "unknown"


def test_who_holds_a_card_is_not_denied_where_it_is_not_told(tmp_path: Path) -> None:
    host = healthy(tmp_path / "host")
    text = table(count=2, held=(Held(1, 40000),))
    at = next(number for number, line in enumerate(text.splitlines()) if "python" in line)
    for lines, code in ((at - 6, "busy_unnamed"), (at, "busy_unnamed"), (at + 1, "busy")):
        host.says("npu-smi info", "\n".join(text.splitlines()[:lines]))
        findings = examine(Case(survey(Place(host.root, 5.0), tmp_path)))
        assert code in {each.code.removeprefix("doctor.") for each in findings}
    lines = [line for line in text.splitlines() if "python" not in line]
    host.says("npu-smi info", "\n".join(lines) + "\n| No running processes found in NPU 1            |\n")
    findings = examine(Case(survey(Place(host.root, 5.0), tmp_path)))
    assert "doctor.busy_unseen" in {each.code for each in findings}
