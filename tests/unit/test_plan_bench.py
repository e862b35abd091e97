"""The planner beside published peaks, as bench/planner.py scores it."""

from __future__ import annotations

import statistics
from types import ModuleType

import pytest
from tests import examples

from tengtune.plan import hardware, judge, nearest, published, score
from tengtune.plan.strategy import Strategy
from tengtune.ui import language


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return examples.bench("planner")


def test_it_is_near_published_peaks_and_nearer_than_the_naive_rule(bench: ModuleType) -> None:
    rows = [row for row in bench.read()[0] if row.exact]
    assert len(rows) == 85
    errors = [abs(bench.error(row, bench.predicted)) for row in rows]
    assert statistics.median(errors) < 0.05
    assert sum(error <= 0.1 for error in errors) >= 0.8 * len(rows)
    assert sum(error <= 0.2 for error in errors) >= 0.95 * len(rows)
    naive = [abs(bench.error(row, bench.naive)) for row in rows]
    assert statistics.median(naive) > 5 * statistics.median(errors)


def test_what_ran_is_never_called_impossible(bench: ModuleType) -> None:
    """The low figure of what ran on 80 GB is below them."""
    for row in bench.read()[0]:
        if row.exact and row.peak_bytes < 80 << 30:
            card = bench.memory.card_bytes(row.spec, row.strategy, row.profile, bench.exactly(0.44e9), 0.2e9)
            assert card.total.low <= 80 << 30


def test_speeds_are_near_published_ones(bench: ModuleType) -> None:
    """A100, A800 and Ascend 910B; the usual rule of 40% of the peak is far off, as short rows wait for the
    host."""
    rows = bench.timed()
    assert len(rows) == 73
    assert {row.profile.name for row in rows} == {"deepspeed", "hf-trainer", "mindformers", "mindspeed"}
    errors = [abs(bench.time_miss(row)) for row in rows]
    assert statistics.median(errors) < 0.15
    assert sum(error <= 0.3 for error in errors) >= 0.95 * len(rows)
    assert all(bench.used(row) <= 0.65 for row in rows)
    assert statistics.median(abs(bench.peak_share(row)) for row in rows) > 2 * statistics.median(errors)


@pytest.mark.parametrize("kind", ["memory", "time"])
def test_constants_carry_over_to_other_sizes(bench: ModuleType, kind: str) -> None:
    """Fitted without the size that is asked: the bars are 6 and 16% of peaks, 15% of speeds."""
    if kind == "memory":
        rows = [row for row in bench.read()[0] if row.exact]
        errors = sorted(map(abs, bench.held_out(rows, bench.MEMORY_GRID, bench.memory_miss)))
        assert errors[int(0.9 * len(errors))] < 0.16
        assert statistics.median(errors) < 0.06
    else:
        errors = [abs(each) for each in bench.held_out(bench.timed(), bench.TIME_GRID, bench.time_miss)]
        assert statistics.median(errors) < 0.15


@pytest.mark.parametrize("lang", language.LANGUAGES)
@pytest.mark.parametrize("engine", ["torch", "deepspeed"])
def test_rows_beside_the_score_that_are_not_in_it_are_told(
    lang: language.Language, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that state only the limit of the rows' length have <= in the table, and far larger errors."""
    monkeypatch.setattr(language, "current", lambda: lang)
    made = judge.make(published.rows()[0].spec, Strategy(), engine, hardware.find("910b3"))
    assert "<=" in score.line(made)
    limits = [row for row in published.rows() if not row.exact]
    assert limits
    assert all("<=" in nearest.lines([row])[-1] for row in limits)
    scored = sum(row.exact and row.peak_bytes is not None for row in published.rows())
    assert score.known()["all"]["peaks"][0] == scored
    # No row of the score stands farther from its figure than the line says.
    for kind, found in (("peaks", score.peaks()), ("speeds", score.speeds())):
        worst = score.known()["all"][kind][-1]
        assert max(map(abs, found)) == pytest.approx(worst, abs=6e-4)
    assert f"{worst:.0%}" in score.line(judge.make(made.spec, Strategy(), "torch", made.hardware))


def test_the_scores_on_the_screen_are_those_of_the_benchmark(bench: ModuleType) -> None:
    """facts/scores.yaml is what bench/planner.py --facts prints; the page of benchmarks has its figures."""
    assert score.known() == score.table()
    rows = [row for row in bench.read()[0] if row.exact]
    errors = sorted(abs(bench.error(row, bench.predicted)) for row in rows)
    assert score.known()["all"]["peaks"][1] == pytest.approx(statistics.median(errors), abs=6e-4)
    page = (examples.EXAMPLES.parent / "docs/benchmarks.md").read_text("utf-8")
    for kind in ("peaks", "speeds"):
        count, middle, most, _ = score.known()["all"][kind]
        assert f"| planner | {count} | {middle:.1%} | {most:.1%} |" in page
