"""Rows that are longer than what the model was made for: said wherever a length is asked for."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from tests.qwen1 import qwen1_config
from tests.tiny import tiny_config, tiny_model, tiny_tokenizer

from tengtune.cli.main import main
from tengtune.models import known, positions, spec
from tengtune.ui import language

RUN = "model: tiny\ndata: {files: my.json, heldout: 0}\ntrain: {method: lora}\n"
SAID = {"en": "longer than what the model was made for", "zh": "超出了模型的设计长度"}


@pytest.fixture(autouse=True)
def language_of_its_own() -> Iterator[None]:
    yield
    language.choose(None)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of a model that was made for 128 positions."""
    tiny_tokenizer(tiny_model(tmp_path / "tiny", max_position_embeddings=128))
    (tmp_path / "my.json").write_text('[{"instruction": "a", "output": "b"}]', "utf-8")
    (tmp_path / "run.yaml").write_text(RUN, "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def said(*words: str) -> str:
    stream = io.StringIO()
    with redirect_stdout(stream), redirect_stderr(stream), pytest.raises(SystemExit):
        main([*words])
    return stream.getvalue()


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize(
    "command",
    [("plan", "run.yaml", "--hardware", "910b3"), ("train", "run.yaml", "--dry-run"), ("data", "run.yaml")],
    ids=lambda command: command[0],
)
@pytest.mark.parametrize(("length", "beyond"), [(128, False), (129, True)])
def test_every_command_says_it(
    command: tuple[str, ...], length: int, beyond: bool, lang: str, here: Path
) -> None:
    out = said(*command, "--lang", lang, "-s", f"data.seq_len={length}")
    assert (SAID[lang] in out) == beyond
    assert ("129" in out and "128" in out) or not beyond


@pytest.mark.parametrize(("asked", "beyond"), [("8192", False), ("8193", True), ("1000000", True)])
def test_a_published_model_by_its_name(asked: str, beyond: bool) -> None:
    out = said("plan", "--model", "Qwen-14B", "--hardware", "8x910b3", "--seq-len", asked)
    assert (SAID["en"] in out) == beyond
    changes = [line for line in out.splitlines() if line.startswith("The smallest change: data.seq_len")]
    assert len(changes) == (asked == "1000000")
    assert all("longer than the 8192" in line for line in changes)


def test_what_is_measured_by() -> None:
    """Qwen1's rows by seq_length, the length it was trained at; others' by max_position_embeddings."""
    old = spec.from_config(
        qwen1_config(tiny_config(num_key_value_heads=4, max_position_embeddings=512)) | {"seq_length": 64}
    )
    assert positions.beyond(old, 64) == []
    ((code, values),) = positions.beyond(old, 65)
    assert (code, values) == ("data.beyond_positions_qwen1", {"seq_len": 65, "positions": 64})
    new = known.spec("Qwen2.5-0.5B")
    assert new is not None
    assert positions.beyond(new, 32768) == []
    assert [code for code, _ in positions.beyond(new, 32769)] == ["data.beyond_positions"]
