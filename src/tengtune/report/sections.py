"""The sections of the training, the data, what it took and how it was set; left out when there is nothing to
show in them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from tengtune.data.fault import place
from tengtune.report.charts import Line, chart, smoothed
from tengtune.report.evidence import Evidence
from tengtune.report.html import Content, Html, say, tag
from tengtune.report.parts import clipped, duration, facts, figure, more, section, table
from tengtune.ui import language
from tengtune.ui.lists import joined

RECORDS, EVENTS = 50, 50
"""So many of each are shown."""
FEW = 60
"""With fewer steps a curve needs no smoothing."""


def curves(evidence: Evidence) -> Html | None:
    """Loss, learning rate and gradient norm over the steps, and the events."""
    steps = evidence.steps
    if len(steps) < 2:
        return None
    loss = [(float(line["step"]), float(line["loss"])) for line in steps]
    events = evidence.events
    shown = sorted({float(line["step"]) for line in events})[:EVENTS]
    lines = [Line(say("report.line_train"), "main", loss)]
    if len(loss) >= FEW:
        lines = [
            Line(say("report.line_raw"), "raw", loss),
            Line(say("report.line_smooth"), "main", smoothed(loss)),
        ]
    lines.append(Line(say("report.line_heldout"), "second", _heldout(evidence), dots=True))
    note = say("report.axis" if shown else "report.axis_plain")
    charts = [chart(say("report.chart_loss"), lines, shown, note, style="wide")]
    for key, title in (("lr", "report.chart_lr"), ("grad_norm", "report.chart_grad")):
        points = [(float(line["step"]), float(line[key])) for line in steps if line.get(key) is not None]
        if len(points) > 1:
            charts.append(chart(say(title), [Line(say("report.line_train"), "main", points)]))
    return section("curves", tag("div", charts, class_="charts"), _events(events))


def _heldout(evidence: Evidence) -> list[tuple[float, float]]:
    """Held-out losses by step: before, during and after training."""
    scores, train = evidence.figures("evaluate"), evidence.figures("train")
    points = {float(line["step"]): float(line["heldout_loss"]) for line in evidence.evaluations}
    if scores.get("loss_before") is not None:
        points[0.0] = scores["loss_before"]
    if scores.get("loss_after") is not None and train:
        points[float(train["weights_of_step"])] = scores["loss_after"]
    return sorted(points.items())


def _events(events: Sequence[dict[str, Any]]) -> list[Content]:
    if not events:
        return []
    rows = [
        [line["step"], str(line.get("time", ""))[:19].replace("T", " "), _event(line)]
        for line in events[:EVENTS]
    ]
    heads = [say("report.step"), say("report.when"), say("report.what")]
    others = more(len(events) - EVENTS, "metrics.jsonl")
    return [tag("h3", say("report.events")), table(heads, rows, numbers=(0,)), others]


def _event(line: Mapping[str, Any]) -> Content:
    values = {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in line.items()}
    event = f"report.event_{line['event']}"
    reason = f"{event}_{str(line.get('reason')).replace(' ', '_')}"
    codes = [f"{reason}_nowhere", reason, event] if line.get("place", "") is None else [reason, event]
    known = language.area_messages("report")
    code = next((code for code in codes if code in known), None)
    return clipped(line["event"]) if code is None else _told(known[code], values)


def data(evidence: Evidence) -> Html | None:
    """What the data step read, kept, dropped and cut."""
    figures = evidence.figures("data")
    if not figures:
        return None
    dropped = sum(figures["dropped"].values())
    rows: list[list[Content]] = [
        [say("report.records"), f"{figures['records']:,}"],
        [say("report.kept"), f"{figures['kept']:,}"],
        [say("report.dropped_count"), f"{dropped:,}"],
    ]
    if figures["lengths"]:
        lengths = " / ".join(f"{value:,}" for value in figures["lengths"].values())
        rows.append([say("report.lengths"), lengths])
    keys = joined(f"{key} ({count})" for key, count in list(figures["unused_keys"].items())[:12])
    shown = keys and evidence.recipe.output.samples  # a key is the user's as well
    unused = tag("p", say("report.unused", keys=keys), class_="small") if shown else None
    return section(
        "data",
        facts(rows),
        tag("h3", say("report.rows")),
        _stores(figures),
        _reasons(evidence, "dropped_why", figures["dropped"]),
        _reasons(evidence, "remarks_why", figures["remarks"]),
        unused,
        _records(evidence),
    )


def _stores(figures: Mapping[str, Any]) -> Html:
    """The rows that were made, for training and held out."""
    stores = {name: figures[name] for name in ("train", "heldout") if figures.get(name)}
    rows: list[list[Content]] = [
        [say(f"data.{name}"), *(f"{store[name]:,}" for store in stores.values())]
        for name in ("rows", "documents", "tokens", "trained_tokens")
    ]
    rows.append([say("data.fill"), *(f"{store['fill']:.1%}" for store in stores.values())])
    return table(["", *(say(f"data.{name}") for name in stores)], rows, numbers=range(1, len(stores) + 1))


def _reasons(evidence: Evidence, title: str, counts: Mapping[str, int]) -> list[Content]:
    if not counts:
        return []
    rows = [
        [_reason(code, evidence.recipe.data.seq_len), f"{count:,}"]
        for code, count in sorted(counts.items(), key=lambda item: -item[1])
    ]
    heads = [say("report.reason"), say("report.number")]
    return [tag("h3", say(f"report.{title}")), table(heads, rows, numbers=(1,))]


def _reason(code: str, seq_len: int) -> Content:
    entry = language.area_messages("data").get(f"data.{code}")
    if entry is None:
        return code
    return _told(entry, {"seq_len": seq_len})


class _Unknown(str):
    """Stands for a value that is not known, or not one for all records, however it is to be formatted."""

    def __format__(self, spec: str) -> str:
        return str(self)


class _Values(dict[str, object]):
    """Values of which some may not be known: what is not in it is three dots."""

    def __missing__(self, key: str) -> str:
        return _Unknown("…")


def _told(entry: Mapping[str, str], values: Mapping[str, object]) -> Content:
    """A text in both languages, with three dots for each value there is none of."""
    return [
        tag("span", clipped(language.fill(entry[name], _Values(values))), lang=name) for name in ("zh", "en")
    ]


def _records(evidence: Evidence) -> Html | None:
    """The first records that were dropped or odd, one by one."""
    lines = evidence.dropped[:RECORDS]
    if not lines:
        return None
    rows = [[_place(line), clipped(str(line.get("reason", "")))] for line in lines]
    body = table([say("report.record"), say("report.reason")], rows)
    figures = evidence.figures("data")
    total = sum(figures["dropped"].values()) + sum(figures["remarks"].values())
    return tag(
        "details", tag("summary", say("report.which")), body, more(total - len(lines), "data/dropped.jsonl")
    )


def _place(line: Mapping[str, Any]) -> str:
    return place(str(line.get("file")), line.get("record"), line.get("line"))


def costs(evidence: Evidence) -> Html | None:
    """What the training took, as measured, and the time of each step."""
    train = evidence.figures("train")
    rows: list[list[Content]] = []
    if train:
        seconds = [
            line["seconds"] / _interval(evidence, line) for line in evidence.steps if line.get("seconds")
        ]
        rows = [
            [say("report.speed"), f"{train['tokens_per_s']:,.1f}"],
            [say("report.trained"), f"{train['trained_tokens']:,}"],
            [say("report.steps"), f"{train['steps']:,}"],
            [say("report.parameters"), f"{train['trainable_parameters']:,}"],
            [say("report.memory"), f"{train['peak_memory_bytes'] / 1e9:.2f} GB"],
        ]
        if train.get("planned_memory_bytes") and train.get("measured_memory_bytes"):
            low, planned, high = (f"{size / 1e9:.2f}" for size in train["planned_memory_bytes"])
            measured = f"{train['measured_memory_bytes'] / 1e9:.2f} GB"
            told = say("report.as_planned", planned=planned, low=low, high=high)
            rows.append([say("report.rank_memory"), [measured, " ", told]])
        if seconds:
            rows.insert(1, [say("report.step_time"), figure(statistics.median(seconds))])
        whole = evidence.training_seconds
        if "saving_seconds" in train and whole:
            values = {
                "seconds": f"{train['saving_seconds']:.1f}",
                "percent": f"{train['saving_seconds'] / whole:.1%}",
            }
            rows.append([say("report.saving"), say("report.of_training", **values)])
    times: list[list[Content]] = [
        [name, duration(record["seconds"])]
        for name, record in evidence.records.items()
        if "seconds" in record
    ]
    if not times:
        return None
    return section(
        "costs",
        facts(rows) if rows else None,
        tag("h3", say("report.time_by_step")),
        facts(times),
    )


def _interval(evidence: Evidence, line: Mapping[str, Any]) -> int:
    """Steps a logged line stands for."""
    return min(evidence.recipe.train.log_every, int(line["step"])) or 1


def run(evidence: Evidence) -> Html:
    """Versions, and the run file as it was resolved."""
    versions = joined(f"{name} {version}" for name, version in evidence.versions.items())
    return section(
        "run",
        tag("p", say("report.versions", versions=versions)),
        tag("details", tag("summary", say("report.run_file")), tag("pre", evidence.run_file)),
    )
