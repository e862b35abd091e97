"""The report: that it says what failed, that texts stay texts, what it holds when samples are off."""

from __future__ import annotations

import io
import json
import os
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import report_lab
from tests.report_lab import NASTY, Page, collected, make_recipe, write_lines, write_run

import tengtune
from tengtune import engine, pipeline
from tengtune.report import charts, html
from tengtune.report.evidence import sources
from tengtune.report.page import page
from tengtune.report.verdict import judge
from tengtune.steps import report as step
from tengtune.steps import train
from tengtune.train import metrics
from tengtune.ui import language
from tengtune.ui.console import Console
from tengtune.ui.problems import Problem


def made(folder: Path, changed: dict[str, Any] | None = None, **groups: dict[str, Any]) -> str:
    recipe = make_recipe(folder, **groups)
    write_run(recipe, **(changed or {}))
    return page(collected(recipe))


# What it says


def test_a_run_that_failed_says_why(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path)
    folder = recipe.folder
    (folder / "data").mkdir(parents=True)
    lines = report_lab.metrics()[:40]
    write_lines(folder / "metrics.jsonl", [*lines, {"step": 40, "event": "stopped", "reason": "not finite"}])
    problem = Problem("train.not_finite", where=NASTY, exit_code=4, step=40, count=3)
    failure = {"step": "train", **problem.as_json()}
    (folder / engine.FAILURE).write_text(json.dumps(failure), encoding="utf-8")
    evidence = collected(recipe)
    assert [(each.level, each.code) for each in judge(evidence).headline] == [("bad", "failed")]
    found = Page(page(evidence))
    assert problem.texts()["what"] in found.text
    assert problem.texts()["fix"].replace("`", "") in "".join(found.texts)
    assert NASTY in found.text
    assert "stopped: NaN or Inf in the gradients" in found.text


def test_a_failure_is_told_in_both_languages(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path)
    (recipe.folder / "data").mkdir(parents=True)
    problem = Problem("train.not_finite", exit_code=4, step=40, count=3)
    engine._note_failure(recipe.folder / engine.FAILURE, pipeline.step("train"), problem)
    text = "".join(Page(page(collected(recipe))).texts)
    for name in ("zh", "en"):
        for words in problem.texts(name).values():  # type: ignore[arg-type]
            assert words.replace("`", "") in text


def test_with_samples_off_no_reason_that_quotes_is_told_in_any_language(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, output={"samples": False})
    (recipe.folder / "data").mkdir(parents=True)
    problem = Problem("io.device_error", reason="SECRET of a record")
    engine._note_failure(recipe.folder / engine.FAILURE, pipeline.step("data"), problem)
    assert "SECRET" in (recipe.folder / engine.FAILURE).read_text("utf-8")
    assert "SECRET" not in page(collected(recipe))


@pytest.mark.parametrize(
    ("line", "zh", "en"),
    [
        ({"reason": "signal", "signal": 15}, "按要求停止（信号 15）", "stopped on request, by signal 15"),
        (
            {"reason": "stalled", "seconds": 99.5},
            "停止：99.5 秒内没有一步完成",
            "no step ended within 99.5 s",
        ),
        ({"reason": "not finite"}, "停止：梯度出现 NaN/Inf", "stopped: NaN or Inf in the gradients"),
        ({"reason": "overflow", "place": "layers.3"}, "停止：layers.3 溢出", "stopped: overflow in layers.3"),
        ({"reason": "overflow", "place": None}, "停止：反向传播溢出", "overflow in the backward pass"),
        ({"reason": "of tomorrow"}, "停止：of tomorrow", "stopped: of tomorrow"),
    ],
)
def test_why_it_stopped_is_told_in_both_languages(
    tmp_path: Path, line: dict[str, Any], zh: str, en: str
) -> None:
    recipe = make_recipe(tmp_path)
    folder = write_run(recipe)
    event = {"step": 300, "event": "stopped", **line}
    write_lines(folder / "metrics.jsonl", [*report_lab.metrics(), event])
    text = Page(page(collected(recipe))).text
    assert zh in text
    assert en in text


def test_a_training_over_two_back_ends_is_headed_by_both(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path)
    folder = write_run(recipe)
    event = {"step": 90, "event": "resumed", "reason": "elsewhere", "was": "mindspore · cpu · float16"}
    killed = {"step": 200, "event": "rank_failed", "reason": "killed", "rank": 1, "signal": 9}
    write_lines(folder / "metrics.jsonl", [*report_lab.metrics(), event, killed])
    trained = report_lab.TRAIN
    now = " · ".join(str(trained[key]) for key in ("backend", "device", "dtype"))
    text = Page(page(collected(recipe))).text
    assert f"mindspore · cpu · float16 → {now}" in text
    assert "resumed from a checkpoint made on mindspore · cpu · float16" in text
    assert "rank 1 was killed (signal 9)" in text
    assert "ranks that failed during the training: 1" in text
    write_lines(folder / "metrics.jsonl", [*report_lab.metrics(), {**event, "was": now}])
    assert f"{now} → " not in Page(page(collected(recipe))).text


def test_every_reason_to_stop_has_a_text() -> None:
    source = Path(tengtune.__file__).parent / "train"
    found = {
        reason.replace(" ", "_")
        for path in source.glob("*.py")
        for reason in re.findall(r'"stopped", reason="([^"]+)"', path.read_text(encoding="utf-8"))
    }
    assert len(found) >= 4
    assert {f"report.event_stopped_{reason}" for reason in found} <= language.area_messages("report").keys()


def test_a_loop_is_cut_and_told(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path)
    folder = write_run(recipe)
    looping = "It is red. " + "The lamp is red because it is red. " * 50
    write_lines(folder / "samples.jsonl", [{"prompt": "q", "before": looping, "after": "The filter."}])
    text = "".join(Page(page(collected(recipe))).texts)
    assert text.count("The lamp is red because it is red.") == 1
    assert "loops: this stands there 50 times" in text
    assert "这段内容重复了 50 次" in text


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ([], "not_trained"),
        ([{"step": 3, "loss": 1.0, "lr": 0.1}], "going_on"),
        (
            [{"step": 3, "loss": 1.0, "lr": 0.1}, {"step": 3, "event": "stopped", "reason": "signal"}],
            "stopped",
        ),
    ],
)
def test_half_a_run_is_reported_too(tmp_path: Path, lines: list[dict[str, Any]], code: str) -> None:
    recipe = make_recipe(tmp_path)
    recipe.folder.mkdir(parents=True)
    (recipe.folder / "data.json").write_text(json.dumps({"figures": report_lab.DATA, "seconds": 1.0}))
    write_lines(recipe.folder / "metrics.jsonl", lines)
    evidence = collected(recipe)
    assert judge(evidence).headline[0].code == code
    Page(page(evidence))


def test_damaged_files_cost_their_part_only(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path)
    folder = write_run(recipe)
    (folder / "evaluate.json").write_text("{")
    (folder / "samples.jsonl").write_text("no json\n")
    (folder / "metrics.jsonl").write_text('{"step": 1}\n{"step"\n{"step": 3}\n')
    evidence = collected(recipe)
    assert set(evidence.records) == {"data", "train", "merge", "predict"}
    assert judge(evidence).headline[0].code == "train_loss_short_unscored"
    Page(page(evidence))


def test_what_an_earlier_training_left_is_not_shown(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path)
    folder = write_run(recipe)
    assert "怎么重置密码" in page(collected(recipe))
    record = json.loads((folder / "train.json").read_text())
    (folder / "train.json").write_text(json.dumps({**record, "started": "2026-12-01T09:00:00+0800"}))
    evidence = collected(recipe)
    assert set(evidence.records) == {"data", "train"}
    assert "怎么重置密码" not in page(evidence).partition('id="run"')[0]
    (folder / "train.json").unlink()
    assert set(collected(recipe).records) == {"data"}


def write_records(folder: Path, ids: dict[str, Any], started: dict[str, str]) -> None:
    """The records of a run with these numbers ("id", "made_of") and times in place of their own."""
    for name in ("data", "train", "merge", "predict", "evaluate"):
        record = json.loads((folder / f"{name}.json").read_text())
        record |= {"started": started[name], **ids.get(name, {})}
        (folder / f"{name}.json").write_text(json.dumps(record))


CHAIN = {
    "data": {"id": "d", "made_of": {}},
    "train": {"id": "t", "made_of": {"data": "d"}},
    "merge": {"id": "m", "made_of": {"train": "t"}},
    "predict": {"id": "p", "made_of": {"merge": "m"}},
    "evaluate": {"id": "e", "made_of": {"merge": "m", "data": "d"}},
}
ALL = set(CHAIN)
WINTER = dict.fromkeys(CHAIN, "2026-10-25T02:55:00+0200") | dict.fromkeys(
    ("merge", "predict", "evaluate"), "2026-10-25T02:10:00+0100"
)
"""The hour that comes twice in Berlin: the later steps have the smaller local time."""
BACK = dict.fromkeys(CHAIN, "2026-12-01T09:00:00+0800") | {"evaluate": "2026-11-01T09:00:00+0800"}


@pytest.mark.parametrize(
    ("ids", "started", "shown"),
    [
        ({}, WINTER, ALL),
        (CHAIN, BACK, ALL),
        ({}, BACK, ALL - {"evaluate"}),
        (CHAIN | {"merge": {"id": "m", "made_of": {"train": "of before"}}}, WINTER, {"data", "train"}),
        (CHAIN | {"predict": {"id": "p", "made_of": {}}}, BACK, ALL - {"predict"}),
        ({"evaluate": CHAIN["evaluate"]}, WINTER, ALL),
    ],
    ids=["clocks", "clock set back", "clock set back, no numbers", "trained anew", "cut", "mixed"],
)
def test_what_stands_on_what_is_not_told_by_local_time(
    tmp_path: Path, ids: dict[str, Any], started: dict[str, str], shown: set[str]
) -> None:
    recipe = make_recipe(tmp_path)
    write_records(write_run(recipe), ids, started)
    evidence = collected(recipe)
    assert set(evidence.records) == shown
    assert evidence.left_out == {}


DEEP = "[" * 100_000


@pytest.fixture
def no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """loss.png takes a while to draw."""
    monkeypatch.setattr("tengtune.report.plot.available", lambda: False)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("data", ("records",), "many"),
        ("data", ("dropped",), [1]),
        ("data", ("train", "fill"), "full"),
        ("data", ("lengths", "p50"), 10**400),
        ("train", ("steps",), "6"),
        ("train", ("peak_memory_bytes",), None),
        ("train", ("device",), 5),
        ("evaluate", ("loss_before",), "x"),
        ("evaluate", ("general",), 5),
        ("evaluate", ("general", "verdict"), "fine"),
        ("evaluate", ("sets",), [{"name": "<b>"}]),
        ("evaluate", ("general", "measures", "contains"), [0.5]),
        ("evaluate", ("tokens",), -1),
        ("evaluate", ("loss_after",), 1e308),
    ],
)
@pytest.mark.usefixtures("no_picture")
def test_a_figure_that_is_none_costs_its_record_and_is_named(
    tmp_path: Path, name: str, key: tuple[str, ...], value: object
) -> None:
    recipe = make_recipe(tmp_path)
    folder = write_run(recipe)
    record = json.loads((folder / f"{name}.json").read_text())
    node = record["figures"]
    for each in key[:-1]:
        node = node[each]
    node[key[-1]] = value
    (folder / f"{name}.json").write_text(json.dumps(record))
    console = Console("normal", io.StringIO(), io.StringIO())
    step.run(recipe, console)
    assert name not in collected(recipe).records
    said = console.err.getvalue()  # type: ignore[attr-defined]
    assert f"{folder / name}.json is left out of the report: figures.{key[0]}" in said
    Page((folder / "report.html").read_text("utf-8"))


@pytest.mark.parametrize(
    "text", ["[]", DEEP, '{"figures": {}, "x": "\\ud800"}', '{"figures": 5}', "\x00", "{}"]
)
@pytest.mark.parametrize("name", ["data", "train", "evaluate", "failure"])
@pytest.mark.usefixtures("no_picture")
def test_a_record_that_is_none_is_left_out_with_a_word(tmp_path: Path, name: str, text: str) -> None:
    recipe = make_recipe(tmp_path)
    folder = write_run(recipe)
    (folder / f"{name}.json").write_text(text)
    console = Console("normal", io.StringIO(), io.StringIO())
    step.run(recipe, console)
    assert f"{folder / name}.json is left out" in console.err.getvalue()  # type: ignore[attr-defined]


def test_what_is_no_plain_file_is_left_out_with_a_word(tmp_path: Path) -> None:
    """A pipe nobody writes to must not be waited for."""
    recipe = make_recipe(tmp_path)
    folder = write_run(recipe)
    pipes, folders = ["metrics.jsonl", "predict.json", "run.yaml"], ["evaluation.jsonl"]
    for name in (*pipes, *folders):
        (folder / name).unlink()
        (os.mkfifo if name in pipes else os.mkdir)(folder / name)
    console = Console("normal", io.StringIO(), io.StringIO())
    step.run(recipe, console)
    said = console.err.getvalue()  # type: ignore[attr-defined]
    for name in (*pipes, *folders):
        assert f"{folder / name} is left out" in said, name


BAD_METRICS = [
    b'{"step": 3, "loss": 1' + b"0" * 400 + b"}",
    b'{"step": 3, "loss": 1e308}',
    b'{"step": 3, "loss": NaN}',
    b'{"step": 3, "loss": 1.0, "epoch": 1e999}',
    b'{"step": 3, "loss": true}',
    b'{"step": -3, "loss": 1.0}',
    b'{"step": 1' + b"0" * 30 + b', "loss": 1.0}',
    rb'{"step": 3, "event": "\ud800"}',
    b'{"step": 3, "event": 5}',
    DEEP.encode(),
]
ODD_METRICS = [
    b'{"step": 9, "event": "skipped"}',
    b'{"step": 9, "event": "rewound"}',
    b'{"step": 9, "event": "spike", "loss": null, "median": [1]}',
    b'{"step": 9, "event": "stopped"}',
    b'{"step": 9, "event": "stopped", "reason": {"a": 1}, "place": null, "time": [1]}',
    b'{"step": 9, "event": "of tomorrow <b>"}',
    b'{"step": 9007199254740992, "loss": 3.4e38, "lr": -1, "grad_norm": 0}',
    b'{"step": 9, "loss": -3.4e38, "heldout_loss": 1e-320}',
]


def test_odd_metrics_cost_their_line_only(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path)
    folder = write_run(recipe)
    whole = (folder / "metrics.jsonl").read_bytes().splitlines()
    (folder / "metrics.jsonl").write_bytes(b"\n".join([*whole, *BAD_METRICS, *ODD_METRICS]) + b"\n")
    console = Console("normal", io.StringIO(), io.StringIO())
    step.run(recipe, console)
    said = console.err.getvalue()  # type: ignore[attr-defined]
    assert f"{folder / 'metrics.jsonl'}: {len(BAD_METRICS)} lines damaged and left out" in said
    text = Page((folder / "report.html").read_text("utf-8")).text
    assert "back to the weights of step …" in text
    assert "step skipped, gradient not finite (loss scale …)" in text
    assert "of tomorrow <b>" in text
    step.export(recipe, tmp_path / "tensorboard")
    with closing(metrics.Metrics(folder / "metrics.jsonl", 300)):  # as a run does that goes on
        assert len(list(metrics.read(folder / "metrics.jsonl"))) == len(whole) + len(ODD_METRICS) - 1


def test_a_loss_that_is_no_number_is_told(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path)
    general = {**report_lab.GENERAL, "loss": [0.8, None], "loss_rise": None}
    write_run(recipe, loss_after=None, perplexity_after=None, general=general)
    text = Page(page(collected(recipe))).text
    assert "held-out loss 2.354 → NaN" in text
    assert "留出集 loss 2.354 → NaN" in text
    assert "nothing was held out" not in text


# What it holds


def test_texts_stay_texts(tmp_path: Path) -> None:
    found = Page(made(tmp_path))
    names = {name for name, _ in found.tags}
    assert not names & {"script", "img", "iframe", "link", "object", "base", "form"}
    assert not [key for _, attributes in found.tags for key in attributes if key.startswith("on")]
    assert found.text.count(NASTY) >= 5  # question, answers, a dropped record's reason


def test_nothing_is_loaded_from_anywhere(tmp_path: Path) -> None:
    text = made(tmp_path)
    found = Page(text)
    assert not [a for _, a in found.tags if "src" in a or "href" in a]
    assert "url(" not in text
    assert "@import" not in text
    policies = [a["content"] for _, a in found.tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'"]


@given(st.text())
def test_no_text_becomes_markup(text: str) -> None:
    written = html.tag("p", text, title=text)
    found = Page(written.replace("\0", ""))
    assert [name for name, _ in found.tags] == ["p"]
    assert "<" not in written.removeprefix("<p").removesuffix("</p>")
    assert '"' not in written.removesuffix("</p>").partition('title="')[2].partition('">')[0]


def test_markup_is_not_escaped_twice_and_nothing_is_left_out() -> None:
    inner = html.tag("b", "a & b")
    assert html.tag("p", inner, None, ["<", [inner]], 3, class_="x") == (
        '<p class="x"><b>a &amp; b</b>&lt;<b>a &amp; b</b>3</p>'
    )


def test_both_languages_are_in_it_and_the_readers_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, other in (("zh", "en"), ("en", "zh")):
        monkeypatch.setenv("TENGTUNE_LANG", name)
        found = Page(made(tmp_path / name))
        checked = {a["id"]: "checked" in a for tag, a in found.tags if tag == "input"}
        assert checked == {f"show-{name}": True, f"show-{other}": False}
        assert "学到了：留出集 loss 2.354 → 1.263，下降 46%。" in found.text
        assert "It learned: held-out loss 2.354 → 1.263, down 46%." in found.text
        html_tag = next(a for tag, a in found.tags if tag == "html")
        assert html_tag["lang"] == name


def test_the_figures_are_the_records(tmp_path: Path) -> None:
    text = Page(made(tmp_path)).text
    for figure in (
        "2.354",
        "1.263",
        "10.53",
        "3.540",
        "61.2%",
        "63.1%",
        "+55.0%",
        "288.4",
        "9.91 GB",
        "1 h 30 min",
    ):
        assert figure in text, figure
    for figure in ("1,843", "1,801", "182 / 611 / 1,240 / 2,931", "398,112", "96.7%", "20,185,088", "0.1%"):
        assert figure in text, figure


def test_reasons_are_told_in_both_languages_without_a_records_values(tmp_path: Path) -> None:
    text = Page(made(tmp_path)).text
    assert "第 … 轮的回答是空的" in text
    assert "the answer in turn … is empty" in text
    assert "… tokens, cut to 1024" in text


def test_samples_off_leaves_no_text_of_the_users(tmp_path: Path) -> None:
    """Whatever earlier runs left in the folder."""
    secrets = {
        "output": {"samples": False, "prompts": ["SECRET prompt"]},
        "data": {"system": "SECRET system"},
    }
    recipe = make_recipe(tmp_path, **secrets)
    assert not {path.name for path in sources(recipe)} & {
        "samples.jsonl",
        "evaluation.jsonl",
        "dropped.jsonl",
    }
    text = made(tmp_path, **secrets)
    assert "SECRET" not in text
    for told in (
        "owned",
        "tags",
        "怎么重置密码",
        "转账限额",
        "客服助手，请问",
        "the answer in turn 1",
        "France",
    ):
        assert told not in text, told
    assert "output.samples: false" in text
    assert "42" in Page(text).text  # counts stay
    shown = made(tmp_path / "on", output={"prompts": ["SECRET prompt"]}, data={"system": "SECRET system"})
    assert shown.count("SECRET") == 2


def test_long_lists_and_texts_are_cut_and_it_is_said(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path)
    folder = write_run(recipe)
    write_lines(
        folder / "samples.jsonl",
        [{"prompt": f"question {n}", "before": "x" * 9000, "after": ""} for n in range(500)],
    )
    text = page(collected(recipe))
    assert len(text) < 300_000
    assert "question 19" in text
    assert "question 20" not in text
    assert "480 more are not shown here; all of them: samples.jsonl" in text


# Charts


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 1.0, [0, 0.25, 0.5, 0.75, 1]),
        (1.1, 2.4, [1, 1.5, 2, 2.5]),
        (0.0, 3e-4, [0, 1e-4, 2e-4, 3e-4]),
        (1, 300, [0, 100, 200, 300]),
        (5.0, 5.0, [5.0]),
    ],
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert charts.ticks(low, high) == pytest.approx(expected)


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_are_few_and_around_everything(low: float, width: float) -> None:
    high = low + width
    found = charts.ticks(low, high)
    assert 1 <= len(found) <= 8
    slack = 1e-6 * (found[-1] - found[0]) + 1e-9
    assert found[0] <= low + slack
    assert found[-1] >= high - slack


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (300, "300"), (12000, "12,000"), (0.25, "0.25"), (3e-4, "3e-4"), (2.5e-5, "2.5e-5")],
)
def test_labels(value: float, text: str) -> None:
    assert charts.number(value) == text


def test_no_spike_is_lost_in_a_long_curve() -> None:
    points = [(float(x), 100.0 if x == 7777 else -50.0 if x == 123 else 1.0) for x in range(20_000)]
    thin = charts.thinned(points)
    assert len(thin) <= charts.MOST_POINTS + 2
    assert (7777.0, 100.0) in thin
    assert (123.0, -50.0) in thin
    assert (thin[0][0], thin[-1][0]) == (0.0, 19_999.0)
    assert [x for x, _ in thin] == sorted({x for x, _ in thin})


def test_smoothing_by_hand() -> None:
    """60 points: each weight is half of the next one's, so that the second is (1/2 a + b) / (3/2)."""
    points = [(float(x), float(y)) for x, y in enumerate([4, 1, *[0] * 58])]
    found = [y for _, y in charts.smoothed(points)]
    assert found[:3] == pytest.approx([4.0, (0.5 * 4 + 1) / 1.5, (0.25 * 4 + 0.5 * 1) / 1.75])
    assert charts.smoothed(points[:20]) == points[:20]  # too few to smooth


def test_a_chart_places_its_points(tmp_path: Path) -> None:
    drawn = charts.chart(
        "t", [charts.Line("l", "main", [(0.0, 0.0), (5.0, 2.0), (10.0, 1.0)])], marks=[2.5, 99]
    )
    paths = [a["d"] for tag, a in Page(drawn).tags if tag == "path" and a["class"] == "main"]
    assert paths == ["M0.0 400.0 L500.0 0.0 L1000.0 200.0"]
    marks = [a["d"] for tag, a in Page(drawn).tags if tag == "path" and a["class"] == "mark"]
    assert marks == ["M250.0 400.0 L250.0 0.0"]  # what lies outside is left out


# The step


def test_the_step_writes_page_and_picture(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path)
    write_run(recipe)
    result = step.run(recipe, Console("quiet"))
    assert result.outputs == ["report.html", "loss.png"]
    assert (recipe.folder / "loss.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert (recipe.folder / "report.html").read_text("utf-8").startswith("<!doctype html>\n<html")


def test_without_matplotlib_there_is_no_picture_and_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tengtune.report.plot.available", lambda: False)
    recipe = make_recipe(tmp_path)
    write_run(recipe)
    assert step.run(recipe, Console()).outputs == ["report.html"]
    assert "tengtune[plot]" in capsys.readouterr().err


def test_an_empty_folder_is_a_problem(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path)
    recipe.folder.mkdir(parents=True)
    with pytest.raises(Problem, match=r"report\.no_run"):
        step.run(recipe, Console("quiet"))
    with pytest.raises(Problem, match=r"report\.no_metrics"):
        step.export(recipe, tmp_path / "tensorboard")


def test_another_language_or_new_results_make_it_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = make_recipe(tmp_path)
    folder = write_run(recipe)

    def changed() -> bool:
        path = folder / "report.html"
        before = path.stat().st_mtime_ns if path.exists() else 0
        engine.run_needed("report", recipe, Console("quiet"))
        return path.stat().st_mtime_ns != before

    assert changed()
    assert not changed()
    write_lines(folder / "samples.jsonl", [{"prompt": "new", "before": "a", "after": "b"}])
    assert changed()
    assert not changed()
    monkeypatch.setattr(language, "_chosen", "zh")
    assert changed()


@pytest.mark.parametrize(
    ("name", "list_name", "count"),
    [
        ("metrics.jsonl", "metrics", 7),
        ("samples.jsonl", "samples", 7),
        ("evaluation.jsonl", "questions", 7),
        ("data/dropped.jsonl", "dropped", 7),
    ],
)
def test_damaged_lines_of_any_file_are_left_out_with_a_word(
    tmp_path: Path, name: str, list_name: str, count: int
) -> None:
    recipe = make_recipe(tmp_path)
    folder = write_run(recipe)
    whole = getattr(collected(recipe), list_name)
    bad = [b"null", b"[1]", b'{"prompt": "cut', b"\xff\xfe\x00", b"\x00" * 40]
    bad += [b'{"step": 3, "loss": "low", "set": "x", "before": 1}', b'{"set": "x"}']
    lines = (folder / name).read_bytes().splitlines()
    (folder / name).write_bytes(b"\n".join([*bad[:3], *lines, *bad[3:]]) + b"\n")
    console = Console("normal", io.StringIO(), io.StringIO())
    step.run(recipe, console)
    assert [each for each in getattr(collected(recipe), list_name) if each in whole] == whole
    said = console.err.getvalue()  # type: ignore[attr-defined]
    assert f"{folder / name}: {count} lines damaged and left out" in said
    assert said.count("left out") == 1


def test_a_loss_is_told_by_means_or_not_at_all() -> None:
    assert metrics.course([*[2.0] * 10, *[1.5] * 80, *[1.0] * 9, 6.0]) == (2.0, 1.5, 10)
    assert metrics.course([3.0, 1.0, 2.0, 3.0, 4.0, 1.0, 1.0, 1.0, 1.0, 1.0]) == (2.6, 1.0, 5)
    assert metrics.course([3.5, 4.1, 2.0, 4.2]) is None


def test_held_out_losses_are_told_before_any_other(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines: list[dict[str, Any]] = [{"step": n, "loss": 3.0 if n < 6 else 2.0} for n in range(1, 11)]
    write_lines(path, lines)
    assert train._course(path) == "mean loss of the first 5 logged values 3.0000, of the last 2.0000"
    write_lines(path, [*lines, {"step": 4, "heldout_loss": 2.5}, {"step": 8, "heldout_loss": 2.25}])
    assert train._course(path) == "held-out loss 2.5000 (step 4) -> 2.2500 (step 8)"
    path.write_text("")
    assert train._course(path).startswith("loss of the first batch -, of the last - ")


def test_metrics_go_on_behind_a_damaged_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'null\n{"step": 1, "loss": 2.0}\n{"st\n{"step": 2, "loss": 1.0}\n{"step": 3, "lo')
    assert [record["step"] for record in metrics.read(path)] == [1, 2]
    with closing(metrics.Metrics(path, 1)) as again:
        again.write(step=2, loss=1.5)
    assert [record["loss"] for record in metrics.read(path)] == [2.0, 1.5]
