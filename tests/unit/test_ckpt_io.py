"""MindSpore .ckpt: against protobuf's own reader and writer, and damaged files end as Problems."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.mindspore_files import checkpoint_values, protobuf

from tengtune.ui.problems import Problem
from tengtune.weights import ckpt_io, wire
from tengtune.weights import stream as streams
from tengtune.weights.ckpt_io import Joined, open_file, write_file
from tengtune.weights.safetensors_io import open_file as open_safetensors
from tengtune.weights.stream import TensorStream, stream

DTYPES = ["<f8", "<f4", "<f2", ml_dtypes.bfloat16, "<i8", "<i4", "<i2", "i1", "<u8", "<u4", "<u2", "u1", "?"]
KINDS = ["Float64", "Float32", "Float16", "BFloat16", "Int64", "Int32", "Int16", "Int8"]
KINDS += ["UInt64", "UInt32", "UInt16", "UInt8", "Bool"]

SHAPES = st.lists(st.integers(1, 5), max_size=4).map(tuple)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)


def array_of(dtype: object, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Random bits of that dtype."""
    kind = np.dtype(dtype)  # type: ignore[call-overload]
    count = int(np.prod(shape)) * kind.itemsize
    raw = np.random.default_rng(seed).integers(0, 2 if kind.kind == "b" else 256, count, np.uint8)
    return raw.view(kind).reshape(shape)


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(NAMES, st.tuples(st.sampled_from(DTYPES), SHAPES), min_size=1, max_size=4),
    st.integers(1, 100),
    st.booleans(),
)
def test_protobuf_reads_what_we_write_and_we_read_it(
    tmp_path_factory: pytest.TempPathFactory,
    tensors: dict[str, tuple[object, tuple[int, ...]]],
    limit: int,
    crc: bool,
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.ckpt"
    arrays = {name: array_of(*kind, seed) for seed, (name, kind) in enumerate(tensors.items())}
    write_file(path, [stream(name, array) for name, array in arrays.items()], crc=crc, limit=limit)
    raw = path.read_bytes()
    if crc:
        assert raw[-17:-10] == b"crc_num"
        assert int.from_bytes(raw[-10:], "big") == zlib.crc32(raw[:-17])
        raw = raw[:-17]
    content: dict[str, bytes] = {}
    for tag, kind, dims, part in checkpoint_values(raw):
        assert np.dtype(DTYPES[KINDS.index(kind)]) == arrays[tag].dtype
        assert tuple(dims) == arrays[tag].shape
        assert 0 < len(part) <= limit
        content[tag] = content.get(tag, b"") + part
    assert content == {name: array.tobytes() for name, array in arrays.items()}
    read = open_file(path)
    assert list(read) == list(arrays)
    for name, array in arrays.items():
        assert (read[name].shape, read[name].dtype) == (array.shape, array.dtype)
        rows = read[name][:] if array.shape else read[name]
        assert np.asarray(rows).tobytes() == array.tobytes()


def test_files_of_protobuf_itself_are_read_with_packed_dims_too(tmp_path: Path) -> None:
    message = protobuf("checkpoint_pb2").Checkpoint()
    for name in ("one", "two"):
        value = message.value.add(tag=name)
        value.tensor.dims.extend([2, 3])
        value.tensor.tensor_type = "Int16"
        value.tensor.tensor_content = np.arange(6, dtype="<i2").tobytes()
    (tmp_path / "a.ckpt").write_bytes(message.SerializeToString())
    unpacked, packed = b"\x08\x02\x08\x03", b"\x0a\x02\x02\x03"
    (tmp_path / "b.ckpt").write_bytes(message.SerializeToString().replace(unpacked, packed))
    for file in ("a.ckpt", "b.ckpt"):
        read = open_file(tmp_path / file)
        assert {name: np.asarray(rows).tolist() for name, rows in read.items()} == {
            name: [[0, 1, 2], [3, 4, 5]] for name in ("one", "two")
        }


def test_the_layout_of_one_record_byte_by_byte(tmp_path: Path) -> None:
    write_file(tmp_path / "x.ckpt", [stream("w", np.zeros((2, 3), "<f2"))])
    head = "0a20 0a01 77 121b 0802 0803 1207 466c6f61743136 1a0c"
    assert (tmp_path / "x.ckpt").read_bytes() == bytes.fromhex(head.replace(" ", "")) + bytes(12)


def test_arrays_are_lazy_and_read_only(tmp_path: Path) -> None:
    write_file(tmp_path / "x.ckpt", [stream("a", np.arange(4.0)), stream("b", np.arange(9.0))], limit=40)
    one, two = open_file(tmp_path / "x.ckpt").values()
    assert isinstance(one, np.ndarray)
    assert not one.flags.writeable
    assert not one.flags.owndata
    assert isinstance(two, Joined)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 12), st.integers(1, 4), st.integers(1, 60), st.slices(12))
def test_rows_of_a_tensor_in_pieces(
    tmp_path_factory: pytest.TempPathFactory, rows: int, columns: int, limit: int, part: slice
) -> None:
    part = slice(part.start, part.stop)
    array = array_of("<f4", (rows, columns), rows)
    path = tmp_path_factory.getbasetemp() / "rows.ckpt"
    write_file(path, [stream("a", array)], limit=limit)
    read = open_file(path)["a"]
    assert (read.shape, read.size, read.nbytes, len(read)) == (array.shape, array.size, array.nbytes, rows)
    assert read[part].shape == array[part].shape
    assert read[part].tobytes() == array[part].tobytes()
    assert b"".join(p.tobytes() for p in stream("a", read).pieces()) == array.tobytes()


def test_large_tensors_pass_in_small_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "PIECE_BYTES", 64)
    array = array_of("<f4", (37, 5))
    sizes: list[int] = []
    write_file(tmp_path / "x.ckpt", [stream("a", array)], sizes.append, limit=100)
    assert max(sizes) == 64
    assert sum(sizes) == array.nbytes
    assert open_file(tmp_path / "x.ckpt")["a"][:].tobytes() == array.tobytes()


def test_texts_and_scalars(tmp_path: Path) -> None:
    values = {"text": np.array("wo 你好 \U0001f600"), "step": np.array(7, "<i8"), "flag": np.array(True)}
    write_file(tmp_path / "x.ckpt", [stream(name, value) for name, value in values.items()])
    read = open_file(tmp_path / "x.ckpt")
    assert {name: np.asarray(value).item() for name, value in read.items()} == {
        "text": "wo 你好 \U0001f600", "step": 7, "flag": True,
    }  # fmt: skip


def test_an_old_scalar_with_dims_zero_is_a_scalar(tmp_path: Path) -> None:
    (tmp_path / "x.ckpt").write_bytes(record(dims=wire.repeated(1, [0]), content=bytes(4)))
    assert open_file(tmp_path / "x.ckpt")["a"].shape == ()


def test_what_the_format_cannot_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Problem) as caught:
        write_file(tmp_path / "x.ckpt", [stream("ok", np.ones(3)), stream("none", np.zeros((0, 4)))])
    assert (caught.value.code, caught.value.values["tensor"]) == ("ckpt.empty_tensor", "none")
    with pytest.raises(ValueError, match="comes twice"):
        write_file(tmp_path / "x.ckpt", [stream("a", np.ones(3)), stream("a", np.ones(3))])
    short = TensorStream("a", (4,), np.dtype("<f4"), lambda: iter([np.zeros(3, "<f4")]))
    with pytest.raises(ValueError, match=r"^a: "):
        write_file(tmp_path / "x.ckpt", [short])
    assert list(tmp_path.iterdir()) == []


def record(
    tag: bytes = b"a",
    dims: bytes = b"\x08\x01",
    kind: bytes = b"Float32",
    content: bytes = bytes(4),
    *,
    tensor: bytes | None = None,
) -> bytes:
    """One Value; `tensor` replaces the TensorProto."""
    proto = dims + wire.message(2, kind) + wire.message(3, content) if tensor is None else tensor
    return wire.message(1, wire.message(1, tag), wire.message(2, proto))


def text(content: bytes) -> bytes:
    return record(kind=b"str", dims=b"\x08\x00", content=content)


GOOD = record(b"first")
FLOAT, FOUR = wire.message(2, b"Float32"), wire.message(3, bytes(4))
TABLE = wire.message(1, wire.message(1, b"a"), wire.message(3, b""))
BAD: list[tuple[str, bytes, str]] = [
    ("a key of another field", b"\x12\x00", "unknown, out of order"),
    ("a length without end", b"\x0a" + b"\xff" * 11, "no end"),
    ("a padded length", b"\x0a\x80\x00", "shortest form"),
    ("an empty record", b"\x0a\x00", "lacks"),
    ("no tensor", wire.message(1, wire.message(1, b"a")), "lacks"),
    ("the tensor first", wire.message(1, wire.message(2, b"")), "out of order"),
    ("an unknown field", wire.message(1, wire.message(9, b"x")), "unknown"),
    ("an empty name", record(b""), "empty"),
    ("a name that is no UTF-8", record(b"\xff\xfe"), "UTF-8"),
    ("a name without end", record(b"n" * 1001), "too long"),
    ("a hash table", TABLE, "hash table"),
    ("a field that leaves its record", wire.message(1, b"\x0a\x7fa"), "longer than"),
    ("an unknown type", record(kind=b"Float31"), "Float31"),
    ("a negative dim", record(dims=wire.number(1, -1)), "dims"),
    ("nine dims", record(dims=b"\x08\x01" * 9), "dims"),
    ("a million packed dims", record(dims=wire.message(1, b"\x01" * 10**6)), "dims"),
    ("dims beyond NumPy", record(dims=wire.repeated(1, [0, 2**40, 2**40]), content=b""), "dims"),
    ("fewer bytes than the dims", record(dims=b"\x08\x02"), "as many as"),
    ("more bytes than the dims", record(content=bytes(8)), "as many as"),
    ("type before dims", record(tensor=FLOAT + b"\x08\x01" + FOUR), "order"),
    ("no type", record(tensor=b"\x08\x01" + FOUR), "order"),
    ("no content", record(tensor=b"\x08\x01" + FLOAT), "lacks"),
    ("a type twice", record(tensor=FLOAT + FLOAT), "order"),
    ("a text that is no UTF-32", text(b"\xff" * 4), "UTF-32"),
    ("a text of 2 MiB", text(b"a\0\0\0" * 2**19), "long"),
    ("the same name again", record(b"b") + GOOD, "twice"),
    ("pieces of two types", record(b"b") + record(b"b", kind=b"Int32"), "pieces"),
    ("pieces too short", record(b"b", b"\x08\x03") * 2, "as many as"),
    ("a broken CRC mark", b"crc_nun" + bytes(10), "unknown"),
    ("a CRC of other bytes", b"crc_num" + bytes(10), "CRC-32"),
    ("bytes behind the CRC", b"crc_num" + bytes(11), "unknown"),
]
CODES = {
    "a hash table": "ckpt.hash_table",
    "an unknown type": "weights.unknown_dtype",
    "a CRC of other bytes": "weights.bad_crc",
}


@pytest.mark.parametrize(("name", "raw", "words"), BAD, ids=[b[0] for b in BAD])
def test_a_bad_record_is_a_problem_that_says_where(tmp_path: Path, name: str, raw: bytes, words: str) -> None:
    path = tmp_path / "x.ckpt"
    path.write_bytes(GOOD + raw)
    with pytest.raises(Problem) as caught:
        open_file(path)
    assert caught.value.code == CODES.get(name, "ckpt.bad_record")
    assert caught.value.where == str(path)
    assert words in str(caught.value)
    if name not in CODES:
        assert len(GOOD) <= int(str(caught.value.values["offset"])) < len(GOOD + raw)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "ckpt.not_ckpt"),
        (b"\x08\x00\x12\x02", "ckpt.not_ckpt"),  # a strategy file
        (b"PK\x03\x04" + bytes(100), "ckpt.not_ckpt"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "weights.lfs_pointer"),
    ],
)
def test_other_files_are_recognised(tmp_path: Path, content: bytes, code: str) -> None:
    (tmp_path / "x.ckpt").write_bytes(content)
    with pytest.raises(Problem) as caught:
        open_file(tmp_path / "x.ckpt")
    assert caught.value.code == code


def test_what_is_no_file_is_a_problem(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.ckpt")
    for name, code in (("pipe.ckpt", "ckpt.not_ckpt"), ("none.ckpt", "io.not_found"), (".", "io.is_folder")):
        with pytest.raises(Problem) as caught:
            open_file(tmp_path / name)
        assert caught.value.code == code


def test_a_cut_file_is_told_unless_the_cut_is_between_tensors(tmp_path: Path) -> None:
    path, arrays = tmp_path / "x.ckpt", [array_of("<f4", (3, n)) for n in (2, 3, 4)]
    write_file(path, [stream(f"t{i}", array) for i, array in enumerate(arrays)], limit=20)
    raw = path.read_bytes()
    borders = {len(raw)}
    for i in range(1, 3):
        write_file(path, [stream(f"t{k}", array) for k, array in enumerate(arrays[:i])], limit=20)
        borders.add(path.stat().st_size)
    for length in range(1, len(raw)):
        path.write_bytes(raw[:length])
        if length in borders:
            assert len(open_file(path)) < 3
            continue
        with pytest.raises(Problem) as caught:
            open_file(path)
        assert caught.value.code in ("ckpt.truncated", "ckpt.bad_record")


def test_every_flipped_bit_of_the_structure_is_found(tmp_path: Path) -> None:
    path = tmp_path / "x.ckpt"
    arrays = {"first.weight": array_of("<f2", (3, 4)), "second.weight": array_of("<f4", (5,))}
    write_file(path, [stream(name, array) for name, array in arrays.items()], limit=16)
    raw = path.read_bytes()
    # What is no structure: a name may turn into another name, a value into another value.
    free = set()
    for name, array in arrays.items():
        data = array.tobytes()
        for text in (name.encode(), *(data[i : i + 16] for i in range(0, len(data), 16))):
            start = raw.find(text)
            while start != -1:
                free |= set(range(start, start + len(text)))
                start = raw.find(text, start + 1)
    assert 60 < len(raw) - len(free) < 200
    for position in range(len(raw)):
        for bit in range(8):
            damaged = bytearray(raw)
            damaged[position] ^= 1 << bit
            path.write_bytes(damaged)
            try:
                read = open_file(path)
            except Problem as problem:
                assert problem.where == str(path)
            else:
                assert position in free, (position, bit)
                assert sum(rows.nbytes for rows in read.values()) == sum(a.nbytes for a in arrays.values())


def test_every_flipped_bit_is_found_where_there_is_a_crc(tmp_path: Path) -> None:
    path = tmp_path / "x.ckpt"
    write_file(path, [stream("a.weight", array_of("<f2", (3, 4)))], crc=True)
    raw = path.read_bytes()
    for position in range(len(raw)):
        for bit in range(8):
            damaged = bytearray(raw)
            damaged[position] ^= 1 << bit
            path.write_bytes(damaged)
            with pytest.raises(Problem):
                open_file(path)


def test_a_file_of_endless_records_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ckpt_io, "_MAX_VALUES", 100)
    (tmp_path / "x.ckpt").write_bytes(b"".join(record(b"%d" % i) for i in range(100)))
    assert len(open_file(tmp_path / "x.ckpt")) == 100
    (tmp_path / "x.ckpt").write_bytes(b"".join(record(b"%d" % i) for i in range(101)))
    with pytest.raises(Problem) as caught:
        open_file(tmp_path / "x.ckpt")
    assert caught.value.code == "ckpt.bad_record"


def test_the_checksum_of_mindspore_s_safetensors_is_checked(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    tensors = {"b": array_of("<f4", (3, 2)), "a": array_of("<i8", (4,))}
    # As mindspore.save_checkpoint(format="safetensors", crc_check=True) computes it.
    crc = 0
    for name in sorted(tensors):
        crc = zlib.crc32(tensors[name].tobytes(), zlib.crc32(name.encode(), crc))
    path = tmp_path / "x.safetensors"
    save_file(tensors, path, metadata={"format": "ms", "crc_num": str(crc)})
    assert open_safetensors(path).keys() == tensors.keys()
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    with pytest.raises(Problem) as caught:
        open_safetensors(path)
    assert caught.value.code == "weights.bad_crc"
