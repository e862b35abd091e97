"""Line charts as inline SVG. The drawing is stretched to the page's width; labels are HTML, so that they
stay readable on a phone, and lines keep their width."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tengtune.report.html import Content, Html, join, tag

Point = tuple[float, float]

WIDTH, HEIGHT = 1000.0, 400.0
MOST_POINTS = 400
"""Points of a line; more would not be seen, and would make the page heavy."""


@dataclass(frozen=True)
class Line:
    """A line: its name in the legend, the class that styles it, (x, y) by x; dots: each point is marked."""

    name: Content
    style: str
    points: Sequence[Point]
    dots: bool = False


def chart(
    title: Content,
    lines: Sequence[Line],
    marks: Sequence[float] = (),
    note: Content = None,
    style: str | None = None,
) -> Html:
    """The lines over one pair of axes, with a legend if there are several. marks: x of vertical lines."""
    lines = [line for line in lines if line.points]
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points]
    x_ticks, y_ticks = ticks(min(xs), max(xs)), ticks(min(ys), max(ys))
    left, right = min(xs), max(max(xs), min(xs) + 1)
    bottom, top = min(min(ys), y_ticks[0]), max(max(ys), y_ticks[-1])
    if bottom == top:
        bottom, top = bottom - 1, top + 1

    def place(x: float, y: float) -> Point:
        return (x - left) / (right - left) * WIDTH, (top - y) / (top - bottom) * HEIGHT

    grid = [_path([place(left, y), place(right, y)], "grid") for y in y_ticks]
    upright = [_path([place(x, bottom), place(x, top)], "mark") for x in marks if left <= x <= right]
    drawn = [_draw([place(*point) for point in line.points], line) for line in lines]
    y_labels = [tag("span", number(y), style=f"top:{place(left, y)[1] / HEIGHT:.2%}") for y in y_ticks]
    x_labels = [
        tag("span", number(x), style=f"left:{place(x, bottom)[0] / WIDTH:.2%}")
        for x in x_ticks
        if left <= x <= right
    ]
    keys = [tag("span", tag("i", class_=f"key {line.style}"), line.name) for line in lines]
    legend = tag("span", keys, class_="legend") if len(lines) > 1 else None
    svg = tag(
        "svg",
        grid,
        upright,
        drawn,
        viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}",
        preserveAspectRatio="none",
        aria_hidden="true",
    )
    return tag(
        "figure",
        tag("figcaption", tag("b", title), legend),
        tag("div", tag("div", y_labels, class_="y"), svg, tag("div", x_labels, class_="x"), class_="plot"),
        tag("p", note, class_="small") if note else None,
        class_=f"chart {style or ''}".rstrip(),
    )


def ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """About `wanted` round numbers around low and high: 1, 2, 2.5 or 5 times a power of ten apart."""
    if not math.isfinite(high - low) or high <= low:
        return [low]
    raw = (high - low) / (wanted - 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def number(value: float) -> str:
    """A label: 12000, 0.25, 1e-05."""
    if value and (abs(value) < 1e-3 or abs(value) >= 1e6):
        mantissa, _, exponent = f"{value:.1e}".partition("e")
        return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
    return f"{value:,.10g}"


def smoothed(points: Sequence[Point]) -> list[Point]:
    """An exponential moving average over about a thirtieth of the points, without the start's bias."""
    keep = 1 - 1 / max(len(points) / 30, 1)
    total, weight, result = 0.0, 0.0, []
    for x, y in points:
        total, weight = keep * total + (1 - keep) * y, keep * weight + (1 - keep)
        result.append((x, total / weight))
    return result


def thinned(points: Sequence[Point]) -> list[Point]:
    """At most about MOST_POINTS points: of each stretch its lowest and highest, so that no spike is lost."""
    if len(points) <= MOST_POINTS:
        return list(points)
    size = math.ceil(2 * len(points) / MOST_POINTS)
    kept: list[Point] = []
    for start in range(0, len(points), size):
        part = points[start : start + size]
        kept += sorted({min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])})
    return [*kept, points[-1]] if kept[-1] != points[-1] else kept


def _draw(points: Sequence[Point], line: Line) -> Html:
    dots = [_path([point, point], f"{line.style} dot") for point in points] if line.dots else []
    return join([_path(thinned(points), line.style), *dots])


def _path(points: Sequence[Point], style: str) -> Html:
    """A polyline; of a single point twice, round ends make a dot that stretching leaves round."""
    steps = " ".join(f"{'L' if i else 'M'}{x:.1f} {y:.1f}" for i, (x, y) in enumerate(points))
    return tag("path", class_=style, d=steps, vector_effect="non-scaling-stroke")
