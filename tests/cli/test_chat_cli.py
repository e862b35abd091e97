"""chat and predict --file as commands, on a tiny model; a stand-in back end where prompts are looked at."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.numpy import load_file, save_file
from tests.answering import one_by_one
from tests.tiny import IM_END, IM_START, tiny_model, tiny_tokenizer

from tengtune import recipe as recipes
from tengtune.answer import speaker
from tengtune.backends.base import Asked, Sampling, open_backend
from tengtune.cli.main import main
from tengtune.models import spec as specs
from tengtune.text.tokenizer import open_tokenizer
from tengtune.ui import language

torch.set_num_threads(1)  # tiny tensors: see tests/torch_lab.py


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tiny_tokenizer(tiny_model(tmp_path / "model", num_hidden_layers=1, max_position_embeddings=128))


class Parrot:
    """A back end that notes its prompts and says what it is told to; Ctrl-C where that is None."""

    def __init__(self, folder: Path, answers: Sequence[str | None]) -> None:
        self.spec, self.tokenizer = specs.from_folder(folder), open_tokenizer(folder)
        self.answers, self.prompts, self.samplings = list(answers), [], []  # type: ignore[var-annotated]

    def generate(
        self, prompt: Sequence[int], max_new_tokens: int, stop_ids: Iterable[int], sampling: Sampling
    ) -> Iterator[int]:
        self.prompts.append(self.tokenizer.decode(prompt))
        self.samplings.append(sampling)
        answer = self.answers[(len(self.prompts) - 1) % len(self.answers)]
        yield from self.tokenizer.encode(answer or "half")[:max_new_tokens]
        if answer is None:
            raise KeyboardInterrupt

    def generate_many(self, asked: Iterable[Asked], stop_ids: Iterable[int]) -> Iterator[int]:
        return one_by_one(self.generate, asked, stop_ids)


@pytest.fixture
def parrot(model: Path, monkeypatch: pytest.MonkeyPatch) -> Parrot:
    bird = Parrot(model, ["fine", "well"])
    monkeypatch.setattr(speaker, "open_backend", lambda recipe, folder, trainable: bird)
    return bird


def tengtune(*arguments: object) -> int:
    with pytest.raises(SystemExit) as left:
        main([str(each) for each in arguments])
    return int(left.value.code or 0)


def chat(monkeypatch: pytest.MonkeyPatch, typed: str, *options: object) -> int:
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    return tengtune("chat", *options)


def turn(role: str, text: str) -> str:
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


SYSTEM = turn("system", "You are a helpful assistant.")
HEAD = "<|im_start|>assistant\n"


def test_the_history_reaches_the_prompt(
    parrot: Parrot, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = "one\ntwo\n/clear\nthree\n/system be short\nfour\n/quit\nfive\n"
    assert chat(monkeypatch, typed, "--model", "model", "--max-new-tokens", 8) == 0
    assert parrot.prompts == [
        SYSTEM + turn("user", "one") + HEAD,
        SYSTEM + turn("user", "one") + turn("assistant", "fine") + turn("user", "two") + HEAD,
        SYSTEM + turn("user", "three") + HEAD,
        turn("system", "be short")
        + turn("user", "three")
        + turn("assistant", "fine")
        + turn("user", "four")
        + HEAD,
    ]
    assert capsys.readouterr().out == "fine\nwell\nfine\nsystem: be short\nwell\n"


def test_commands(
    parrot: Parrot, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    typed = "one\n/save talk.jsonl\n/save talk.jsonl\n/save\n/nonsense\n/help\n"
    assert chat(monkeypatch, typed, "--model", "model", "--system", "") == 0
    (line,) = (tmp_path / "talk.jsonl").read_text("utf-8").splitlines()
    spoken = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "fine"}]
    assert json.loads(line) == {"messages": spoken}
    said = capsys.readouterr()
    assert said.err.count("chat.save_where") == 2
    assert "no command /nonsense" in said.err
    assert "/system TEXT" in said.out
    assert len(parrot.prompts) == 1


@pytest.mark.parametrize("name", ["~nosuchuser/talk", "a\0b", "dangling", "/", ""])
def test_a_name_no_new_file_can_have_is_told_and_the_chat_goes_on(
    name: str, parrot: Parrot, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("dangling").symlink_to("nowhere")
    before = sorted(os.listdir())
    assert chat(monkeypatch, f"one\n/save {name}\ntwo\n", "--model", "model") == 0
    said = capsys.readouterr()
    assert said.out == "fine\nwell\n"
    assert said.err.count("chat.save_where") == 1
    assert sorted(os.listdir()) == before


@pytest.mark.parametrize("closing", ["<&-", "0>unreadable", "<&- >&- 2>&-", ">&-"])
def test_closed_streams_end_the_chat_cleanly(closing: str, model: Path) -> None:
    command = f"{sys.executable} -m tengtune chat --model model --max-new-tokens 2 {closing}"
    done = subprocess.run(["bash", "-c", command], input="hi\n", capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert ("no input to read" in done.stderr) is (closing in ("<&-", "0>unreadable"))


@pytest.mark.parametrize(("wanted", "room"), [(20, 20), (500, 64)])
def test_the_oldest_turns_are_forgotten_aloud(
    parrot: Parrot,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    wanted: int,
    room: int,
) -> None:
    """Room is kept for max_new_tokens, in a window as short as this one for half of it at most."""
    typed = "\n".join(f"{letter} " * 8 for letter in "pqrstu")
    assert chat(monkeypatch, typed, "--model", "model", "--max-new-tokens", wanted, "--system", "") == 0
    assert "oldest messages are forgotten" in capsys.readouterr().err
    encode = parrot.tokenizer.encode_control
    assert all(len(encode(prompt)) + room <= 128 for prompt in parrot.prompts)
    assert "p p" in parrot.prompts[1]
    assert "p p" not in parrot.prompts[-1]
    assert "t t" in parrot.prompts[-1]
    assert all(prompt.startswith("<|im_start|>user\n") for prompt in parrot.prompts)


def test_a_question_without_room_is_refused_and_the_chat_goes_on(
    parrot: Parrot, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert chat(monkeypatch, "x y " * 100 + "\nshort\n", "--model", "model", "--max-new-tokens", 9) == 0
    assert "predict.too_long" in capsys.readouterr().err
    assert parrot.prompts == [SYSTEM + turn("user", "short") + HEAD]


def test_ctrl_c_stops_the_answer_not_the_chat(
    parrot: Parrot, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parrot.answers = [None, "well"]
    assert chat(monkeypatch, "one\ntwo\n", "--model", "model", "--max-new-tokens", 8) == 0
    said = capsys.readouterr()
    assert said.out == "half\nwell\n"
    assert "(stopped)" in said.err
    assert turn("assistant", "half") in parrot.prompts[1]


def test_stop_strings_and_seeds(
    parrot: Parrot, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parrot.answers = ["one two three"]
    options = ("--stop", "three", "--stop", " tw", "--temperature", 0.5, "--seed", 3)
    assert chat(monkeypatch, "a\nb\n", "--model", "model", *options) == 0
    said = capsys.readouterr()
    assert said.out == "one\none\n"
    assert "temperature 0.5, top_p 1, top_k 0, seed 3 (as asked on the command line)" in said.err
    assert parrot.samplings == [Sampling(0.5, seed=3), Sampling(0.5, seed=4)]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [("ha" * 40, "it repeats a passage of"), ("a b c d e f g h", "does not repeat itself")],
)
def test_an_answer_that_never_ends_is_explained(
    parrot: Parrot,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: str,
    reason: str,
) -> None:
    parrot.answers = [answer]
    limit = len(parrot.tokenizer.encode(answer)) - 1
    assert chat(monkeypatch, "a\n", "--model", "model", "--max-new-tokens", limit) == 0
    (note,) = [line for line in capsys.readouterr().err.splitlines() if "did not end" in line]
    assert f"cut after {limit} tokens" in note
    assert reason in note
    assert "base weights" not in note


def test_base_weights_and_a_foreign_template_are_named(
    model: Path, parrot: Parrot, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = load_file(model / "model.safetensors")
    weights["model.embed_tokens.weight"][[IM_START, IM_END]] *= 0.01
    save_file(weights, model / "model.safetensors")
    (model / "chat_template.jinja").write_text("<|im_start|>{{ messages }}")
    parrot.answers = ["a b c"]
    assert chat(monkeypatch, "a\n", "--model", "model", "--max-new-tokens", 2) == 0
    said = capsys.readouterr().err
    assert "base weights" in said
    assert "chat template is none that tengtune knows" in said


def test_compare_needs_a_run(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tengtune("chat", "--model", "model", "--compare") == 2
    assert "--compare needs a run file" in capsys.readouterr().err


def test_compare_through_the_real_command(model: Path, tmp_path: Path) -> None:
    """Both models answer the same turn, the one before first; each remembers its own answer."""
    tiny_tokenizer(tiny_model(tmp_path / "tuned", num_hidden_layers=1, seed=1))
    (tmp_path / "run.yaml").write_text("model: model\ndata: none.json\noutput: {max_new_tokens: 4}\n")
    command = [sys.executable, "-m", "tengtune", "chat", "run.yaml", "--model", "tuned", "--compare"]
    done = subprocess.run(
        [*command, "--json"], input="hi\nand?\n", capture_output=True, text=True, cwd=tmp_path, check=True
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    answers = [each for each in found if each["event"] == "answer"]
    assert [(each["side"], each["prompt"]) for each in answers] == [
        ("before", "hi"),
        ("after", "hi"),
        ("before", "and?"),
        ("after", "and?"),
    ]
    for each, folder in zip(answers[:2], ("model", "tuned"), strict=True):
        assert each["answer"] == greedy(tmp_path / folder, SYSTEM + turn("user", "hi") + HEAD, 4)


def greedy(folder: Path, prompt: str, count: int) -> str:
    """The greedy answer of the back end itself (which tests/parity holds against transformers)."""
    tokenizer = open_tokenizer(folder)
    backend = open_backend(recipes.for_model(folder), folder, trainable=False)
    return tokenizer.decode(backend.generate(tokenizer.encode_control(prompt), count, tokenizer.stop_ids))


def questions(path: Path, count: int) -> Path:
    path.write_text("".join(f'{{"id": {n}, "prompt": "q{n}"}}\n' for n in range(count)))
    return path


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


BATCH = ("predict", "--model", "model", "--file", "in.jsonl", "--out", "out.jsonl", "--max-new-tokens", 8)


def test_a_file_is_answered_in_order_with_a_reason_per_record(
    parrot: Parrot, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parrot.answers = ["fine"]
    lines = [
        '{"prompt": "a", "id": 7}',
        "nonsense",
        "",
        '{"prompt": "' + "x y " * 99 + '"}',
        '{"prompt": "\\ud800"}',
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    assert tengtune(*BATCH) == 0
    found = rows(tmp_path / "out.jsonl")
    assert found[0] == {"prompt": "a", "id": 7, "answer": "fine", "end": "turn"}
    assert found[1]["record"] == 1
    assert found[1]["error"] == "not JSON (column 1): The JSON syntax is wrong here."
    assert "too long" in found[2]["error"]
    assert found[3]["prompt"] == "\ud800"
    assert "half of a character" in found[3]["error"]
    assert len(found) == 4
    assert "3 of 4 records could not be asked" in capsys.readouterr().err


def test_a_killed_run_goes_on_where_it_stopped(model: Path, tmp_path: Path) -> None:
    questions(tmp_path / "in.jsonl", 6)
    arguments = [str(each) for each in (*BATCH, "--temperature", 1.0)]
    script = (
        "import os, signal, sys\n"
        "from tengtune.answer import batch\n"
        "from tengtune.cli.main import main\n"
        "real = batch._in_order\n"
        "def dying(records, first):\n"
        "    for number, record in enumerate(real(records, first)):\n"
        "        if number == 3: os.kill(os.getpid(), signal.SIGKILL)\n"
        "        yield record\n"
        "batch._in_order = dying\n"
        "main(sys.argv[1:])\n"
    )
    done = subprocess.run([sys.executable, "-c", script, *arguments], cwd=tmp_path, check=False)
    assert done.returncode == -signal.SIGKILL
    partial = tmp_path / "out.jsonl.partial"
    assert [row["id"] for row in rows(partial)] == [0, 1, 2]
    with open(partial, "ab") as stream:
        stream.write(b'{"id": 3, "prom')  # torn
    kept = partial.read_bytes().rpartition(b"\n")[0]
    assert tengtune(*arguments) == 0
    assert (tmp_path / "out.jsonl").read_bytes().startswith(kept)
    assert not partial.exists()
    first = rows(tmp_path / "out.jsonl")
    assert [row["id"] for row in first] == list(range(6))
    assert tengtune(*arguments, "--force") == 0  # in one go: the same draws
    assert rows(tmp_path / "out.jsonl") == first


def test_only_what_is_missing_is_asked(
    parrot: Parrot, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    questions(tmp_path / "in.jsonl", 4)
    parrot.answers = ["fine", "fine", None]
    assert tengtune(*BATCH) == 130
    assert "2 of 4 records" in capsys.readouterr().err
    parrot.answers = ["well"]
    with open(tmp_path / "out.jsonl.partial", "ab") as stream:
        stream.write(b"\0" * 20 + b"\n")  # what a power cut can leave
    assert tengtune(*BATCH) == 0
    assert [row["answer"] for row in rows(tmp_path / "out.jsonl")] == ["fine", "fine", "well", "well"]
    asked = len(parrot.prompts)
    assert tengtune(*BATCH) == 0
    assert len(parrot.prompts) == asked


@pytest.mark.parametrize("change", ["questions", "model", "options"])
def test_other_questions_models_or_options_are_refused(
    parrot: Parrot, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: str
) -> None:
    questions(tmp_path / "in.jsonl", 2)
    assert tengtune(*BATCH) == 0
    before = (tmp_path / "out.jsonl").read_bytes()
    if change == "questions":
        questions(tmp_path / "in.jsonl", 3)
    if change == "model":
        os.utime(tmp_path / "model" / "model.safetensors", (1, 1))
    options = ("--stop", "x") if change == "options" else ()
    assert tengtune(*BATCH, *options) == 2
    assert f"Changed since: {change}" in capsys.readouterr().err
    assert (tmp_path / "out.jsonl").read_bytes() == before
    assert tengtune(*BATCH, *options, "--force") == 0


def test_files_that_are_not_ours_stay(
    parrot: Parrot, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    questions(tmp_path / "in.jsonl", 1)
    (tmp_path / "out.jsonl").write_text("precious\n")
    assert tengtune(*BATCH) == 2
    assert "predict.not_ours" in capsys.readouterr().err
    assert (tmp_path / "out.jsonl").read_text() == "precious\n"
    same = ("predict", "--model", "model", "--file", "in.jsonl", "--out", "./in.jsonl", "--force")
    assert tengtune(*same) == 2
    assert "predict.same_file" in capsys.readouterr().err
    assert len(rows(tmp_path / "in.jsonl")) == 1
    assert tengtune("predict", "--model", "model", "--file", "in.jsonl") == 2
    assert tengtune("predict", "--model", "model") == 2
    assert tengtune(*BATCH[:4], "none.jsonl", *BATCH[5:]) == 2
    os.mkfifo(tmp_path / "pipe")  # it could be read once only
    assert tengtune(*BATCH[:4], "pipe", "--out", "new.jsonl") == 2
    assert "predict.pipe" in capsys.readouterr().err


@pytest.mark.parametrize("text", ['[{"prompt": "a"}]', '{\n "prompt": "a"\n}', "prompt,answer\na,b\n"])
def test_questions_that_are_no_lines_are_refused_as_a_whole(
    text: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    questions, out = tmp_path / "questions.json", tmp_path / "answers.jsonl"
    questions.write_text(text, "utf-8")
    with pytest.raises(SystemExit) as caught:
        main(["predict", "--model", str(model), "--file", str(questions), "--out", str(out)])
    assert (caught.value.code, out.exists()) == (2, False)
    assert "predict.not_lines" in capsys.readouterr().err


def test_answers_that_are_all_errors_stand_in_nobodys_way(
    parrot: Parrot, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    parrot.answers = ["fine"]
    (tmp_path / "in.jsonl").write_text('{"promt": "a"}\n{"prompt": 1}\n', "utf-8")
    assert tengtune(*BATCH) == 2
    assert "predict.none_asked" in capsys.readouterr().err
    assert all("error" in row for row in rows(tmp_path / "out.jsonl"))
    questions(tmp_path / "in.jsonl", 2)
    assert tengtune(*BATCH) == 0
    assert [row["answer"] for row in rows(tmp_path / "out.jsonl")] == ["fine", "fine"]
    monkeypatch.setattr(language, "_chosen", "zh")
    assert tengtune(*BATCH, "--stop", "x") == 2
    assert "有变化的是：选项" in capsys.readouterr().err


def test_half_a_character_is_no_question(parrot: Parrot, capsys: pytest.CaptureFixture[str]) -> None:
    for prompt, told in (("", "no text"), (" \n", "no text"), ("a\udce4", "encoding")):
        assert tengtune("predict", "--model", "model", "--prompt", prompt) == 2
        assert told in capsys.readouterr().err
    assert parrot.prompts == []
