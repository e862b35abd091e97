"""The page as a whole: head, verdict, key figures, then a section for each subject."""

from __future__ import annotations

import time
from importlib import resources
from pathlib import Path
from typing import Any

from tengtune import __version__
from tengtune.report import parts, scores, sections
from tengtune.report.evidence import Evidence
from tengtune.report.html import Content, Html, join, say, tag
from tengtune.report.verdict import Finding, Verdict, judge
from tengtune.ui import language

MOST_PLACE = 100
"""Characters of a back end and its device that are shown."""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""Content security policy: the browser itself keeps the page from loading or running anything."""


def page(evidence: Evidence) -> str:
    """The whole HTML document, in Chinese and English; it opens in the language in force."""
    verdict = judge(evidence)
    title = f"{evidence.recipe.name} · tengtune"
    style = resources.files("tengtune.report").joinpath("style.css").read_text(encoding="utf-8")
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="robots", content="noindex"),
        tag("title", title),
        tag("style", Html(style)),
    ]
    body = [
        _choice("zh"),
        _choice("en"),
        tag(
            "div",
            _header(evidence),
            _verdict(verdict, evidence),
            _failure(evidence),
            _tiles(evidence),
            sections.curves(evidence),
            scores.evaluation(evidence),
            scores.samples(evidence),
            sections.data(evidence),
            sections.costs(evidence),
            sections.run(evidence),
            tag("footer", say("report.footer", version=__version__, folder=evidence.recipe.folder)),
            class_="page",
        ),
    ]
    return f"<!doctype html>\n{tag('html', tag('head', head), tag('body', body), lang=language.current())}\n"


def _choice(name: str) -> Html:
    checked = "checked" if language.current() == name else None
    return tag("input", type="radio", name="language", id=f"show-{name}", class_="choose", checked=checked)


def _header(evidence: Evidence) -> Html:
    recipe, train = evidence.recipe, evidence.figures("train")
    names = {"zh": "中文", "en": "English"}
    method = "report.method_lora" if recipe.train.method == "lora" else "report.method_full"
    where = " · ".join(str(train[key]) for key in ("backend", "device", "dtype") if key in train)
    before = [str(line["was"])[:MOST_PLACE] for line in evidence.events if line.get("was")]
    where = " → ".join(dict.fromkeys([*before, *filter(None, [where])]))
    about = [
        recipe.model_folder.name,
        say(method, rank=recipe.lora.rank),
        where,
        time.strftime("%Y-%m-%d %H:%M"),
    ]
    return tag(
        "header",
        tag("span", say("report.brand"), class_="brand"),
        tag(
            "div",
            [tag("label", text, for_=f"show-{name}") for name, text in names.items()],
            class_="languages",
        ),
        tag("h1", recipe.name),
        tag(
            "p", [[" · " if i else None, part] for i, part in enumerate(filter(None, about))], class_="about"
        ),
    )


def _verdict(verdict: Verdict, evidence: Evidence) -> Html:
    headline = [tag("p", _words(each), class_=f"headline {each.level}") for each in verdict.headline]
    findings = [tag("li", _words(each), class_=each.level) for each in verdict.findings]
    folder, here = evidence.recipe.folder, evidence.recipe.file.parent
    shown = folder.relative_to(here) if folder.is_relative_to(here) else folder
    places = {
        "run": evidence.recipe.called(Path(evidence.recipe.file.name)),
        "merged": shown / "merged",
        "dropped": shown / "data" / "dropped.jsonl",
    }
    advice = [tag("li", _with_code(f"report.{code}", places)) for code in verdict.advice]
    return tag(
        "section",
        headline,
        tag("ul", findings, class_="findings") if findings else None,
        [tag("h3", say("report.next")), tag("ol", advice, class_="next")] if advice else None,
        class_=f"verdict {verdict.level}",
        id="verdict",
    )


def _words(finding: Finding) -> Html:
    return say(f"report.{finding.code}", **finding.values)


def _with_code(code: str, values: dict[str, Any]) -> Html:
    """A message in both languages whose `parts` are set as code."""
    entry = language.area_messages("report")[code]
    return join(tag("span", _marked(language.fill(entry[name], values)), lang=name) for name in ("zh", "en"))


def _marked(text: str) -> list[object]:
    """The text with what stands between backquotes as code."""
    return [tag("code", part) if number % 2 else part for number, part in enumerate(text.split("`"))]


def _failure(evidence: Evidence) -> Html | None:
    """What stopped the run, as it stood on the screen, in both languages where they were noted."""
    failure = evidence.failure
    if failure is None:
        return None

    def told(key: str) -> Content:
        texts = failure.get("texts", {}) if key != "where" else {}
        both = [tag("span", _marked(parts.clipped(texts[n][key])), lang=n) for n in texts if key in texts[n]]
        return both or _marked(parts.clipped(failure[key]))

    rows = [
        [tag("dt", say(f"report.{label}")), tag("dd", told(key))]
        for key, label in (("where", "at"), ("why", "why"), ("fix", "fix"))
        if failure.get(key)
    ]
    title = told("what") if failure.get("what") else None
    return tag("section", tag("h2", title), tag("dl", rows), class_="verdict bad")


def _tiles(evidence: Evidence) -> Html | None:
    """The figures a person asks for first."""
    scores, train = evidence.figures("evaluate"), evidence.figures("train")
    tiles: list[tuple[str, object, object]] = []
    for name in ("loss", "perplexity"):
        before, after = scores.get(f"{name}_before"), scores.get(f"{name}_after")
        if before is not None and after is not None:
            tiles.append((f"tile_{name}", parts.figure(before), parts.figure(after)))
    general = scores.get("general")
    if general and general["asked"] and "contains" in general["measures"]:
        before, after = (round(share * general["asked"]) for share in general["measures"]["contains"])
        tiles.append(("tile_general", before, f"{after} / {general['asked']}"))
    if train:
        tiles += [
            ("tile_speed", None, f"{train['tokens_per_s']:,.0f}"),
            ("tile_memory", None, f"{train['peak_memory_bytes'] / 1e9:.2f} GB"),
            ("tile_time", None, parts.duration(evidence.training_seconds)),
        ]
    made = [
        tag(
            "div",
            tag("div", say(f"report.{name}"), class_="name"),
            tag(
                "div",
                [tag("span", old, " → ", class_="from")] if old is not None else None,
                new,
                class_="value",
            ),
            class_="tile",
        )
        for name, old, new in tiles
    ]
    return tag("div", made, class_="tiles") if made else None
