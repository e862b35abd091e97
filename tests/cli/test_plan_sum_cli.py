"""That each figure on the screen of plan tells where it comes from."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from tests.cli.test_plan_cli import data, plan

from tengtune.ui import language

FULL = ("--model", "Qwen-14B", "--method", "full")
LORA = ("--model", "Qwen-14B", "--method", "lora")


@pytest.fixture(autouse=True)
def language_of_its_own() -> Iterator[None]:
    yield
    language.choose(None)


@pytest.mark.parametrize(("cards", "share"), [(2, "7.08"), (4, "3.54"), (8, "1.77"), (16, "0.89")])
def test_deepspeeds_step_has_its_bound_beside_it(cards: int, share: str) -> None:
    """14.17B parameters over the cards; of 8 bytes each no more than a billion are updated at a time."""
    asked = (*FULL, "--engine", "deepspeed", "--zero", "3", "--hardware", f"{cards}x64g", "--explain")
    out = plan(*asked)[1].splitlines()
    place = next(number for number, line in enumerate(out) if line.startswith("optimizer step"))
    assert float(out[place].split()[-2]) == pytest.approx(8 * min(1.0, 14.167 / cards), abs=0.01)
    assert f"the smaller of 1B and {share}B" in out[place + 2]


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize(
    "asked",
    [
        (*FULL, "--hardware", "4x910b4"),
        (*FULL, "--hardware", "8x910b3"),
        (*LORA, "--hardware", "8x910a"),
        (*LORA, "--hardware", "4x910a"),
        (*LORA, "--hardware", "8x910b3", "--seq-len", "8192"),
        (*FULL, "--hardware", "8x64g", "--engine", "mindspeed", "--tensor", "8"),
    ],
)
def test_a_term_that_is_missing_has_its_reason(asked: tuple[str, ...], lang: str) -> None:
    terms = data(*asked)["card"]["terms"]
    line = next(line for line in plan(*asked, lang=lang)[1].splitlines() if "GB" in line and " = " in line)
    about = line.split(": weights")[0].split("：权重")[0]
    gone = {"en": "activations and logits are gone", "zh": "激活值和 logits 已释放"}[lang]
    without = {"en": "no gradients yet", "zh": "还没有梯度"}[lang]
    assert (gone in about) == (terms["activations"]["expected"] == 0)
    if "loss" in about or "损失" in about:
        assert (without in about) == (terms["gradients"]["expected"] == 0)
    assert "{" not in about


def test_the_sum_of_all_terms_tells_the_same_moment() -> None:
    for asked in ((*FULL, "--hardware", "4x910b4"), (*LORA, "--hardware", "8x910a")):
        short, long = plan(*asked)[1], plan(*asked, "--explain")[1]
        point = re.search(r"GB a card, fullest (.+?): weights", short)
        assert point is not None
        assert f"A card is fullest {point[1]}." in long


@pytest.mark.parametrize(("asked", "named"), [((), False), (("--zero", "3"), True)])
def test_a_key_that_nobody_set_is_no_change(asked: tuple[str, ...], named: bool) -> None:
    """The screen shows ZeRO-3 as the nearest to fitting; who did not ask for it has nothing to take back."""
    answer = data(*FULL, "--hardware", "4x910a", *asked)
    today = [each for each in answer["remedies"] if not each["lacking"]]
    assert today
    assert all(("parallel.zero" in each["changes"]) == named for each in today)
    assert all(each["changes"]["train.method"] == "lora" for each in today)
