"""A whole run to its report, `evaluate` on files of one's own, and what is left when a run fails."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training_lab import project

from tengtune.cli.evaluate import number
from tengtune.cli.main import main
from tengtune.steps import evaluate

torch.set_num_threads(1)  # tiny tensors: see tests/torch_lab.py

SECRET = "the secret of the customer"

RUN = """
model: model
data: {files: data.json, seq_len: 64, heldout: 0.1}
train: {max_steps: 2, global_batch: 2}
lora: {targets: [q_proj], rank: 4}
output: {max_new_tokens: 4, evaluate: [words.json]}
"""

CHOICES = "question,A,B,answer\nq0,x,y,A\nq1,x,y,B\nq2,x,y,A\n"


def tengtune(*arguments: object) -> int:
    with pytest.raises(SystemExit) as left:
        main([str(each) for each in arguments])
    return int(left.value.code or 0)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run file of a run that is through."""
    folder = tmp_path_factory.mktemp("run")
    path = project(folder, RUN)
    words = [{"question": f"{SECRET}?", "answer": "answer number 1", "keywords": [["answer"]]}]
    (folder / "words.json").write_text(json.dumps(words))
    (folder / "choice.csv").write_text(CHOICES)
    assert tengtune("run", path, "--quiet") == 0
    return path


def events(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_run_ends_in_a_report(run: Path) -> None:
    folder = run.parent / "runs" / "run"
    page = (folder / "report.html").read_text("utf-8")
    assert SECRET in page
    assert "words.json" in page
    figures = json.loads((folder / "evaluate.json").read_text("utf-8"))["figures"]
    assert f"{figures['loss_before']:.3f}" in page
    assert [each["name"] for each in figures["sets"]] == ["words.json"]
    lines = (folder / "evaluation.jsonl").read_text("utf-8").splitlines()
    assert len(lines) == 20 + 1


def test_a_run_ends_with_where_things_lie_each_once(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, layout = run.parent / "runs" / "run", "output.layout=mindformers"
    monkeypatch.setenv("TENGTUNE_LANG", "en")
    assert tengtune("run", run, "-s", layout) == 0
    out, err = capsys.readouterr()
    told = [
        f"The tuned model: {folder / 'merged'}",
        f"The report: {folder / 'report.html'}",
        f"As mindformers leaves it: {folder / 'output'}",
    ]
    assert out.splitlines()[-4:-1] == told
    assert (folder / "output" / "checkpoint_network").is_dir()
    assert "report.html" not in err
    assert "Held-out loss" not in out  # the table has it
    assert tengtune("run", run) == 0
    assert "mindformers" not in capsys.readouterr().out


def test_a_second_run_has_nothing_to_do(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = run.parent / "runs" / "run" / "report.html"
    before = page.stat().st_mtime_ns
    assert tengtune("run", run) == 0
    said = capsys.readouterr().err
    assert all(f"{step}: up to date" in said for step in ("train", "evaluate", "report"))
    assert page.stat().st_mtime_ns == before


def test_other_files_are_scored_and_nothing_is_recorded(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run.parent / "runs" / "run"
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    monkeypatch.chdir(run.parent)
    assert tengtune("evaluate", run, "--file", "choice.csv", "--limit", 2, "--json") == 0
    found = events(capsys)
    asked = [each for each in found if each["event"] == "question"]
    assert [each["question"].splitlines()[2:] for each in asked] == [
        ["q0", "A. x", "B. y"],
        ["q1", "A. x", "B. y"],
    ]
    assert [each["expected"] for each in asked] == ["A", "B"]
    (result,) = [each for each in found if each["event"] == "result"]
    share = sum(each["after"]["accuracy"] for each in asked) / 2
    assert result["sets"][0]["measures"]["accuracy"][1] == share
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_the_table_and_the_examples(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    choice = run.parent / "choice.csv"
    assert tengtune("evaluate", run, "--file", choice, "--by", "text", "--shots", 1) == 0
    assert "accuracy (2 questions)" in " ".join(capsys.readouterr().out.split())
    assert tengtune("evaluate", run, "--file", run.parent / "data.json", "--limit", 1) == 0
    assert "data.json is also trained on" in " ".join(capsys.readouterr().err.split()).replace(
        f"{run.parent}/", ""
    )


def test_what_cannot_be_measured_is_told_and_the_rest_is(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Keywords in some records only, keywords that are none, a question too long for the model."""
    records: list[dict[str, Any]] = [
        {"question": "q0", "answer": "x", "keywords": "x"},
        {"question": "x y " * 9000, "answer": "x"},
        {"question": "q2", "answer": "x", "keywords": [["!!"]]},
        {"question": "q3", "answer": "x"},
        {"question": "q4", "answer": "x y " * 9000},
    ]
    path = run.parent / "mixed.json"
    path.write_text(json.dumps(records))
    assert tengtune("evaluate", run, "--file", path, "--json") == 0
    found = events(capsys)
    (result,) = [each for each in found if each["event"] == "result"]
    (each,) = result["sets"]
    assert each["counts"] == {"contains": 3, "exact": 2}
    assert (each["questions"], each["asked"], each["refused"]) == (4, 3, {"bad_keywords": 1})
    assert each["missing"] == {"too_long": ["1"], "no_loss": ["4"]}
    lines = [line for line in found if line["event"] == "question"]
    assert [line["source"].rpartition(":")[2] for line in lines if "error" in line] == ["1", "4"]
    warned = {each["code"]: each for each in found if each["event"] == "warning"}
    assert (warned["evaluate.refused"]["file"], warned["evaluate.refused"]["record"]) == (str(path), 2)
    assert warned["evaluate.missing"]["file"] == str(path)
    assert tengtune("evaluate", run, "--file", path) == 0
    said = capsys.readouterr()
    table, told = " ".join(said.out.split()), " ".join(said.err.split())
    assert "answered rightly (3 questions)" in table
    assert "exact match (2 questions)" in table
    assert "1 of 4 questions (record 1): too long: no position is left for an answer" in told
    assert "1 of 4 questions (record 4): the right answer does not fit" in told


def test_samples_without_room_for_an_answer_are_told(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = "x y " * 9000 + "?"
    assert tengtune("predict", run, "-s", f"output.prompts=short,{long}") == 0
    assert "1 of 2 questions (counted from 0: 1)" in " ".join(capsys.readouterr().err.split())
    lines = (run.parent / "runs" / "run" / "samples.jsonl").read_text("utf-8").splitlines()
    short, unasked = map(json.loads, lines)
    assert isinstance(short["after"], str)
    assert "error" not in short
    assert (unasked["prompt"], unasked["before"], unasked["after"]) == (long, None, None)
    assert "too long" in unasked["error"]


def test_a_loss_that_is_no_number_is_told_and_the_record_stays_json(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, real = run.parent / "runs" / "run", evaluate.heldout_loss
    losses = iter([4.5, math.nan])
    with monkeypatch.context() as patched:
        patched.setattr(evaluate, "heldout_loss", lambda *rest: (next(losses), real(*rest)[1]))
        assert tengtune("evaluate", run, "--force", "--json") == 0
    told, record = capsys.readouterr().out.splitlines(), (folder / "evaluate.json").read_text("utf-8")
    for text in (*told, record):
        json.loads(text, parse_constant=pytest.fail)
    assert "the held-out loss is no number (4.5000 before, nan after)" in "".join(told)
    figures = json.loads(record)["figures"]
    assert (figures["loss_before"], figures["loss_after"], figures["perplexity_after"]) == (4.5, None, None)
    assert tengtune("run", run) == 0
    assert re.search(r"held-out loss .*│ 4\.5000 +│ - +│", capsys.readouterr().out)
    assert "held-out loss 4.500 → NaN" in (folder / "report.html").read_text("utf-8")
    assert tengtune("evaluate", run, "--force", "--quiet") == 0
    assert tengtune("report", run, "--quiet") == 0


def test_a_missing_file_is_a_problem(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tengtune("evaluate", run, "--file", "none.csv") == 2
    assert "none.csv" in capsys.readouterr().err


def test_the_export_for_tensorboard(run: Path, tmp_path: Path) -> None:
    for _ in range(2):  # exported again it is replaced
        assert tengtune("report", run, "--tensorboard", tmp_path, "--quiet") == 0
        (file,) = tmp_path.glob("run/*")
        assert file.read_bytes().count(b"train/loss\x15") == 2  # the tag and the key of its value


def test_a_run_that_fails_is_reported_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tengtune.train import guard
    from tengtune.ui.problems import Problem

    path = project(tmp_path, RUN.replace("[words.json]", "[]"))

    def refuse(self: Any, step: int, *rest: Any) -> bool:
        if step == 2:
            raise Problem("train.not_finite", exit_code=4, step=step, count=3)
        return False

    monkeypatch.setattr(guard.Guard, "check", refuse)
    assert tengtune("run", path) == 4
    assert "NaN or Inf in the gradients" in capsys.readouterr().err
    folder = tmp_path / "runs" / "run"
    page = (folder / "report.html").read_text("utf-8")
    assert "The run did not finish: the step train failed." in page
    assert "Training stopped at step 2: NaN or Inf in the gradients" in page
    monkeypatch.undo()
    assert tengtune("run", path, "--quiet") == 0
    assert "too little to judge" in " ".join(capsys.readouterr().err.split())  # two steps
    assert not (folder / "failure.json").exists()
    assert "did not finish" not in (folder / "report.html").read_text("utf-8")


def test_samples_off_writes_no_text_anywhere(run: Path) -> None:
    """Neither into the page nor into the other files of evaluation, over a folder that held them."""
    assert (run.parent / "runs" / "run" / "samples.jsonl").exists()
    assert (
        tengtune("run", run, "--quiet", "-s", "output.samples=false", "-s", f"output.prompts={SECRET}") == 0
    )
    folder = run.parent / "runs" / "run"
    assert not (folder / "samples.jsonl").exists()
    for name in ("report.html", "evaluation.jsonl", "evaluate.json"):
        assert SECRET not in (folder / name).read_text("utf-8")


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "-"), (2.71828, "2.7183"), (999_999.0, "999999.0000"), (14157979282386.9805, "1.42e+13")],
)
def test_a_perplexity_beyond_all_sense_is_no_row_of_digits(value: float | None, shown: str) -> None:
    assert number(value) == shown
