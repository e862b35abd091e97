"""`tengtune weights verify`: the whole contents against the hashes of the download."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file
from tests.hub_lab import SHARDS, contents, get
from tests.hubs import REPO
from tests.tiny import tiny_model

from tengtune.cli.weights import command
from tengtune.ui.problems import Problem


def verify(folder: Path) -> dict[str, object]:
    done = CliRunner().invoke(command, ["verify", str(folder), "--json"], standalone_mode=False)
    if done.exception:
        raise done.exception
    result: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, data in contents().items():
        path = tmp_path / "disk" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    get(tmp_path / "m", str(tmp_path / "disk"))
    return tmp_path / "m"


def test_an_intact_folder(folder: Path) -> None:
    result = verify(folder)
    assert result["model"] == REPO
    assert set(result["sha256"]) == {path.name for path in folder.iterdir()} - {"download.json"}  # type: ignore[call-overload]


def test_one_flipped_bit_of_the_same_size_and_time(folder: Path) -> None:
    shard = folder / SHARDS[0]
    info, data = shard.stat(), bytearray(shard.read_bytes())
    data[123_456] ^= 1
    shard.write_bytes(data)
    os.utime(shard, ns=(info.st_atime_ns, info.st_mtime_ns))
    with pytest.raises(Problem) as caught:
        verify(folder)
    assert (caught.value.code, caught.value.values["files"]) == ("download.not_intact", SHARDS[0])


def test_a_lost_file(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(Problem) as caught:
        verify(folder)
    assert caught.value.values["files"] == "tokenizer.json"


def test_an_unfinished_download(folder: Path) -> None:
    text = (folder / "download.json").read_text()
    (folder / "download.json").write_text(text.replace('"whole": true', '"whole": false'))
    with pytest.raises(Problem) as caught:
        verify(folder)
    assert caught.value.code == "download.not_whole"


@pytest.mark.parametrize(
    ("dtype", "value"), [("float32", np.nan), ("float16", np.inf), ("bfloat16", -np.inf)]
)
def test_values_that_are_not_finite_are_named(tmp_path: Path, dtype: str, value: float) -> None:
    model = tiny_model(tmp_path / "model", dtype=dtype)
    weights = load_file(model / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"][7, 3] = value
    weights["model.norm.weight"][:2] = value
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(Problem) as caught:
        verify(model)
    assert (caught.value.code, caught.value.exit_code) == ("weights.not_finite", 2)
    faults = set(str(caught.value.values["faults"]).splitlines())
    assert faults == {"model.layers.1.mlp.up_proj.weight: 1 value", "model.norm.weight: 2 values"}


def test_a_folder_without_a_record_has_its_headers_checked(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "model")
    assert verify(model)["sha256"] is None
    os.truncate(model / "model.safetensors", 100_000)
    with pytest.raises(Problem) as caught:
        verify(model)
    assert caught.value.code == "weights.truncated"
