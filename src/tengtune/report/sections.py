"""The sections of the page below the verdict; each is left out when there is nothing to show in it."""

from __future__ import annotations

import math
import statistics
import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tengtune.report.charts import Line, chart, smoothed
from tengtune.report.evidence import Evidence
from tengtune.report.html import Content, Html, say, tag
from tengtune.ui import language

SAMPLES, QUESTIONS, RECORDS, EVENTS = 20, 30, 50, 50
"""So many of each are shown."""
LONGEST_TEXT = 2000
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
    return _section("curves", tag("div", charts, class_="charts"), _events(events))


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
    more = _more(len(events) - EVENTS, "metrics.jsonl")
    return [tag("h3", say("report.events")), table(heads, rows, numbers=(0,)), more]


def _event(line: Mapping[str, Any]) -> Content:
    code = f"report.event_{line['event']}"
    known = code in language.area_messages("report")
    values = {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in line.items()}
    return say(code, **values) if known else line["event"]


def evaluation(evidence: Evidence) -> Html | None:
    """All scores before and after, and the questions that changed."""
    scores = evidence.figures("evaluate")
    if not scores:
        return None
    rows: list[list[Content]] = []
    if scores["loss_before"] is not None:
        rows.append(_measured(say("report.held_out_row", tokens=f"{scores['tokens']:,}"), scores, "loss"))
        rows.append(_measured(say("report.perplexity_row"), scores, "perplexity"))
    sets = [{**scores["general"], "title": say("report.general_row")}, *scores["sets"]]
    for each in sets:
        rows += _set_rows(each)
    heads = [say(f"report.{name}") for name in ("measure", "before", "after", "change")]
    details = [_questions(evidence, each, each.get("title", each["name"])) for each in sets]
    note = None if scores["answers"] else tag("p", say("report.no_answers"), class_="small")
    scores_table = tag("div", table(heads, rows, numbers=(1, 2, 3)), class_="scores")
    return _section("evaluation", scores_table, note, details)


def _measured(name: Content, scores: Mapping[str, Any], key: str) -> list[Content]:
    before, after = scores[f"{key}_before"], scores[f"{key}_after"]
    if before is None or after is None:
        return [name, "-", "-", ""]
    return [
        name,
        figure(before),
        figure(after),
        _arrow(after - before, good=after < before, text=figure(after - before, True)),
    ]


def _set_rows(each: Mapping[str, Any]) -> list[list[Content]]:
    """A row for each measure of a set of questions, and one for the loss of the right answers."""
    title = each.get("title", each["name"])
    how = "how_free" if each["kind"] == "free" else f"how_{each['kind']}"
    notes: list[Content] = [say(f"report.{how}_{each['by']}" if "by" in each else f"report.{how}")]
    if each["shots"]:
        notes.append(say("report.shots", shots=each["shots"]))
    if each["refused"]:
        notes.append(say("report.refused_row", count=sum(each["refused"].values())))
    if each["gained"] or each["lost"]:
        notes.append(say("report.gained_lost", gained=each["gained"], lost=each["lost"]))
    small = tag("div", [[" · " if i else None, part] for i, part in enumerate(notes)], class_="small")
    rows: list[list[Content]] = []
    for number, (measure, (before, after)) in enumerate(each["measures"].items()):
        count = say("evaluate.questions", count=each["asked"])
        name = [title, " · ", say(f"evaluate.{measure}"), " (", count, ")", small if number == 0 else None]
        change = _arrow(after - before, good=after > before, text=f"{after - before:+.1%}")
        rows.append([name, f"{before:.1%}", f"{after:.1%}", change])
    if each["loss"]:
        before, after = each["loss"]
        name = [title, " · ", say("evaluate.answer_loss"), None if rows else small]
        rise = _arrow(after - before, good=after < before, text=figure(after - before, True))
        rows.append([name, figure(before), figure(after), rise])
    return rows


def _arrow(change: float, good: bool, text: str) -> Html:
    style = None if change == 0 else "up" if good else "down"
    return tag("span", text, class_=style)


def _questions(evidence: Evidence, each: Mapping[str, Any], title: Content) -> Html | None:
    """The questions of a set, those whose outcome changed first: what was lost, then what was gained."""
    lines = [line for line in evidence.questions if line["set"] == each["name"]]
    if not lines:
        return None
    measure = next(iter(each["measures"]), None)

    def rank(line: Mapping[str, Any]) -> int:
        old, new = line["before"].get(measure), line["after"].get(measure)
        return 0 if old and not new else 1 if new and not old else 2

    chosen = sorted(lines, key=rank)[:QUESTIONS]
    shown = [_question(line, measure) for line in chosen]
    opened = "open" if each.get("verdict") in ("weakened", "lost") else None
    summary = tag("summary", say("report.questions_of"), title)
    return tag(
        "details", summary, shown, _more(each["questions"] - len(chosen), "evaluation.jsonl"), open=opened
    )


def _question(line: Mapping[str, Any], measure: str | None) -> Html:
    def answer(name: str) -> Html:
        mark = line[name].get(measure)
        verdict = None if mark is None else [" · ", say("report.right" if mark else "report.wrong")]
        loss = line[name].get("loss")
        shown = None if loss is None else f" · loss {figure(loss)}"
        return _answer(name, line[name].get("answer"), [verdict, shown])

    expected = tag("div", say("report.expected"), clipped(line["expected"]), class_="small")
    asked = tag("div", clipped(line["question"]), class_="asked")
    return tag(
        "div", asked, expected, tag("div", answer("before"), answer("after"), class_="pair"), class_="sample"
    )


def samples(evidence: Evidence) -> Html | None:
    """The questions of the predict step with both models' answers."""
    if not evidence.recipe.output.samples:
        return _section("samples", tag("p", say("report.no_samples"), class_="small"))
    shown = [
        tag(
            "div",
            tag("div", clipped(line.get("prompt", "")), class_="asked"),
            tag("div", *(_answer(name, line.get(name)) for name in ("before", "after")), class_="pair"),
            class_="sample",
        )
        for line in evidence.samples[:SAMPLES]
    ]
    more = _more(len(evidence.samples) - SAMPLES, "samples.jsonl")
    return _section("samples", shown, more) if shown else None


def _answer(name: str, text: object, notes: Content = None) -> Html:
    words: Content = (
        clipped(str(text).strip()) if text is not None and str(text).strip() else say("report.empty")
    )
    who = tag("span", say(f"report.{name}"), notes, class_="who")
    return tag("div", who, words if text is not None else "-", class_=f"answer {name}")


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
    keys = ", ".join(f"{key} ({count})" for key, count in list(figures["unused_keys"].items())[:12])
    shown = keys and evidence.recipe.output.samples  # a key is the user's as well
    unused = tag("p", say("report.unused", keys=keys), class_="small") if shown else None
    return _section(
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


class _Dots(dict[str, object]):
    """Values that differ from record to record are dots in a reason told for all of them."""

    def __missing__(self, key: str) -> str:
        return "…"


def _reason(code: str, seq_len: int) -> Content:
    entry = language.area_messages("data").get(f"data.{code}")
    if entry is None:
        return code
    texts = {
        name: string.Formatter().vformat(entry[name], (), _Dots(seq_len=seq_len)) for name in ("zh", "en")
    }
    return [tag("span", text, lang=name) for name, text in texts.items()]


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
        "details", tag("summary", say("report.which")), body, _more(total - len(lines), "data/dropped.jsonl")
    )


def _place(line: Mapping[str, Any]) -> str:
    record = line.get("record")
    return str(line.get("file")) if record is None else f"{line.get('file')}:{record}"


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
        if seconds:
            rows.insert(1, [say("report.step_time"), figure(statistics.median(seconds))])
        whole = evidence.records["train"].get("seconds") or 0
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
    return _section(
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
    versions = ", ".join(f"{name} {version}" for name, version in evidence.versions.items())
    return _section(
        "run",
        tag("p", say("report.versions", versions=versions)),
        tag("details", tag("summary", say("report.run_file")), tag("pre", evidence.run_file)),
    )


def facts(rows: Iterable[Sequence[Content]]) -> Html:
    """Names and figures."""
    return tag("div", table([], rows, numbers=(1,)), class_="facts")


def table(heads: Sequence[Content], rows: Iterable[Sequence[Content]], numbers: Iterable[int] = ()) -> Html:
    """A table; the columns in `numbers` are set to the right."""
    right = frozenset(numbers)

    def line(cells: Sequence[Content], name: str) -> Html:
        return tag(
            "tr", [tag(name, cell, class_="n" if i in right else None) for i, cell in enumerate(cells)]
        )

    head = tag("thead", line(heads, "th")) if heads else None
    body = tag("tbody", [line(row, "td") for row in rows])
    return tag("div", tag("table", head, body), class_="scroll")


def figure(value: float, signed: bool = False) -> str:
    """A number with at least four digits that count: 0.012, 3.541, 35.41, 354.1, 3,541."""
    if not math.isfinite(value):
        return str(value)
    decimals = 3 - min(max(math.floor(math.log10(abs(value))), 0), 3) if value else 3
    return f"{value:{'+' if signed else ''},.{decimals}f}"


def duration(seconds: float) -> str:
    """12.3 s, 4 min 05 s, 2 h 07 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = int(seconds) // 60
    return (
        f"{minutes} min {int(seconds) % 60:02} s"
        if minutes < 60
        else f"{minutes // 60} h {minutes % 60:02} min"
    )


def clipped(text: object) -> str:
    """A text, cut where it grows longer than anybody reads."""
    whole = str(text)
    return whole if len(whole) <= LONGEST_TEXT else f"{whole[:LONGEST_TEXT]} …"


def _more(count: int, file: str) -> Html | None:
    return tag("p", say("report.more", count=count, file=file), class_="small") if count > 0 else None


def _section(name: str, *content: Content) -> Html:
    return tag("section", tag("h2", say(f"report.{name}")), *content, id=name)
