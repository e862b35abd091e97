"""MindSpore's own checkpoint files (index.json beside them says how they were made)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.mindspore_files import checkpoint_values

from tengtune.ui.problems import Problem
from tengtune.weights.ckpt_io import TYPES, open_file, write_file
from tengtune.weights.safetensors_io import open_file as open_safetensors
from tengtune.weights.stream import stream

HERE = Path(__file__).parent / "ckpt"
FILES: dict[str, Any] = json.loads((HERE / "index.json").read_text(encoding="utf-8"))["files"]
WHOLE = [name for name, info in FILES.items() if "load_checkpoint_raises" not in info["loads_as"]]
CKPTS = [name for name in WHOLE if name.endswith(".ckpt")]


@pytest.fixture(scope="module")
def expected() -> dict[str, np.ndarray]:
    with np.load(HERE / "expected.npz") as archive:
        return dict(archive)


@pytest.mark.parametrize("file", WHOLE)
def test_names_shapes_types_and_bits_are_those_mindspore_loads(
    file: str, expected: dict[str, np.ndarray]
) -> None:
    read = open_file(HERE / file) if file.endswith(".ckpt") else open_safetensors(HERE / file)
    if file == "append_dict.ckpt":  # its values are not in expected.npz
        expected = {
            f"{file}|{v[0]}": np.frombuffer(v[3], "u1") for v in checkpoint_values((HERE / file).read_bytes())
        }
    loads_as = FILES[file]["loads_as"]
    assert list(read) == list(loads_as) if file.endswith(".ckpt") else set(read) == set(loads_as)
    for name, info in loads_as.items():
        if info.get("python") == "str":
            assert str(read[name]) == info["value"]
            continue
        assert read[name].dtype == TYPES[info["dtype"]], name
        assert list(read[name].shape) == info["shape"], name
        found = np.asarray(read[name][:] if info["shape"] else read[name])
        if info["dtype"] == "BFloat16":
            assert np.array_equal(found.view(np.uint16), expected[f"{file}|{name}.bits"]), name
        else:
            assert found.tobytes() == expected[f"{file}|{name}"].tobytes(), name


@pytest.mark.parametrize("file", CKPTS)
def test_written_again_the_bytes_are_mindspore_s(tmp_path: Path, file: str) -> None:
    streams = [stream(name, rows) for name, rows in open_file(HERE / file).items()]
    # pieces*.ckpt were written with MindSpore's limit of one record lowered to 1 KiB; the rest is smaller.
    write_file(tmp_path / file, streams, crc="trailer_hex" in FILES[file] or "pieces_crc" in file, limit=1024)
    assert (tmp_path / file).read_bytes() == (HERE / file).read_bytes()


def test_a_flipped_bit_is_found_by_the_crc() -> None:
    with pytest.raises(Problem) as caught:
        open_file(HERE / "crc_bad.ckpt")
    assert caught.value.code == "weights.bad_crc"
    assert caught.value.values["wanted"] == FILES["crc_on.ckpt"]["crc32_of_the_rest"]


def test_a_cut_file_is_told() -> None:
    with pytest.raises(Problem) as caught:
        open_file(HERE / "truncated.ckpt")
    assert caught.value.code == "ckpt.truncated"
    assert caught.value.values["there"] == FILES["truncated.ckpt"]["bytes"]
    assert caught.value.values["declared"] == FILES["fp32.ckpt"]["bytes"]


def test_values_can_be_cast_on_the_way(tmp_path: Path, expected: dict[str, np.ndarray]) -> None:
    source = open_file(HERE / "pieces.ckpt")["big.weight"]
    write_file(tmp_path / "x.ckpt", [stream("big.weight", source, ml_dtypes.bfloat16)], limit=100)
    read = open_file(tmp_path / "x.ckpt")["big.weight"]
    wanted = expected["pieces.ckpt|big.weight"].astype(ml_dtypes.bfloat16)
    assert np.array_equal(read[:], wanted)
