"""The table of scores in the report: over how many questions, and what was not measured."""

from __future__ import annotations

import re
from pathlib import Path

from tests.report_lab import SETS, Page, collected, make_recipe, write_run

from tengtune.report.page import page


def test_each_measure_says_over_how_many_questions_it_is(tmp_path: Path) -> None:
    mixed = {**SETS[1], "asked": 60, "counts": {"contains": 60, "exact": 41}}
    unasked = {
        **SETS[1],
        "name": "long.json",
        "asked": 0,
        "measures": {},
        "counts": {},
        "loss": None,
        "gained": 0,
        "lost": 0,
        "missing": {"too_long": ["0", "3"], "no_loss": ["7"]},
    }
    recipe = make_recipe(tmp_path)
    write_run(recipe, sets=[mixed, unasked])
    text = " ".join(Page(page(collected(recipe))).text.split())
    assert re.search(r"answered rightly \([^)]* 60 questions", text)
    assert re.search(r"exact match \([^)]* 41 questions", text)
    assert "long.json" in text
    assert "2 questions too long for the model, not asked" in text
    assert "1 right answer too long for the model, loss not measured" in text
