"""What a run needs of the machine it is on: its files, looked for where the run file says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.host_lab import healthy
from tests.tiny import tiny_model

from tengtune import recipe as recipes
from tengtune.doctor import needs, run
from tengtune.doctor.finding import Case
from tengtune.host.place import Place
from tengtune.host.survey import survey


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(survey(Place(healthy(tmp_path / "host").root), tmp_path))


def found(case: Case, folder: Path, text: str) -> dict[str, str]:
    """The findings of a run file with this text in a folder: level by name."""
    (folder / "run.yaml").write_text(text, "utf-8")
    recipe = recipes.load(folder / "run.yaml", (), 8)
    each = needs.check(replace(case, recipe=recipe), recipe, "torch")
    return {finding.code.removeprefix("doctor.need_"): finding.level for finding in each}


def test_files_that_are_there_and_that_are_not(case: Case, tmp_path: Path) -> None:
    text = "model: m\ndata: [a.json, b.json]\noutput: {evaluate: [q.json]}\n"
    assert found(case, tmp_path, text) == {"data": "block", "model": "block", "unreckoned": "unknown"}
    tiny_model(tmp_path / "m")
    for name in ("a.json", "q.json"):
        (tmp_path / name).write_text("[]", "utf-8")
    assert found(case, tmp_path, text) == {"data": "block", "fits": "ok"}
    (tmp_path / "b.json").write_text("[]", "utf-8")
    assert found(case, tmp_path, text) == {"files": "ok", "fits": "ok"}
    (tmp_path / "m" / "config.json").write_text("{", "utf-8")
    assert found(case, tmp_path, text) == {"files": "ok", "model_read": "block"}


def test_ranks_on_a_cpu_want_a_core_each(case: Case, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("model: m\ndata: a.json\nparallel: {ranks: 8}\n", "utf-8")
    recipe = recipes.load(tmp_path / "run.yaml")
    host = survey(Place(tmp_path / "none"), tmp_path)
    levels = {}
    for cores in (2, 8, None):
        machine = replace(host.machine, cores=cores)
        found = run.check(replace(case, host=replace(host, machine=machine), recipe=recipe), recipe)
        levels[cores] = [each.level for each in found if "run_on" in each.code]
    assert levels == {2: ["warn"], 8: ["ok"], None: ["ok"]}


def test_a_model_that_will_be_downloaded(case: Case, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[]", "utf-8")
    text = "model: Qwen/Qwen2.5-0.5B-Instruct\ndata: a.json\n"
    assert found(case, tmp_path, text) == {"download": "ok", "fits": "ok"}


def test_the_room_that_the_model_has_already_is_not_wanted_again(case: Case, tmp_path: Path) -> None:
    """LoRA of a 0.5B: the model and the merged one, 2 x 0.99 GB, and checkpoints of some 0.1 GB."""
    (tmp_path / "a.json").write_text("[]", "utf-8")
    text = "model: Qwen/Qwen2.5-0.5B-Instruct\ndata: a.json\n"
    machine = replace(case.host.machine, disk_free=1_600_000_000)
    small = replace(case, host=replace(case.host, machine=machine))
    assert found(small, tmp_path, text)["disk"] == "block"
    model = tmp_path / "models" / "Qwen2.5-0.5B-Instruct"
    model.mkdir(parents=True)
    with (model / "model.safetensors").open("wb") as file:
        file.truncate(988_000_000)
    assert found(small, tmp_path, text) == {"download": "ok", "fits": "ok"}


def test_a_bundle_tells_of_its_own_run(case: Case, tmp_path: Path) -> None:
    assert found(replace(case, inputs="told"), tmp_path, "model: m\ndata: a.json\n") == {}
