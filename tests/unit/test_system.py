"""A run's questions have the system turn it was trained with, also where that was stored as ids."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests import tiny
from tests.mindrecord_lab import compose

from tengtune.answer import speaker
from tengtune.data.system import system_of_run
from tengtune.models import spec as specs
from tengtune.recipe import Recipe, load
from tengtune.steps import data, evaluate, predict
from tengtune.text.conversation import Message
from tengtune.text.template import of_folder
from tengtune.text.tokenizer import open_tokenizer
from tengtune.ui.console import Console

OTHERS = "You are a helpful assistant."
SYSTEM = f"<|im_start|>system\n{OTHERS}<|im_end|>\n"
CONFIG = tiny.outline(architectures=["Qwen3ForCausalLM"], model_type="qwen3", head_dim=4)
"""Of Qwen3, whose template has no system turn of its own."""


def trained(folder: Path, openings: Sequence[str], **keys: Any) -> Recipe:
    """A run whose data step took a MindRecord, a record for each opening."""
    tiny.tiny_tokenizer(folder / "model")
    (folder / "model" / "config.json").write_text(json.dumps(CONFIG), "utf-8")
    tokenizer = open_tokenizer(folder / "model")
    records = []
    for number, opening in enumerate(openings):
        text = f"{opening}<|im_start|>user\nhi {number}<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n"
        ids = tokenizer.encode_control(text)
        records.append({"input_ids": ids, "labels": [-100, *ids[1:]]})
    compose(folder / "x.mindrecord", records)
    run = {"model": "model", "data": {"files": "x.mindrecord", "seq_len": 256, "heldout": 0, **keys}}
    (folder / "run.yaml").write_text(json.dumps({**run, "output": {"prompts": ["hi 0"]}}), "utf-8")
    recipe = load(folder / "run.yaml")
    data.run(recipe, Console("quiet", out=io.StringIO(), err=io.StringIO()))
    return recipe


def system(recipe: Recipe) -> str:
    tokenizer = open_tokenizer(recipe.model_folder)
    return system_of_run(recipe, tokenizer, of_folder(recipe.model_folder, "qwen3", tokenizer))


def test_a_question_begins_as_the_records_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = trained(tmp_path, [SYSTEM] * 3)
    (tmp_path / "x.mindrecord").unlink()  # questions are asked where the data is no more, too
    asked: list[list[int]] = []

    def answers(backend: object, tokenizer: object, prompts: list[list[int]], *rest: object) -> list[str]:
        asked.extend(prompts)
        return ["x"] * len(prompts)

    backend = SimpleNamespace(spec=specs.from_folder(recipe.model_folder))
    for module in (speaker, predict, evaluate):
        monkeypatch.setattr(module, "open_backend", lambda *given, **options: backend)
    monkeypatch.setattr(predict, "write_answers", answers)
    predict.run(recipe, Console("quiet", out=io.StringIO(), err=io.StringIO()))
    spoken = speaker.open_speaker(recipe, recipe.model_folder, speaker.Settings())
    asked.append(spoken.prompt([Message("user", "hi 0")]))
    wanted = spoken.tokenizer.encode_control(
        SYSTEM + "<|im_start|>user\nhi 0<|im_end|>\n<|im_start|>assistant"
    )
    assert [ids[: len(wanted)] for ids in asked] == [wanted] * 3
    assert speaker.open_speaker(recipe, recipe.model_folder, speaker.Settings(system="Else")).system == "Else"
    monkeypatch.setattr(evaluate, "mark_all", lambda examiner, *rest: examiner)
    monkeypatch.setattr(evaluate, "Examiner", lambda backend, tokenizer, system, template: system)
    recipe.folder.joinpath("merged").mkdir()
    console = Console("quiet", out=io.StringIO(), err=io.StringIO())
    before, after = evaluate._both(recipe, None, [], console)
    assert (before.marks, after.marks) == (OTHERS, OTHERS)


@pytest.mark.parametrize(
    ("openings", "keys", "wanted"),
    [
        ([SYSTEM, SYSTEM, ""], {}, OTHERS),
        (["", "", SYSTEM], {}, ""),
        ([SYSTEM, SYSTEM.replace("helpful", "nice"), ""], {}, ""),  # none is most: as the template has it
        ([SYSTEM] * 2, {"system": "Be brief."}, "Be brief."),
        ([SYSTEM] * 2, {"system": ""}, ""),
        (["free text "] * 2, {"policy": "qwen"}, OTHERS),
    ],
)
def test_the_system_turn_of_most_records(
    openings: list[str], keys: dict[str, Any], wanted: str, tmp_path: Path
) -> None:
    assert system(trained(tmp_path, openings, **keys)) == wanted


def test_texts_are_asked_as_they_are_rendered(tmp_path: Path) -> None:
    """A text file's own system turns are no default: what brings none gets the template's."""
    recipe = trained(tmp_path, [SYSTEM])
    texts = recipe.data.model_copy(update={"files": ["a.json"]})
    assert system(recipe.model_copy(update={"data": texts})) == ""
