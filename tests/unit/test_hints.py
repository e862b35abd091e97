"""What was probably meant: a path that is not there, a mapping of keys that is wrong or turned round."""

from __future__ import annotations

from pathlib import Path

import pytest

from tengtune.data.rename import inverted
from tengtune.ui import language, near
from tengtune.ui.problems import Problem


@pytest.mark.parametrize(
    ("chosen", "text"), [("en", 'Did you mean "a" or "b"? '), ("zh", "是不是想写“a”或“b”？")]
)
def test_every_path_is_quoted_in_one_way(monkeypatch: pytest.MonkeyPatch, chosen: str, text: str) -> None:
    monkeypatch.setattr(language, "_chosen", chosen)
    monkeypatch.setattr(near, "similar", lambda path, folders: [Path("a"), Path("b")])
    assert near.did_you_mean(Path("c")) == text


@pytest.mark.parametrize(
    ("mapping", "told"),
    [
        ({"instuction": "frage"}, "The nearest of ours is instruction."),
        ({"frage": "instuction"}, "turned round: instruction belongs on the left, frage on the right"),
        ({"frage": "antwort"}, "for example `output: answer`."),
    ],
)
def test_what_a_mapping_was_meant_to_say(mapping: dict[str, str], told: str) -> None:
    with pytest.raises(Problem) as caught:
        inverted(mapping, "run.yaml")
    assert caught.value.code == "data.map_unknown"
    assert told in str(caught.value)
    assert " -" not in str(caught.value)
