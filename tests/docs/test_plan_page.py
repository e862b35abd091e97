"""What the page of plan shows is what plan prints, but for the figures, which the tests of plan are about."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import pytest
from tests.cli.test_plan_cli import plan
from tests.docs.test_docs import blocks

from tengtune.ui import language


@pytest.fixture(autouse=True)
def language_of_its_own() -> Iterator[None]:
    yield
    language.choose(None)


def without_figures(line: str) -> str:
    return " ".join(re.sub(r"[\d.,]*\d", "#", line).split())


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_screens_shown_are_those_printed(lang: str) -> None:
    texts = [block.text.splitlines() for block in blocks(f"docs/{lang}/plan.md") if block.language == "text"]
    shown = [lines for lines in texts if lines[0].startswith("$ ")]
    assert len(shown) >= 3
    for command, *lines in shown:
        words = shlex.split(command.removeprefix("$ tengtune plan "))
        _, out, _ = plan(*words, lang=lang)
        printed = {without_figures(line) for line in out.splitlines()}
        assert [line for line in lines if line != "..." and without_figures(line) not in printed] == []
