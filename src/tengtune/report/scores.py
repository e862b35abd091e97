"""The sections of scores and answers: what each model made of the questions, and where they differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tengtune.answer.ending import without_loop
from tengtune.evaluate.score import count_of
from tengtune.report.evidence import Evidence
from tengtune.report.html import Content, Html, say, tag
from tengtune.report.parts import clipped, figure, more, section, table

SAMPLES, QUESTIONS = 20, 30
"""So many of each are shown."""


def evaluation(evidence: Evidence) -> Html | None:
    """All scores before and after, and the questions that changed."""
    scores = evidence.figures("evaluate")
    if not scores:
        return None
    rows: list[list[Content]] = []
    if scores["tokens"]:
        names = {"loss": say("report.held_out_row", tokens=f"{scores['tokens']:,}")}
        names["perplexity"] = say("report.perplexity_row")
        rows += [
            _measured(name, scores[f"{key}_before"], scores[f"{key}_after"]) for key, name in names.items()
        ]
    sets = [{**scores["general"], "title": say("report.general_row")}, *scores["sets"]]
    for each in sets:
        rows += _set_rows(each)
    heads = [say(f"report.{name}") for name in ("measure", "before", "after", "change")]
    details = [_questions(evidence, each, each.get("title", each["name"])) for each in sets]
    scores_table = tag("div", table(heads, rows, numbers=(1, 2, 3)), class_="scores")
    return section("evaluation", scores_table, details)


def _measured(name: Content, before: float | None, after: float | None) -> list[Content]:
    """A row of what is better when it is less."""
    if before is None or after is None:
        return [name, *("-" if value is None else figure(value) for value in (before, after)), ""]
    rise = _arrow(after - before, good=after < before, text=figure(after - before, True))
    return [name, figure(before), figure(after), rise]


def _set_rows(each: Mapping[str, Any]) -> list[list[Content]]:
    """A row for each measure of a set of questions, and one for the loss of the right answers."""
    title = each.get("title", each["name"])
    how = f"choice_{each.get('by', 'letter')}" if each["kind"] == "choice" else each["kind"]
    notes: list[Content] = [say(f"report.how_{how}")]
    if each["shots"]:
        notes.append(say("report.shots", shots=each["shots"]))
    if each["refused"]:
        notes.append(say("report.refused_row", count=sum(each["refused"].values())))
    for missing, records in each.get("missing", {}).items():
        notes.append(say(f"report.{missing}_row", count=len(records)))
    if each["gained"] or each["lost"]:
        notes.append(say("report.gained_lost", gained=each["gained"], lost=each["lost"]))
    small = tag("div", [[" · " if i else None, part] for i, part in enumerate(notes)], class_="small")
    rows: list[list[Content]] = []
    for number, (measure, (before, after)) in enumerate(each["measures"].items()):
        count = say("evaluate.questions", count=count_of(each, measure))
        name = [title, " · ", say(f"evaluate.{measure}"), " (", count, ")", small if number == 0 else None]
        change = _arrow(after - before, good=after > before, text=f"{after - before:+.1%}")
        rows.append([name, f"{before:.1%}", f"{after:.1%}", change])
    if each["loss"]:
        name = [title, " · ", say("evaluate.answer_loss"), None if rows else small]
        rows.append(_measured(name, *each["loss"]))
    return rows or [[[title, small], "-", "-", ""]]


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
        "details", summary, shown, more(each["questions"] - len(chosen), "evaluation.jsonl"), open=opened
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
        return section("samples", tag("p", say("report.no_samples"), class_="small"))
    shown = [
        tag(
            "div",
            tag("div", clipped(line.get("prompt", "")), class_="asked"),
            tag("div", *(_answer(name, line.get(name)) for name in ("before", "after")), class_="pair"),
            class_="sample",
        )
        for line in evidence.samples[:SAMPLES]
    ]
    others = more(len(evidence.samples) - SAMPLES, "samples.jsonl")
    return section("samples", shown, others) if shown else None


def _answer(name: str, text: object, notes: Content = None) -> Html:
    kept, times = without_loop(str(text or "").strip())
    words: list[Content] = [clipped(kept) if kept else say("report.empty")]
    if times:
        words += [" … (", say("predict.loops", times=times), ")"]
    who = tag("span", say(f"report.{name}"), notes, class_="who")
    return tag("div", who, words if text is not None else "-", class_=f"answer {name}")
