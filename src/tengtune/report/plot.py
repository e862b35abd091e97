"""loss.png, by matplotlib: an extra, because nothing else needs it."""

from __future__ import annotations

import importlib.util
from typing import IO

from tengtune.report.charts import smoothed
from tengtune.report.evidence import Evidence

ACCENT, PALE, INK = "#0b5cad", "#a9c6e6", "#1c2430"


def available() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(evidence: Evidence, stream: IO[bytes]) -> None:
    """Training and held-out loss over the steps as PNG. Labels are English: the fonts matplotlib brings
    have no Chinese."""
    from matplotlib.figure import Figure

    points = [(line["step"], line["loss"]) for line in evidence.steps]
    held = [(line["step"], line["heldout_loss"]) for line in evidence.evaluations]
    figure = Figure(figsize=(8, 4.5), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    axes.plot(*zip(*points, strict=True), color=PALE, linewidth=0.8, label="training, each step")
    axes.plot(*zip(*smoothed(points), strict=True), color=ACCENT, linewidth=1.8, label="training, smoothed")
    if held:
        axes.plot(
            *zip(*held, strict=True), color=INK, marker="o", markersize=4, linewidth=1.2, label="held out"
        )
    axes.set_xlabel("optimizer step")
    axes.set_ylabel("loss")
    axes.grid(color="#e3e7ec")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.savefig(stream, format="png")
