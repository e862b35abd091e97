"""npu-smi's tables and queries: every saved output is read to what it says."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tengtune.host import npu_smi, npu_smi_queries

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "npu-smi"
INDEX: list[dict[str, Any]] = json.loads((FOLDER / "index.json").read_text("utf-8"))


def named(prefix: str) -> list[Any]:
    return [pytest.param(each, id=each["file"]) for each in INDEX if each["file"].startswith(prefix)]


def text(case: dict[str, Any]) -> str:
    return (FOLDER / case["file"]).read_text("utf-8")


def as_expected(table: npu_smi.Table, expected: dict[str, Any]) -> dict[str, Any]:
    """The table in the index' words."""
    chips = []
    for chip, wanted in zip(table.chips, expected["chips"], strict=True):
        generation = table.generation(chip)
        judged = {
            "generation": generation and generation.name,
            "bf16": generation and generation.bf16,
            "trainable": generation and generation.trainable,
            "in_use": table.in_use(chip),
        }
        found = asdict(chip) | judged
        chips.append({key: found[key] for key in wanted})
        assert all(found[key] is None for key in found.keys() - wanted)
    return {
        "tool_version": table.tool_version,
        "driver_version": table.driver_version,
        "layout": table.layout,
        "process_columns": table.process_columns,
        "chips": chips,
        "processes": [asdict(process) for process in table.processes],
        "npus_reported_idle": table.idle,
    }


@pytest.mark.parametrize("case", named("info_"))
def test_every_table(case: dict[str, Any]) -> None:
    expected = case["expected"]
    assert as_expected(npu_smi.read(text(case)), expected) == expected


@pytest.mark.parametrize("case", named("err_"))
def test_why_there_is_no_table(case: dict[str, Any]) -> None:
    meaning = {"smi_8020": "busy", "smi_8005": "denied"}
    assert npu_smi.fault(text(case)) == meaning[case["expected"]["diagnosis"]]
    assert npu_smi.read(text(case)) == npu_smi.Table()


def answer(file: str, text: str) -> dict[str, Any]:
    """What a query's text says, in the index' words."""
    kind = file.split("_")[1]
    if kind == "m":
        found = npu_smi_queries.read_map(text)
        cards = {str(logic): list(card) for logic, card in found.cards.items()}
        return {"logic_to_npu": cards, "skipped_rows": found.skipped, "chip": found.name}
    if kind == "l":
        listing = npu_smi_queries.read_list(text)
        return {"total": listing.total, "npu_ids": list(listing.npus), "product": listing.product} | {
            "chips_per_npu": listing.chips_per_npu
        }
    if kind == "board":
        return {"pci_device": None} | asdict(npu_smi_queries.read_board(text))
    if kind == "usages":
        usages = npu_smi_queries.read_usages(text)
        return asdict(usages) | {
            "has_aivector_line": usages.aivector,
            "generation": {True: "910", False: "A2", None: None}[usages.first_generation],
        }
    if kind == "common":
        common = npu_smi_queries.read_common(text)
        return {"npu": common.npu, "aicore_count": common.cores, "aicore_mhz": common.mhz} | {
            "fp16_tflops": common.fp16_tflops, "temp_c": common.temp_c, "power_w": common.power_w,
        }  # fmt: skip
    if kind == "health":
        health, codes = npu_smi_queries.read_health(text)
        return {"health": health, "codes": codes}
    topology = npu_smi_queries.read_topo(text)
    return {
        "npus": len(topology.cards),
        "links": topology.kinds,
        "hccs": "HCCS" in topology.kinds,
        "pcie_only": topology.pcie_only,
        "groups": topology.groups,
        "labels": topology.label,
    }


NO_READING = {"meaning", "skip_chip"}
"""Remarks of the index, and a row that is left out."""


@pytest.mark.parametrize("case", named("sub_"))
def test_every_query(case: dict[str, Any]) -> None:
    expected = {key: value for key, value in case["expected"].items() if key not in NO_READING}
    found = answer(case["file"], text(case))
    assert {key: found[key] for key in expected} == expected


ROWS = """\
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B1               | OK            | 88.4        46                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          4175 / 65536         |
+===========================+===============+====================================================+
| 1     910B1               | Alarm         | 92.1        47                0    / 0             |
| 0                         | 0000:01:00.0  | 0           0    / 0          51175/ 65536         |
+===========================+===============+====================================================+
"""


def without(*lost: int) -> list[npu_smi.Chip]:
    lines = [line for number, line in enumerate(ROWS.splitlines()) if number not in lost]
    return npu_smi.read("\n".join(lines)).chips


@pytest.mark.parametrize(
    ("lost", "expected"),
    [
        ((), [(0, "OK", 4175), (1, "Alarm", 51175)]),
        ((4,), [(0, "OK", None), (1, "Alarm", 51175)]),
        ((4, 5), [(0, "OK", None), (1, "Alarm", 51175)]),
        ((4, 6), [(0, "OK", None)]),
        ((3,), [(1, "Alarm", 51175)]),
        ((7,), [(0, "OK", 4175), (1, "Alarm", None)]),
    ],
)
def test_a_lost_row_is_not_taken_from_another_card(
    lost: tuple[int, ...], expected: list[tuple[int, str, int | None]]
) -> None:
    assert [(chip.npu, chip.health, chip.hbm_used_mb) for chip in without(*lost)] == expected


@pytest.mark.parametrize("end", ["", " ", "5", "65", " / 6553", " / 65536"])
def test_a_row_without_its_closing_bar_is_not_trusted(end: str) -> None:
    text = "\n".join(ROWS.splitlines()[:4])
    row = f"| 0                         | 0000:C1:00.0  | 7           0    / 0          417{end}"
    (chip,) = npu_smi.read(f"{text}\n{row}").chips
    assert chip.bus_id == "0000:C1:00.0"
    assert (chip.util_pct, chip.hbm_used_mb, chip.hbm_total_mb) == (None, None, None)


def test_columns_are_found_by_their_titles() -> None:
    moved = ROWS.replace(
        "AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)", "HBM-Usage(MB)  AICore(%)  Memory-Usage(MB)"
    )
    moved = moved.replace(
        "0           0    / 0          4175 / 65536", "4175 / 65536   0           0    / 0         "
    )
    first = npu_smi.read(moved).chips[0]
    assert (first.hbm_used_mb, first.hbm_total_mb, first.util_pct, first.memory_total_mb) == (
        4175,
        65536,
        0,
        0,
    )


CARDS = [(0, "910B1", "OK", 4175), (1, "910B1", "Alarm", 51175)]


def seen(text: str) -> list[tuple[int, str, str | None, int | None]]:
    return [(chip.npu, chip.name, chip.health, chip.hbm_used_mb) for chip in npu_smi.read(text).chips]


@pytest.mark.parametrize(
    "text",
    [
        ROWS.replace("\n", "\r\n"),
        ROWS.replace("   ", "\t"),
        ROWS.replace("910B1", "\x1b[01;31m\x1b[K910B1\x1b[m\x1b[K").replace("OK", "\x1b[32mOK\x1b[0m"),
        "\n".join(f"2026-01-15 10:00:00 host: {line}" for line in ROWS.splitlines()),
        "\n".join(f"> {line}" for line in ROWS.splitlines()),
    ],
    ids=["CRLF", "tabs", "colours", "stamped", "quoted"],
)
def test_a_table_is_read_through_what_a_terminal_or_a_letter_makes_of_it(text: str) -> None:
    assert seen(text) == CARDS


HEAD = "| npu-smi 25.2.0                   Version: {}                                               |\n"


def test_of_several_tables_the_last_whole_one_counts() -> None:
    """`watch` and monitors print one after the other: these are no more cards."""
    earlier = HEAD.format("25.2.0") + ROWS.replace("51175", "99999")
    assert seen(earlier + HEAD.format("25.2.0") + ROWS) == CARDS
    cut = "\n".join(ROWS.splitlines()[:5])
    assert seen(HEAD.format("25.2.0") + ROWS + HEAD.format("25.2.0") + cut) == CARDS


IDLE = """\
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
| No running processes found in NPU 12                                                            |
"""


@pytest.mark.parametrize(("end", "idle"), [("", [12]), ("2         |", [12]), ("2", [])])
def test_half_a_line_does_not_tell_of_another_card(end: str, idle: list[int]) -> None:
    text = IDLE.partition("2  ")[0] + end if end else IDLE
    table = npu_smi.read(ROWS + text)
    assert (table.idle, table.told) == (idle, set(idle))


def test_a_second_row_below_another_tables_head_is_of_no_card() -> None:
    rows = ROWS.splitlines(keepends=True)
    again = HEAD.format("25.2.0") + rows[4]
    assert seen("".join(rows[:4]) + again) == [(0, "910B1", "OK", None)]


def test_of_several_tables_the_last_whose_processes_are_told_counts() -> None:
    rows = HEAD.format("25.2.0") + ROWS
    idle = IDLE.replace("12 ", "0  ") + IDLE.splitlines()[1].replace("12 ", "1  ")
    assert npu_smi.read(f"{rows}{idle}\n{rows}").told == {0, 1}


@pytest.mark.parametrize(("head", "expected"), [("25.2.0", "25.2.0"), ("NA    ", None), ("      ", None)])
def test_a_driver_without_a_version_has_none(head: str, expected: str | None) -> None:
    assert npu_smi.read(HEAD.format(head) + ROWS).driver_version == expected


def test_a_card_named_by_a_number_is_a_card() -> None:
    """Ascend 310; its table has fewer columns. Nobody lists it, so it is of no generation."""
    table = npu_smi.read(
        "| NPU     Name              | Health          | Power(W)          Temp(C)             |\n"
        "| Chip    Device            | Bus-Id          | AICore(%)         Memory-Usage(MB)    |\n"
        "| 0       310               | OK              | 12.8              59                  |\n"
        "| 0       0                 | 0000:86:00.0    | 0                 2621 / 8192         |\n"
    )
    (chip,) = table.chips
    assert (chip.npu, chip.name, chip.health, chip.device, chip.memory_total_mb) == (0, "310", "OK", 0, 8192)
    assert table.generation(chip) is None


@pytest.mark.parametrize(
    ("name", "generation"),
    [("Ascend910B3", "A2"), ("Ascend 910B4-1", "A2"), ("Ascend910ProB", "910"), ("910B", "910")]
    + [(name, None) for name in ("Ascend910B", "Ascend 910B", "910B5", "910B2-1", "Ascend910", "910C", "x")],
)
def test_a_name_stands_for_a_generation_or_for_none(name: str, generation: str | None) -> None:
    rows = ROWS.replace("910B1       ", f"{name:<12}").replace("65536", "32768")
    (chip,) = npu_smi.read("\n".join(rows.splitlines()[:5])).chips
    found = npu_smi.Table(layout="Chip").generation(chip)
    assert (chip.name, found and found.name) == (name, generation)


def test_a_process_name_may_hold_a_bar() -> None:
    (process,) = npu_smi.read(
        "| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |\n"
        "| 0       0                 | 4711          | a|b                      | 34567                   |\n"
    ).processes
    assert (process.pid, process.name, process.memory_mb) == (4711, "a|b", 34567)


def test_the_map_of_later_drivers_has_more_columns() -> None:
    found = npu_smi_queries.read_map(
        "NPU ID    Chip ID    Chip Logic ID    Chip Phy-ID    Chip Name\n"
        "0         0          0                6              Ascend910\n"
        "0         1          1                7              Ascend910\n"
        "0         2          -                -              Mcu\n"
    )
    assert (found.cards, found.name, found.skipped) == ({0: (0, 0), 1: (0, 1)}, "Ascend910", 1)
    found = npu_smi_queries.read_map(
        "NPU ID    Slot ID    Chip ID    Chip Logic ID    Chip Phy-ID    Chip Name\n"
        "3         9          0          2                6              Ascend 950\n"
    )
    assert (found.cards, found.name) == ({2: (3, 0)}, "950")


def test_codes_of_both_dies_are_read() -> None:
    text = (
        "Health Status : OK\nError Code : NA\n\nHealth Status : Warning\nError Code : 80E01801 0x80CB8002\n"
    )
    assert npu_smi_queries.read_health(text) == ("OK", ["0x80E01801", "0x80CB8002"])


def test_a_first_910_with_the_memory_of_another_is_none() -> None:
    """A masked or edited table: 64 GB were never built on the generation whose name it bears."""
    table = npu_smi.read(ROWS.replace("910B1", "910B ").replace("65536", "32768"))
    assert [each and each.name for each in map(table.generation, table.chips)] == ["910", "910"]
    table = npu_smi.read(ROWS.replace("910B1", "910B "))
    assert [table.generation(chip) for chip in table.chips] == [None, None]


def test_an_output_without_end_is_no_host_of_as_many_cards() -> None:
    assert len(npu_smi.read("| 0     910B3  | OK  | 1  2  0 / 0 |\n" * 50_000).chips) == npu_smi.MOST
