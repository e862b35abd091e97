"""Which versions go together: the published pairs and lists, and that a new one is one line."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.host_lab import healthy

from tengtune import doctor
from tengtune.doctor import compat, finding, software
from tengtune.host import chips, releases
from tengtune.host.place import Place
from tengtune.host.survey import survey
from tengtune.ui import language

NAMES = ("cann_driver", "torch_npu", "torch_npu_cann", "mindspore", "glibc", "hccl_env")


@pytest.mark.parametrize(
    ("cann", "driver", "standing"),
    [
        ("8.0.0", "24.1.0", "pair"),
        ("8.3.RC1", "25.3.rc1", "pair"),
        ("8.5.1", "25.5.0", "pair"),
        ("8.0.0", "24.1.rc3", "older"),
        ("8.0.0", "23.0.3", "older"),
        ("8.2.RC1", "24.1.rc3", "listed"),
        ("8.2.RC1", "25.0.rc1.1", "listed"),
        ("8.2.RC1", "24.1.rc1", "older"),
        ("8.2.RC1", "25.2.3", "newer"),
        ("8.5.0", "24.1.0", "excluded"),
        ("9.1.0", "25.0.rc1", "excluded"),
        ("9.1.1", "25.2.0", "listed"),
        ("9.2.0", "25.2.0", "excluded"),
        ("9.2.0", "24.1.0", "excluded"),
        ("9.2.0", "26.3.0", "newer"),
        ("9.0.0", "26.0.rc1", "pair"),
        ("77.0.0", "25.5.0", "unknown"),
        ("8.3.RC1.alpha003", "25.3.rc1", "unknown"),
        ("8.0.0", "x.x.x", "unknown"),
        ("6.3.RC1", "23.0.rc1", "listed"),
        ("6.3.RC2", "23.0.RC2", "unknown"),
        ("7.0.RC1", "23.0.RC3", "unknown"),
        ("6.0.1", "22.0.4", "newer"),
    ],
)
def test_driver_against_cann(cann: str, driver: str, standing: str) -> None:
    assert compat.driver_for(cann, driver).standing == standing


def versions(*columns: tuple[str, str]) -> list[str]:
    """Every version of some columns of the tables; 25.5.X as one of its patches."""
    words = [word for name, key in columns for row in compat.table(name) for word in row[key].split()]
    return sorted({word.replace(".X", ".2") for word in words})


def test_every_pair_of_versions_gets_a_whole_sentence_and_only_lists_block(tmp_path: Path) -> None:
    """Whatever CANN meets whatever driver. The files' own marks name nobody here, which is no list."""
    host = survey(Place(healthy(tmp_path).root), tmp_path)
    assert host.driver is not None
    assert host.cann is not None
    canns = versions(("cann_driver", "cann"), ("torch_npu", "cann"), ("mindspore", "cann"))
    columns = (("cann_driver", "paired"), ("cann_driver", "accepted"), ("cann_driver", "excluded"))
    drivers = [*versions(*columns), "20.2.0", "22.0.4", "23.0.RC1", "23.0.RC2", "23.0.RC3", "24.1.rc2.2"]
    assert len(canns) * len(drivers) > 800
    listed = {row["cann"] for row in compat.table("cann_driver")}
    for cann, number, mark in itertools.product(canns, drivers, ("C90", None)):
        driver = replace(host.driver, version=number, mark=mark)
        release = replace(host.cann.release, version=cann)
        case = finding.Case(replace(host, driver=driver, cann=replace(host.cann, release=release)))
        (found,) = [each for each in software.check(case) if each.code.startswith("doctor.driver_")]
        for text in found.texts().values():
            assert not re.search(r"_(?=_)|: *[.;,]|\(\)|\?|\.X_| {2}|None", text), (cann, number, text)
        if not any(releases.same(cann, each) for each in listed):
            assert found.level == "unknown", (cann, number)
        if found.level == "block":
            rows = [row for row in compat.table("cann_driver") if releases.same(cann, row["cann"])]
            out = " ".join(row["excluded"] for row in rows).lower().split()
            named = " ".join(f"{row['paired']} {row['accepted']}" for row in rows).lower().split()
            below = all(releases.older(number, each.removesuffix(".x")) for each in named)
            assert releases.among(number, out) or (below and cann >= "8.5"), (cann, number)


@pytest.mark.parametrize(
    ("torch_npu", "cann", "standing"),
    [
        ("2.7.1", "8.3.RC1", "pair"),
        ("2.1.0.post10", "8.0.0", "pair"),
        ("2.10.0", "9.0.0", "pair"),
        ("2.10.0", "8.1.RC1", "listed"),
        ("2.9.0", "9.2.0", "listed"),
        ("2.7.1", "8.0.RC2", "listed"),
        ("2.7.1", "8.5.0", "off"),
        ("2.13.0", "8.3.RC1", "off"),
        ("2.9.1", "8.5.0", "unknown"),
    ],
)
def test_torch_npu_against_cann(torch_npu: str, cann: str, standing: str) -> None:
    row = compat.torch_npu(torch_npu)
    assert row is not None
    assert compat.cann_for_torch_npu(row, cann).standing == standing


@pytest.mark.parametrize(
    ("mindspore", "cann", "standing"),
    [
        ("2.10.0", "9.1.0", "pair"),
        ("2.4.10", "8.0.0.beta1", "pair"),
        ("2.10.0", "8.2.RC1", "listed"),
        ("2.9.0", "9.1.0", "off"),
        ("2.7.2", "8.3.RC1", "off"),
        ("2.8.0", "8.5.0", "unknown"),
    ],
)
def test_mindspore_against_cann(mindspore: str, cann: str, standing: str) -> None:
    row = compat.mindspore(mindspore)
    assert row is not None
    assert compat.cann_for_mindspore(row, cann).standing == standing


def test_what_to_install() -> None:
    fitting = compat.torch_npu_for("8.5.0", "2.7.1")
    assert fitting is not None
    assert fitting["torch_npu"] == "2.7.1.post2"
    assert compat.torch_npu_for(None, "2.15.0") is None
    assert compat.torch_npu("2.7.1.post99") is None
    assert compat.glibc_for("torch", "2.6.0+cpu") == "2.28"
    assert compat.glibc_for("torch", "2.5.1") == "2.17"
    assert compat.glibc_for("torch", "9.0.0") is None


def test_wheels_for_python_3_14_exist_from_26_2_on() -> None:
    rows = [row for row in compat.table("torch_npu") if "3.14" in row["python"].split()]
    assert rows
    assert {row["release"] for row in rows} == {"26.2.0"}


@pytest.mark.parametrize("name", NAMES)
def test_every_row_has_its_source_and_versions_that_are_some(name: str) -> None:
    rows = compat.table(name)
    assert rows
    for row in rows:
        assert None not in row, row
        assert row["source"], row
        for key in row.keys() & {
            "cann",
            "paired",
            "accepted",
            "excluded",
            "torch",
            "torch_npu",
            "first",
            "last",
        }:
            for version in row[key].split():
                assert releases.key(version.removesuffix(".X")) is not None, row


def test_a_new_pair_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = compat.table("cann_driver")
    line = {
        "cann": "9.3.0",
        "paired": "26.5.0",
        "accepted": "26.0.X",
        "excluded": "25.5.X",
        "source": "notes",
    }
    monkeypatch.setattr(compat, "table", lambda name: (line, *rows))
    found = [compat.driver_for("9.3.0", driver).standing for driver in ("26.5.0", "26.0.RC1", "25.5.1")]
    assert found == ["pair", "listed", "excluded"]


def test_a_new_card_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chips.generation("910B9") is None
    known = chips.table()
    monkeypatch.setattr(chips, "table", lambda: replace(known, names=known.names | {"910B9": "A2"}))
    found = chips.generation("910B9")
    assert found is not None
    assert found.bf16


@pytest.mark.parametrize("name", ["910b3", "910B33", "910B3 ", "Ascend910B", "", "310", "910C"])
def test_a_name_that_nobody_listed_is_no_card_we_know(name: str) -> None:
    assert chips.generation(name, "Chip", 0) is None


def test_generations_name_columns_of_the_capabilities() -> None:
    from tengtune import capabilities

    generations = chips.table().generations
    assert set(chips.table().names.values()) <= generations.keys()
    for each in generations.values():
        assert each.capability is None or each.capability in capabilities.DEVICES
        assert each.capability != "ascend_910" or each.bf16 is False


def test_a_finding_that_is_not_ok_says_why_and_what_to_do() -> None:
    """Every text but those of OK lines has all three parts; what is a line of the screen has "what" alone."""
    texts = language.area_messages("doctor")
    lines = {
        code: entry
        for code, entry in texts.items()
        if isinstance(entry["en"], dict) and "what" in entry["en"]
    }
    assert len(lines) > 60
    for code, entry in lines.items():
        assert set(entry["en"]) in ({"what"}, {"what", "why", "fix"}, {"what", "fix"}), code
    assert finding.ok("doctor.torch_alone", torch="2").as_json() == {
        "level": "ok", "check": "torch_alone", "what": "PyTorch 2",
    }  # fmt: skip


def test_every_text_is_used_and_every_check_has_one() -> None:
    code = re.compile(r'"(doctor\.[a-z0-9_]+)"')
    sources = [
        *Path(doctor.__file__).parent.glob("*.py"),
        Path(doctor.__file__).parents[1] / "cli" / "doctor.py",
    ]
    used = {found for path in sources for found in code.findall(path.read_text("utf-8"))}
    assert used == language.area_messages("doctor").keys()
