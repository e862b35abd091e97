"""What the report says of which figures, and what it advises."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.report_lab import GENERAL, SETS, TRAIN, Page, collected, make_recipe, write_run

from tengtune.report.page import page
from tengtune.report.verdict import judge


def codes(folder: Path, changed: dict[str, Any] | None = None) -> list[tuple[str, str]]:
    """Level and code of every finding, the headline's first."""
    recipe = make_recipe(folder)
    write_run(recipe, **(changed or {}))
    verdict = judge(collected(recipe))
    return [(each.level, each.code) for each in (*verdict.headline, *verdict.findings)]


@pytest.mark.parametrize(
    ("before", "after", "finding"),
    [
        (2.0, 1.9, ("good", "learned")),  # down by 5%
        (2.0, 1.91, ("warn", "learned_little")),
        (2.0, 1.995, ("warn", "learned_nothing")),
        (2.0, 2.005, ("warn", "learned_nothing")),
        (2.0, 2.02, ("bad", "got_worse")),
        (None, None, ("note", "train_loss_only_unscored")),
        (2.0, None, ("bad", "heldout_not_finite")),
    ],
)
def test_whether_it_learned(
    tmp_path: Path, before: float | None, after: float | None, finding: tuple[str, str]
) -> None:
    held = {"loss_before": before, "loss_after": after, "tokens": 0 if before is None else 9984}
    assert codes(tmp_path, held)[0] == finding


@pytest.mark.parametrize(
    ("verdict", "finding"),
    [
        ("kept", ("good", "general_kept")),
        ("weakened", ("warn", "general_weakened")),
        ("lost", ("bad", "general_lost")),
        ("unknown", ("note", "general_unknown")),
    ],
)
def test_what_it_forgot(tmp_path: Path, verdict: str, finding: tuple[str, str]) -> None:
    general = {**GENERAL, "verdict": verdict, "lost": 1}
    assert codes(tmp_path, {"general": general})[1] == finding


def test_flips_that_may_be_chance_are_told_as_such(tmp_path: Path) -> None:
    general = {**GENERAL, "verdict": "kept", "known": 8, "lost": 1, "gained": 2}
    assert codes(tmp_path, {"general": general})[1] == ("good", "general_kept_by_chance")
    text = Page(page(collected(make_recipe(tmp_path)))).text
    assert "of 8 general questions it could answer, 7 are still answered rightly and 1 no longer" in text
    assert "8 道常识题，训练后仍答对 7 道、答错 1 道，另有 2 道新答对" in text


@pytest.mark.parametrize(
    ("tokens", "steps", "advice"),
    [
        (7, 3, {"more_heldout", "more_steps"}),
        (99, 300, {"more_heldout"}),
        (100, 9, {"more_steps"}),
        (100, 10, set()),
    ],
)
def test_too_little_is_not_judged(tmp_path: Path, tokens: int, steps: int, advice: set[str]) -> None:
    """Neither learned nor worse nor overfitted, whatever the losses; what it lacks is the advice."""
    recipe = make_recipe(tmp_path)
    folder = write_run(recipe, tokens=tokens, loss_after=1.0)
    figures = {**TRAIN, "steps": steps, "best_heldout_loss": 0.1, "best_step": 2}
    record = {"figures": figures, "seconds": 1.0, "started": "2026-11-30T09:00:00+0800"}
    (folder / "train.json").write_text(json.dumps(record))
    verdict = judge(collected(recipe))
    assert set(verdict.advice) & {"more_heldout", "more_steps"} == advice
    assert (verdict.headline[0].code == "too_little") is bool(advice)
    assert ("overfitted" in [each.code for each in verdict.findings]) is (tokens >= 100)
    if advice:
        text = Page(page(collected(recipe))).text
        assert f"Too little to judge: {tokens} held-out tokens and {steps} optimizer steps" in text
        assert "It learned" not in text


@pytest.mark.parametrize(
    ("steps", "after", "advice", "absent"),
    [
        (3, 1.2, ["mix_general", "lower_lr"], "gentler"),  # more steps, but not fewer epochs
        (300, 2.3, ["mix_general", "gentler"], "train_more"),  # learned little and forgot
    ],
)
def test_no_advice_contradicts_another(
    tmp_path: Path, steps: int, after: float, advice: list[str], absent: str
) -> None:
    recipe = make_recipe(tmp_path)
    folder = write_run(recipe, general={**GENERAL, "verdict": "lost"}, loss_after=after)
    record = {"figures": {**TRAIN, "steps": steps}, "seconds": 1.0, "started": "2026-11-30T09:00:00+0800"}
    (folder / "train.json").write_text(json.dumps(record))
    found = judge(collected(recipe)).advice
    assert found[:2] == advice
    assert absent not in found


def test_everything_else_that_is_worth_a_line(tmp_path: Path) -> None:
    found = codes(tmp_path, {"loss_after": 1.30})
    assert found[2:] == [
        ("note", "set_accuracy_same"),
        ("good", "set_contains_better"),
        ("warn", "skipped"),
        ("note", "resumed"),
        ("note", "dropped"),
        ("warn", "cut"),
    ]
    worse = {**SETS[1], "measures": {"contains": [0.7, 0.15]}, "gained": 1, "lost": 34}
    assert ("warn", "set_contains_worse") in codes(tmp_path / "2", {"sets": [worse]})


def test_overfitting_is_seen_unless_the_best_weights_were_taken(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path)
    folder = write_run(recipe)
    for best, taken, seen in ((100, 300, True), (100, 100, False), (300, 300, False)):
        figures = {**TRAIN, "best_heldout_loss": 1.1, "best_step": best, "weights_of_step": taken}
        record = {"figures": figures, "seconds": 1.0, "started": "2026-11-30T09:00:00+0800"}
        (folder / "train.json").write_text(json.dumps(record))
        verdict = judge(collected(recipe))
        assert ("overfitted" in [each.code for each in verdict.findings]) is seen
        assert ("early_stop" in verdict.advice) is seen


def test_the_most_pressing_advice_comes_first_and_once(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path)
    write_run(recipe, general={**GENERAL, "verdict": "lost"}, loss_after=2.6)
    advice = judge(collected(recipe)).advice
    assert advice[:4] == ["lower_lr", "look_at_data", "mix_general", "gentler"]
    assert len(advice) == len(set(advice))


def test_without_scores_it_is_said_whether_anything_was_held_out(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path)
    folder = write_run(recipe)
    (folder / "evaluate.json").unlink()
    for held, code, advice in (
        (True, "train_loss_only_unscored", "score_it"),
        (False, "train_loss_only", "hold_out"),
    ):
        if not held:
            record = json.loads((folder / "data.json").read_text("utf-8"))
            record["figures"].pop("heldout", None)
            (folder / "data.json").write_text(json.dumps(record), "utf-8")
        finding = judge(collected(recipe)).headline[0]
        assert (finding.code, finding.advice) == (code, (advice,))
