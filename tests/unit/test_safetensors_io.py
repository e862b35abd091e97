"""safetensors: against the safetensors library in both directions, and damaged files end as Problems."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from tengtune.ui.problems import Problem
from tengtune.weights import stream as streams
from tengtune.weights.safetensors_io import open_file, write_file, write_folder
from tengtune.weights.stream import TensorStream, blocks, non_finite, stream

TORCH = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
NUMPY = {"BF16": ml_dtypes.bfloat16, "BOOL": np.bool_}


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def random_tensors(seed: int) -> dict[str, torch.Tensor]:
    """One tensor of every dtype, with odd sizes so that neighbours are not aligned by chance."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for i, (code, dtype) in enumerate(TORCH.items()):
        values = torch.randint(-100, 100, (3, 5 + i), generator=generator)
        tensors[f"t.{code}"] = values.to(dtype) if not dtype.is_floating_point else (values / 7).to(dtype)
    tensors["scalar"] = torch.tensor(2.5)
    tensors["empty"] = torch.zeros((0, 4))
    return tensors


def header_of(path: Path) -> tuple[dict[str, Any], bytes]:
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def put_header(path: Path, header: object, data: bytes = bytes(16)) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def test_we_read_what_the_library_writes(tmp_path: Path) -> None:
    tensors = random_tensors(1)
    save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "pt"})
    read = open_file(tmp_path / "x.safetensors")
    assert read.keys() == tensors.keys()
    for name, expected in tensors.items():
        assert read[name].shape == tuple(expected.shape), name
        assert read[name].tobytes() == bits(expected), name
        code = name.removeprefix("t.")
        kind = NUMPY.get(code) or str(expected.dtype).removeprefix("torch.")
        assert read[name].dtype == np.dtype(kind), name


def test_the_library_reads_what_we_write(tmp_path: Path) -> None:
    tensors = random_tensors(2)
    save_file(tensors, tmp_path / "theirs.safetensors")
    write_file(
        tmp_path / "ours.safetensors",
        [stream(name, array) for name, array in open_file(tmp_path / "theirs.safetensors").items()],
    )
    read = load_file(tmp_path / "ours.safetensors")
    assert read.keys() == tensors.keys()
    for name, expected in tensors.items():
        assert read[name].dtype == expected.dtype
        assert read[name].shape == expected.shape
        assert bits(read[name]) == bits(expected), name


def test_every_tensor_is_aligned_to_its_own_size(tmp_path: Path) -> None:
    odd = [stream(f"a{i}", np.zeros(5, dtype)) for i, dtype in enumerate(("i1", "<f8", "<f2", "<f4", "?"))]
    write_file(tmp_path / "x.safetensors", odd)
    length = int.from_bytes((tmp_path / "x.safetensors").read_bytes()[:8], "little")
    assert length % 8 == 0
    assert all(array.flags.aligned for array in open_file(tmp_path / "x.safetensors").values())


def test_unaligned_files_of_others_are_read(tmp_path: Path) -> None:
    header = {
        "byte": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "wide": {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]},
    }
    data = b"\x07" + np.array([1.5, -2.0], "<f4").tobytes()
    read = open_file(put_header(tmp_path / "x.safetensors", header, data))
    assert read["byte"].tolist() == [7]
    assert read["wide"].tolist() == [1.5, -2.0]


def test_arrays_are_lazy_and_read_only(tmp_path: Path) -> None:
    write_file(tmp_path / "x.safetensors", [stream("a", np.arange(4.0))])
    array = open_file(tmp_path / "x.safetensors")["a"]
    assert not array.flags.writeable
    assert not array.flags.owndata


@pytest.mark.parametrize("layout", ["transposed", "strided", "broadcast"])
def test_arrays_that_are_not_contiguous_are_written_right(tmp_path: Path, layout: str) -> None:
    # The trap safetensors 0.8.0 falls into with NumPy arrays.
    grid = np.arange(24, dtype=np.float32).reshape(4, 6)
    array = {
        "transposed": grid.T,
        "strided": grid[::2, 1::3],
        "broadcast": np.broadcast_to(grid[0], (3, 6)),
    }[layout]
    write_file(tmp_path / "x.safetensors", [stream("a", array)])
    assert load_file(tmp_path / "x.safetensors")["a"].tolist() == array.tolist()


def test_large_tensors_go_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "PIECE_BYTES", 64)
    array = np.random.default_rng(3).standard_normal((37, 5)).astype(np.float32)
    sizes: list[int] = []
    write_file(tmp_path / "x.safetensors", [stream("a", array, np.float16)], sizes.append)
    assert len(sizes) == 12  # 185 values, 16 of 4 bytes in a piece
    assert sum(sizes) == 37 * 5 * 2
    expected = torch.from_numpy(array).to(torch.float16)
    assert torch.equal(load_file(tmp_path / "x.safetensors")["a"], expected)


def test_shards_keep_the_limit_and_the_order(tmp_path: Path) -> None:
    arrays = {f"t{i}": np.full(n, i, np.float32) for i, n in enumerate((10, 10, 30, 5, 5))}
    written = write_folder(tmp_path, [stream(n, a) for n, a in arrays.items()], shard_bytes=80)
    assert written == [
        *(f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)),
        "model.safetensors.index.json",
    ]
    index = json.loads((tmp_path / written[-1]).read_text())
    assert index["metadata"]["total_size"] == 240
    assert [index["weight_map"][f"t{i}"][10] for i in range(5)] == ["1", "1", "2", "3", "3"]
    for name, file in index["weight_map"].items():
        assert load_file(tmp_path / file)[name].tolist() == arrays[name].tolist()


@pytest.mark.parametrize("fault", ["short", "long", "wrong dtype"])
def test_a_stream_that_breaks_its_word_leaves_no_file(tmp_path: Path, fault: str) -> None:
    given_array = {
        "short": np.zeros(3, np.float32),
        "long": np.zeros(5, np.float32),
        "wrong dtype": np.zeros(4, np.int32),
    }[fault]
    bad = TensorStream("a", (4,), np.dtype(np.float32), lambda: iter([given_array]))
    with pytest.raises(ValueError, match=r"^a: "):
        write_file(tmp_path / "x.safetensors", [bad])
    assert list(tmp_path.iterdir()) == []


def test_values_that_are_not_finite_are_counted_in_every_dtype() -> None:
    for kind in ("float64", "float32", "float16", ml_dtypes.bfloat16):
        array = np.zeros((3, 4), kind)
        assert non_finite(array) == 0
        array[0, 1], array[2, 0], array[2, 3] = np.nan, np.inf, -np.inf
        assert non_finite(array) == 3


def entry(dtype: object = "F32", shape: object = (4,), offsets: object = (0, 16)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


BAD_HEADERS: list[tuple[str, object, str]] = [
    ("a list", [1, 2], "weights.not_safetensors"),
    ("not json", b"{nonsense}", "weights.bad_json"),
    ("not utf-8", b'{"\xff": 1}', "weights.bad_json"),
    ("nested", b'{"a":' + b"[" * 100_000, "weights.bad_json"),
    ("a key twice", b'{"a": {}, "a": {}}', "weights.bad_json"),
    ("entry no object", {"a": 5}, "weights.bad_tensor"),
    ("offsets missing", {"a": {"dtype": "F32", "shape": [4]}}, "weights.bad_tensor"),
    ("dtype unknown", {"a": entry(dtype="F8_E4M3")}, "weights.unknown_dtype"),
    ("dtype no text", {"a": entry(dtype=["F32"])}, "weights.unknown_dtype"),
    ("shape no list", {"a": entry(shape="4")}, "weights.bad_tensor"),
    ("negative length", {"a": entry(shape=[-4])}, "weights.bad_tensor"),
    ("length a float", {"a": entry(shape=[4.0])}, "weights.bad_tensor"),
    ("length a bool", {"a": entry(shape=[4, True])}, "weights.bad_tensor"),
    ("too many dims", {"a": entry(shape=[1] * 40 + [4])}, "weights.bad_tensor"),
    ("absurd and empty", {"a": entry(shape=[0, 2**61, 2**61], offsets=[0, 0])}, "weights.bad_tensor"),
    ("absurd product", {"a": entry(shape=[2**40, 2**40])}, "weights.bad_tensor"),
    ("one offset", {"a": entry(offsets=[0])}, "weights.bad_tensor"),
    ("end before begin", {"a": entry(offsets=[16, 0])}, "weights.bad_tensor"),
    ("size and shape differ", {"a": entry(shape=[3])}, "weights.bad_tensor"),
    (
        "hole",
        {"a": entry(shape=[1], offsets=[0, 4]), "b": entry(shape=[2], offsets=[8, 16])},
        "weights.bad_tensor",
    ),
    ("overlap", {"a": entry(), "b": entry(shape=[3], offsets=[4, 16])}, "weights.bad_tensor"),
    ("starts late", {"a": entry(shape=[3], offsets=[4, 16])}, "weights.bad_tensor"),
    ("beyond the end", {"a": entry(shape=[400], offsets=[0, 1600])}, "weights.truncated"),
    ("bytes left over", {"a": entry(shape=[3], offsets=[0, 12])}, "weights.too_long"),
]


@pytest.mark.parametrize(("header", "code"), [b[1:] for b in BAD_HEADERS], ids=[b[0] for b in BAD_HEADERS])
def test_a_bad_header_is_a_problem_that_names_file_and_tensor(
    tmp_path: Path, header: object, code: str
) -> None:
    path = put_header(tmp_path / "x.safetensors", header)
    with pytest.raises(Problem) as caught:
        open_file(path)
    assert caught.value.code == code
    assert caught.value.where == str(path)
    assert caught.value.exit_code == 2
    if code in ("weights.bad_tensor", "weights.unknown_dtype"):
        assert caught.value.values["tensor"] in ("a", "b")


def test_a_cut_file_says_what_is_there_and_what_is_declared(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"a": torch.zeros(100)}, path)
    whole = path.stat().st_size
    for there in (0, 5, 8, 20, whole - 400, whole - 1):
        os.truncate(path, there)
        with pytest.raises(Problem) as caught:
            open_file(path)
        assert caught.value.code == "weights.truncated"
        assert caught.value.values["there"] == there
        if there > whole - 401:
            assert caught.value.values["declared"] == whole
        save_file({"a": torch.zeros(100)}, path)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "weights.lfs_pointer"),
        (b"<!DOCTYPE html><html></html>", "weights.not_safetensors"),
        (b"PK\x03\x04" + bytes(100), "weights.not_safetensors"),
        ((2**60).to_bytes(8, "little") + b"{}", "weights.not_safetensors"),
        (bytes(64), "weights.not_safetensors"),
    ],
)
def test_other_files_are_recognised(tmp_path: Path, content: bytes, code: str) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(Problem) as caught:
        open_file(path)
    assert caught.value.code == code


def test_what_is_no_file_is_a_problem(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.safetensors")
    for name, code in (
        ("pipe.safetensors", "weights.not_safetensors"),
        ("none.safetensors", "io.not_found"),
        (".", "io.is_folder"),
    ):
        with pytest.raises(Problem) as caught:
            open_file(tmp_path / name)
        assert caught.value.code == code


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
ENTRY = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from([*TORCH, "F8_E4M3", "", None]),
        "shape": st.lists(st.integers(-1, 2**63) | st.integers(0, 4), max_size=4),
        "data_offsets": st.lists(st.integers(-1, 2**63) | st.integers(0, 64), max_size=3),
    }
)


@settings(max_examples=300, deadline=None)
@given(header=st.dictionaries(st.text(max_size=8), ENTRY | JSON, max_size=4), data=st.binary(max_size=64))
def test_any_header_is_a_problem_or_read_as_the_library_reads_it(
    tmp_path_factory: pytest.TempPathFactory, header: dict[str, Any], data: bytes
) -> None:
    path = put_header(tmp_path_factory.getbasetemp() / "fuzz.safetensors", header, data)
    try:
        read = open_file(path)
    except Problem as problem:
        assert problem.texts()["what"]
    else:
        assert sum(array.nbytes for array in read.values()) == len(data)
        if isinstance(header.get("__metadata__", {}), dict):
            assert {n: a.tobytes() for n, a in read.items()} == {
                n: bits(t) for n, t in load_file(path).items()
            }


@settings(max_examples=300, deadline=None)
@given(flips=st.lists(st.tuples(st.integers(0, 2000), st.integers(1, 255)), min_size=1, max_size=4))
def test_a_damaged_file_is_a_problem_or_still_a_file(
    tmp_path_factory: pytest.TempPathFactory, flips: list[tuple[int, int]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "flip.safetensors"
    save_file(random_tensors(4), path)
    raw = bytearray(path.read_bytes())
    for position, change in flips:
        raw[position % len(raw)] ^= change
    path.write_bytes(raw)
    try:
        read = open_file(path)
    except Problem as problem:
        assert problem.where == str(path)
    else:
        length = int.from_bytes(raw[:8], "little")
        assert sum(array.nbytes for array in read.values()) == len(raw) - 8 - length


def test_a_tensor_without_values_has_no_pieces_however_many_rows_it_tells_of() -> None:
    assert next(blocks(np.empty((10**17, 0), np.float32)), None) is None


def test_the_name_of_the_format_s_own_texts_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(Problem) as caught:
        write_file(tmp_path / "m.safetensors", [stream("__metadata__", np.ones(3, np.float32))])
    assert caught.value.code == "weights.reserved_name"
    assert not list(tmp_path.iterdir())
