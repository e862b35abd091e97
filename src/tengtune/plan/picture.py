"""Memory of a card over the length of rows, as a picture, by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

from tengtune.plan import choices, length
from tengtune.plan.judge import Plan
from tengtune.plan.strategy import Range
from tengtune.ui import language

SHORTEST, USUAL, STEP = 256, 32768, 64
ACCENT, PALE, INK, LIMIT = "#0b5cad", "#a9c6e6", "#1c2430", "#b3261e"
CHINESE = (
    "Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "Source Han Sans CN", "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei", "Microsoft YaHei", "SimHei", "PingFang SC", "Heiti SC", "Droid Sans Fallback",
)  # fmt: skip
"""Fonts that have Chinese, by their families."""


@dataclass(frozen=True)
class Curve:
    """needs: of a card, in bytes, at each of the lengths, in tokens; of a CPU, the host's. usable: bytes,
    None where it is not known. longest: the longest row of a multiple of 64 tokens that fits, None where none
    does; `length.LONGEST` where all do that were looked at."""

    lengths: list[int]
    needs: list[Range]
    usable: int | None
    longest: int | None


def curve(plan: Plan) -> Curve:
    """The plan at 256, 512 ... tokens: up to what the model was made for, its own rows and the longest that
    fits, so that the picture has the place where the curve meets the limit."""
    fits = length.longest(lambda tokens: _fits(plan, tokens), length.LONGEST, STEP)
    most = max(min(plan.spec.max_positions, USUAL), plan.strategy.row_tokens, fits or 0, SHORTEST)
    powers = [SHORTEST << power for power in range(most.bit_length())]
    between = [3 * tokens // 2 for tokens in powers]
    lengths = sorted({*(tokens for tokens in (*powers, *between) if tokens < most), most})
    there = plan.hardware
    usable = there.host_bytes if there.is_cpu else there.usable_bytes or there.memory_bytes
    return Curve(lengths, [_need(length.at(plan, tokens)) for tokens in lengths], usable, fits)


def draw(plan: Plan, name: str, stream: IO[bytes]) -> None:
    """The curve as PNG: the expected need, low to high, what is usable, the longest row that fits. In English
    where no font has Chinese."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, NullLocator

    texts, family = _texts(name, plan)
    with matplotlib.rc_context({"font.family": family}):
        drawn = curve(plan)
        figure = Figure(figsize=(8, 4.5), dpi=150, layout="constrained")
        axes = figure.add_subplot()
        bounds = ([each.low / 1e9 for each in drawn.needs], [each.high / 1e9 for each in drawn.needs])
        axes.fill_between(drawn.lengths, *bounds, color=PALE, alpha=0.6, linewidth=0, label=texts["band"])
        expected = [each.expected / 1e9 for each in drawn.needs]
        axes.plot(drawn.lengths, expected, color=ACCENT, linewidth=1.8, label=texts["expected"])
        if drawn.usable is not None:
            axes.axhline(drawn.usable / 1e9, color=LIMIT, linewidth=1.2, label=texts["usable"])
        if drawn.longest is not None:
            code = "longest" if drawn.longest < length.LONGEST else "all_fit"
            label = texts[code].format(tokens=drawn.longest)
            axes.axvline(drawn.longest, color=INK, linestyle="--", linewidth=1, label=label)
        made_for = plan.spec.max_positions
        if drawn.lengths[0] <= made_for < drawn.lengths[-1]:
            label = texts["made_for"].format(tokens=made_for)
            axes.axvline(made_for, color=INK, linestyle=":", linewidth=1, label=label)
        axes.set_xscale("log", base=2)
        ticks = [tokens for tokens in drawn.lengths if tokens & (tokens - 1) == 0] or drawn.lengths
        axes.xaxis.set_major_locator(FixedLocator([float(tick) for tick in ticks]))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticklabels([str(tick) for tick in ticks])
        axes.set_ylim(bottom=0)
        axes.set_title(texts["title"], fontsize=10)
        axes.set_xlabel(texts["length"])
        axes.set_ylabel(texts["gigabytes"])
        axes.grid(color="#e3e7ec")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
        figure.savefig(stream, format="png")


def chinese_font() -> str | None:
    """A font of this system that has Chinese."""
    from matplotlib import font_manager

    families = {font.name for font in font_manager.fontManager.ttflist}
    return next((name for name in CHINESE if name in families), None)


def _texts(name: str, plan: Plan) -> tuple[dict[str, str], Sequence[str]]:
    """The labels, and the fonts for them."""
    messages, chosen = language.area_messages("plan")["plan.chart"], language.current()
    font = chinese_font() if chosen == "zh" else None
    if font is None:
        chosen = "en"
    now = plan.strategy
    texts: dict[str, str] = dict(messages[chosen])
    texts["title"] = texts["title"].format(
        model=name,
        method=now.method,
        place=choices.place(plan, chosen),
        rows=now.rows,
        engine=plan.engine,
    )
    return texts, [*([font] if font else []), "DejaVu Sans"]


def _need(plan: Plan) -> Range:
    return plan.host if plan.hardware.is_cpu else plan.card.total


def _fits(plan: Plan, tokens: int) -> bool:
    return length.at(plan, tokens).card_verdict == "fits"
