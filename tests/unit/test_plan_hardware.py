"""Cards by the names people have for them, and how many: what is read into them, and what is refused."""

from __future__ import annotations

from importlib import resources

import pytest
import yaml

from tengtune.plan import hardware
from tengtune.ui.problems import Problem

FACTS = resources.files("tengtune.facts")


@pytest.mark.parametrize(
    ("text", "name", "count", "gib", "generation"),
    [
        ("4x atlas-300t-a2", "Atlas 300T A2", 4, 32, "A2"),
        ("910b4", "910B4", None, 32, "A2"),
        ("910B4-1", "910B4-1", None, 64, "A2"),
        ("Ascend 910B3", "910B3", None, 64, "A2"),
        ("8x Atlas 800T A2", "Atlas 800T A2", 8, 64, "A2"),
        ("Atlas 800T A2", "Atlas 800T A2", 8, 64, "A2"),
        ("2x8x 910b4", "910B4", 16, 32, "A2"),
        ("910b3*8", "910B3", 8, 64, "A2"),
        ("8x910b", "910B", 8, 64, "A2"),
        ("8x 910b-32g", "910B", 8, 32, "A2"),
        ("910a", "910A", None, 32, "910"),
        ("16x910c", "910C", 16, 64, "A3"),
        ("a100-80g", "A100 80 GB", None, 80, None),
        ("NVIDIA A100-SXM4-80GB", "A100 80 GB", None, 80, None),
        ("a100 40g", "A100 40 GB", None, 40, None),
        ("8x32g", "32 GB", 8, 32, None),
        ("8 × 64GB", "64 GB", 8, 64, None),
        ("Atlas 800T A2 x 2", "Atlas 800T A2", 16, 64, "A2"),
        ("８ｘ９１０Ｂ４", "910B4", 8, 32, "A2"),
        ("昇腾910B4", "910B4", None, 32, "A2"),
        ("4 张昇腾 910B4", "910B4", 4, 32, "A2"),
        ("910b4，8卡", "910B4", 8, 32, "A2"),
        ("2台8卡 910B4", "910B4", 16, 32, "A2"),
        ("2 台华为 Atlas 800T A2", "Atlas 800T A2", 16, 64, "A2"),
        ("Atlas 800 (Model 9000)", "Atlas 800 9000", 8, 32, "910"),
        ("Atlas 800", "Atlas 800 9000", 8, 32, "910"),
        ("ascend910a", "910A", None, 32, "910"),
        ("Ascend910B1", "910B1", None, 64, "A2"),
        ("Ascend910_9392", "A3", None, 64, "A3"),
        ("Atlas300TA2", "Atlas 300T A2", None, 32, "A2"),
        ("910Pro-A", "910ProA", None, 32, "910"),
        ("Atlas 300T Pro (Model 9000)", "Atlas 300T Pro", None, 32, "910"),
        ("8张910A", "910A", 8, 32, "910"),
        ("昇腾910B3 8卡", "910B3", 8, 64, "A2"),
        ("8 cards of 910b4", "910B4", 8, 32, "A2"),
        ("8x910_93", "A3", 8, 64, "A3"),
        ("四张300T", "Atlas 300T", 4, 32, "910"),
        ("两台8卡910B4", "910B4", 16, 32, "A2"),
        ("两台八卡910B4", "910B4", 16, 32, "A2"),
        ("十六张 910B4", "910B4", 16, 32, "A2"),
        ("一百二十八张910B3", "910B3", 128, 64, "A2"),
        ("910B3 二十卡", "910B3", 20, 64, "A2"),
        ("一六张910B3", "910B3", 16, 64, "A2"),
        ("单卡910B4", "910B4", 1, 32, "A2"),
        ("双机双卡 910B4", "910B4", 4, 32, "A2"),
        ("4个910B4", "910B4", 4, 32, "A2"),
        ("910b4-8卡", "910B4", 8, 32, "A2"),
    ],
)
def test_names_people_use(text: str, name: str, count: int | None, gib: int, generation: str | None) -> None:
    found = hardware.find(text)
    assert (found.name, found.count, found.generation) == (name, count, generation)
    assert found.memory_bytes == gib << 30


@pytest.mark.parametrize(
    ("text", "machines", "cards", "said"),
    [
        ("2x8x 910b4", 2, 16, False),
        ("2台8卡 910b4", 2, 16, False),
        ("2 台 Atlas 800T A2", 2, 16, False),
        ("８卡 910b4", 1, 8, False),
        ("2x Atlas 800 (9000)", 2, 16, True),
        ("2台 Atlas 800 9000", 2, 16, False),
        ("2 servers of Atlas 800T A2", 2, 16, False),
        ("2台8卡 910A", 2, 16, False),
        ("2台 910A", 2, 16, True),
        ("2x8x atlas 800 9000", 2, 16, False),
        ("4x Atlas 800T A2", 4, 32, True),
        ("1x Atlas 800T A2", 1, 8, False),
        ("1x4x Atlas 800T A2", 1, 4, False),
        ("4x atlas-300t-a2", 1, 4, False),
        ("16x910a", 2, 16, True),
        ("12x910a", 2, 12, True),
        ("16x910b2c", 1, 16, False),
        ("16xa100", 1, 16, False),
    ],
)
def test_machines_and_cards(text: str, machines: int, cards: int, said: bool) -> None:
    """What was read into a mere number is said."""
    found = hardware.find(text)
    assert (found.nodes, found.count) == (machines, cards)
    assert ("plan.counted_machines" in found.doubts) == said


def test_a_cpu_is_hardware() -> None:
    assert hardware.find("cpu").is_cpu


@pytest.mark.parametrize(
    ("text", "doubt"),
    [
        ("8x Atlas 800T A2", "plan.counted_cards"),
        ("atlas-300t-a2", "plan.memory_unproved"),
        ("8x910b", "plan.which_910b"),
        ("atlas 800", "plan.which_800"),
        ("8x910", "plan.which_910"),
        ("a100-80g", "plan.nominal"),
        ("8x32g", "plan.any_card"),
        ("8x48g", "plan.nominal"),
        ("8x910c", "plan.two_dies"),
        ("8x910_93", "plan.two_dies"),
        ("16xAscend910_9392", "plan.two_dies"),
    ],
)
def test_what_is_not_certain_is_said(text: str, doubt: str) -> None:
    assert doubt in hardware.find(text).doubts


@pytest.mark.parametrize(
    "text",
    [
        "atlas-800t-b2",
        "",
        "x",
        "8x",
        "910b5",
        "910b4x",
        "8x64",
        "8x0g",
        "0g",
        "٤x910b4",
        "4x٣٢g",
        "8卡",
        "8x950",
        "910b4,910b3",
    ],
)
def test_unknown_hardware_is_a_problem(text: str) -> None:
    with pytest.raises(Problem) as caught:
        hardware.find(text)
    assert caught.value.code == "plan.unknown_hardware"
    assert caught.value.values["near"]


@pytest.mark.parametrize(
    "text",
    [
        *(
            "0x910b4",
            "00x64g",
            "-1x910b4",
            "-4x910b3",
            "+4x910b3",
            "2.5x910b4",
            "999999x910b3",
            "9" * 5000 + "x910b4",
        ),
        *(
            "910b4x0",
            "910b4 * -2",
            "0台910b4",
            "零张910b4",
            "0台8卡 910b4",
            "-2张910b4",
            "1.5台 910b4",
            "100000卡 910b4",
        ),
        *("3x910b4x2", "3张910b4x2", "2x0x910b4", "0x8x910b4", "2台 a100-80g", "四张910b4x2"),
    ],
)
def test_a_wrong_count_is_not_called_an_unknown_card(text: str) -> None:
    with pytest.raises(Problem) as caught:
        hardware.find(text)
    assert caught.value.code == "plan.bad_count"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("4x310p3", "310P3"),
        ("8x310P", "310P"),
        ("310b", "310B"),
        ("ascend310", "310"),
        ("8x Atlas 300I Duo", "Atlas 300I Duo"),
        ("四张300V Pro", "Atlas 300V Pro"),
    ],
)
def test_an_inference_card_is_refused(text: str, name: str) -> None:
    with pytest.raises(Problem) as caught:
        hardware.find(text)
    assert (caught.value.code, caught.value.exit_code) == ("plan.no_training", 3)
    assert caught.value.values["name"] == name


def test_chips_are_those_of_the_doctor() -> None:
    """A trainable chip that npus.yaml knows has a memory here, and no other is listed."""
    npus = yaml.safe_load(FACTS.joinpath("npus.yaml").read_text("utf-8"))
    trains = {name for name, each in npus["names"].items() if npus["generations"][each]["trainable"]}
    assert set(hardware.table()["chips"]) == trains | {"A3"}
    products = hardware.table()["products"].values()
    assert {each["chip"] for each in products} <= set(hardware.table()["chips"])
