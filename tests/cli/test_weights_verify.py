"""`tengtune weights verify`: the whole contents against the hashes of the download."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file
from tests.hub_lab import NEEDED, SHARDS, contents, get, problem
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


def test_a_mirror_without_hashes_whose_weights_are_cut(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    for name in NEEDED:
        (tmp_path / "disk" / name).write_bytes(contents()[name])
    os.truncate(tmp_path / "disk" / SHARDS[1], 199_900)
    assert problem(tmp_path / "m", str(tmp_path / "disk")).code == "weights.truncated"
    assert not (tmp_path / "m" / "config.json").exists()


def test_an_unchecked_download_that_was_cut_before(folder: Path) -> None:
    record = json.loads((folder / "download.json").read_text())
    data = (folder / SHARDS[1]).read_bytes()[:-100]
    (folder / SHARDS[1]).unlink()
    (folder / SHARDS[1]).write_bytes(data)
    record["files"][SHARDS[1]] |= {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (folder / "download.json").write_text(json.dumps(record))
    with pytest.raises(Problem) as caught:
        verify(folder)
    assert caught.value.code == "weights.truncated"


@pytest.mark.parametrize(("recorded", "code"), [(True, "download.other_weights"), (False, "weights.others")])
def test_another_model_s_weights_beside_the_shards(folder: Path, recorded: bool, code: str) -> None:
    save_file({"x": np.ones(3, np.float32)}, folder / "model.safetensors")
    if not recorded:
        (folder / "download.json").unlink()
    with pytest.raises(Problem) as caught:
        verify(folder)
    named = "model.safetensors" if recorded else "\n".join(SHARDS)
    assert (caught.value.code, caught.value.values["others"]) == (code, named)


def test_weights_without_a_tensor(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    with pytest.raises(Problem) as caught:
        verify(tmp_path)
    assert caught.value.code == "weights.empty"
