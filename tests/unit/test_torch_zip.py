"""PyTorch's .bin files: against torch.save, damaged ones, and pickles that try to run something."""

from __future__ import annotations

import collections
import io
import os
import pickle
import pickletools
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tengtune.ui.problems import Problem
from tengtune.weights import torch_pickle
from tengtune.weights.torch_zip import open_file

DTYPES = {
    torch.float64: np.float64,
    torch.float32: np.float32,
    torch.float16: np.float16,
    torch.bfloat16: ml_dtypes.bfloat16,
    torch.int64: np.int64,
    torch.int32: np.int32,
    torch.int16: np.int16,
    torch.int8: np.int8,
    torch.uint8: np.uint8,
    torch.bool: np.bool_,
}


def tensors() -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(4)
    made = {str(d): torch.randint(0, 99, (3, 5), generator=random).to(d) for d in DTYPES}
    base = torch.randn(6, 7, generator=random)
    return made | {
        "whole": base,
        "again": base,
        "transposed": base.t(),
        "part": base[1:5, 2:7:2],
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 4),
        "parameter": torch.nn.Parameter(torch.ones(2, 3)),
    }


def save(path: Path, value: Any, **options: Any) -> Path:
    torch.save(value, path, **options)
    return path


def problem(path: Path) -> Problem:
    with pytest.raises(Problem) as caught:
        open_file(path)
    assert caught.value.exit_code == 2
    assert caught.value.texts()["what"]
    return caught.value


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("container", [dict, collections.OrderedDict])
def test_every_tensor_arrives_with_its_bits(tmp_path: Path, protocol: int, container: type) -> None:
    state = container(tensors())
    if container is collections.OrderedDict:
        state._metadata = collections.OrderedDict({"": {"version": 1}})  # as nn.Module.state_dict() has it
    found = open_file(save(tmp_path / "m.bin", state, pickle_protocol=protocol))
    assert list(found) == list(state)
    for name, tensor in state.items():
        assert found[name].dtype == np.dtype(DTYPES[tensor.dtype])
        assert found[name].shape == tuple(tensor.shape)
        expected = tensor.detach().to(torch.float64).numpy()
        assert np.array_equal(found[name].astype(np.float64), expected), name
        assert not found[name].flags.writeable


def test_a_storage_that_is_shared_is_mapped_once(tmp_path: Path) -> None:
    found = open_file(save(tmp_path / "m.bin", tensors()))
    assert np.shares_memory(found["whole"], found["again"])
    assert np.shares_memory(found["whole"], found["transposed"])
    assert found["part"].strides == (28, 8)


def test_nothing_is_read_before_it_is_used(tmp_path: Path) -> None:
    """A file of 6 GB that is a hole but for its last megabyte, and offsets that need zip64."""
    buffer = io.BytesIO()
    torch.save({"w": torch.arange(1000.0)}, buffer)
    path = tmp_path / "m.bin"
    with open(path, "wb") as stream:
        stream.write(b"PK\x03\x04")
        stream.seek(6 << 30)
        with zipfile.ZipFile(buffer) as old, zipfile.ZipFile(stream, "w") as new:
            for name in old.namelist():
                with new.open(name, "w", force_zip64=True) as entry:
                    entry.write(old.read(name))
    with zipfile.ZipFile(path) as archive:
        assert min(info.header_offset for info in archive.infolist()) >= 6 << 30
    assert path.stat().st_blocks * 512 < 10**6
    assert np.array_equal(open_file(path)["w"], np.arange(1000, dtype=np.float32))


# Pickles that would run something


class Calls:
    """Pickled, it is a call of `function`."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


def archive(path: Path, raw: bytes) -> Path:
    """An archive like torch's with `raw` as its pickle and one storage of 24 bytes."""
    with zipfile.ZipFile(path, "w") as zipped:
        zipped.writestr("m/data.pkl", raw)
        zipped.writestr("m/data/0", bytes(24))
    return path


def evil(marker: str) -> dict[str, bytes]:
    touch = f"touch {marker}"
    text = pickle.dumps(touch, 2)[2:-1]
    mkdir = b"cos\nmkdir\n" + pickle.dumps(marker, 2)[2:-1] + b"\x85R"
    return {
        "os.system": pickle.dumps({"w": Calls(os.system, touch)}, 2),
        "protocol 4": pickle.dumps({"w": Calls(os.system, touch)}, 4),
        "eval": pickle.dumps({"w": Calls(eval, f"__import__('os').mkdir({marker!r})")}, 2),
        "as a key": b"\x80\x02}" + mkdir + b"K\x01s.",
        "inst": b"\x80\x02(" + text + b"ios\nsystem\n.",
        "obj": b"\x80\x02(cos\nsystem\n" + text + b"o.",
        "newobj": b"\x80\x02cos\nsystem\n" + text + b"\x85\x81.",
        "attribute": b"\x80\x04\x8c\x0bcollections\x8c\x18OrderedDict.fromkeys.bad\x93.",
        "before stop": b"\x80\x02" + mkdir + b"}.",
        "persistent": b"\x80\x02" + mkdir + b"Q.",
        "extension": b"\x80\x02\x82\x01.",
    }


@pytest.mark.parametrize("kind", evil("x"))
def test_malicious_pickles_run_nothing(tmp_path: Path, kind: str) -> None:
    marker = tmp_path / "it-ran"
    path = archive(tmp_path / "m.bin", evil(str(marker))[kind])
    assert problem(path).code == "weights.torch_code"
    assert not marker.exists()


@pytest.mark.parametrize("kind", ["os.system", "protocol 4", "eval", "as a key", "before stop"])
def test_they_would_have_run(tmp_path: Path, kind: str) -> None:
    """Python's own reader shows that the pickles of the test above are live."""
    marker = tmp_path / "it-ran"
    pickle.loads(evil(str(marker))[kind])
    assert marker.exists()


def test_a_whole_model_is_named_as_code(tmp_path: Path) -> None:
    """torch.save(model) names the model's class, which a reader would have to import."""
    fault = problem(save(tmp_path / "m.bin", torch.nn.Linear(2, 2)))
    assert (fault.code, fault.values["name"]) == ("weights.torch_code", "torch.nn.modules.linear.Linear")


STORAGE = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x06tQ"
TENSOR = b"ctorch._utils\n_rebuild_tensor_v2\n("


def tensor_pickle(offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> bytes:
    """{"w": a view of a storage of 6 float32}, written by hand."""
    numbers = b"".join(pickle.dumps(value, 2)[2:-1] for value in (offset, shape, strides))
    return b"\x80\x02}X\x01\x00\x00\x00w" + TENSOR + STORAGE + numbers + b"\x89}tRs."


def test_the_hand_written_pickle_is_a_tensor(tmp_path: Path) -> None:
    raw = tensor_pickle(1, (2, 2), (2, 1))
    assert pickletools.optimize(raw)
    assert open_file(archive(tmp_path / "m.bin", raw))["w"].shape == (2, 2)


def test_a_name_with_half_a_character_is_refused(tmp_path: Path) -> None:
    fault = problem(save(tmp_path / "m.bin", {"a\ud800": torch.ones(2)}))
    assert "half a character" in str(fault)
    str(fault).encode()


@pytest.mark.parametrize(
    ("offset", "shape", "strides"),
    [
        (0, (7,), (1,)),
        (1, (6,), (1,)),
        (0, (2, 4), (3, 1)),
        (-1, (2,), (1,)),
        (0, (2,), (-1,)),
        (0, (-2,), (1,)),
        (0, (2, 3), (1,)),
        (0, (2**40,), (0,)),  # one value, as if it were a terabyte
        (0, (2**40, 0, 2**40), (1, 1, 1)),
        (0, (1,) * 9, (1,) * 9),
        (2**70, (1,), (1,)),
    ],
)
def test_views_beyond_their_storage_are_refused(
    tmp_path: Path, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    fault = problem(archive(tmp_path / "m.bin", tensor_pickle(offset, shape, strides)))
    assert (fault.code, fault.values["what"]) == ("weights.torch_damaged", "w")


DOUBLED = b"q\x00]h\x00ah\x00a" * 60  # a list twice in a list, twice in a list ...
BOMBS = {
    "lists in lists, doubled 60 times": b"\x80\x02]" + DOUBLED + b".",
    "deep": b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
    "a text of 4 GB": b"\x80\x02X\xff\xff\xff\x7f.",
    "a global of nested lists": b"\x80\x04]" + DOUBLED + b"\x8c\x01x\x93.",
    "nothing": b"",
    "no end": b"\x80\x02}",
    "a value that is not there": b"\x80\x02s.",
    "no mark": b"\x80\x02}u.",
    "a list as a key": b"\x80\x02}]K\x01s.",
    "an unknown memo": b"\x80\x02h\x07.",
    "not an instruction": b"\x80\x02\xff.",
    "items of a number": b"\x80\x02K\x01K\x01K\x01s.",
    "attributes of a number": b"\x80\x02K\x01K\x01b.",
    "a call of a number": b"\x80\x02K\x01)R.",
    "a storage by a text": b"\x80\x02X\x01\x00\x00\x000Q.",
    "a tensor of nothing": b"\x80\x02" + TENSOR + b"tR.",
    "a shape of texts": b"\x80\x02" + TENSOR + STORAGE + b"K\x00X\x01\x00\x00\x00a\x85K\x01\x85\x89}tR.",
    "a list": b"\x80\x02].",
    "a number in the dict": b"\x80\x02}X\x01\x00\x00\x00wK\x01s.",
}


@pytest.mark.parametrize("kind", BOMBS)
def test_what_is_no_dict_of_tensors_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    assert problem(archive(tmp_path / "m.bin", BOMBS[kind])).code == "weights.torch_not_tensors"


def test_a_memo_of_two_billion_places_costs_nothing(tmp_path: Path) -> None:
    assert open_file(archive(tmp_path / "m.bin", b"\x80\x02}r\xff\xff\xff\x7f.")) == {}


def test_a_training_checkpoint_is_named_by_its_key(tmp_path: Path) -> None:
    fault = problem(save(tmp_path / "m.bin", {"model": tensors(), "step": 3}))
    assert fault.code == "weights.torch_not_tensors"
    assert "'model' is a dict" in str(fault.values["reason"])


# Files that are no archive, or not a whole one


def repack(path: Path, change: Callable[[str, bytes], tuple[str, bytes]], **options: Any) -> Path:
    """The archive with every entry changed; options go to zipfile."""
    with zipfile.ZipFile(path) as old:
        entries = [change(name, old.read(name)) for name in old.namelist()]
    with zipfile.ZipFile(path, "w", **options) as new:
        for name, raw in entries:
            new.writestr(name, raw)
    return path


def keep(name: str, raw: bytes) -> tuple[str, bytes]:
    return name, raw


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return save(tmp_path / "m.bin", {"w": torch.arange(6.0), "v": torch.ones(2)})


def test_the_old_format_is_named(path: Path) -> None:
    save(path, {"w": torch.ones(2)}, _use_new_zipfile_serialization=False)
    assert problem(path).code == "weights.torch_legacy"


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"", "weights.not_torch"),
        (b"<!doctype html><html>", "weights.not_torch"),
        (b"\x80\x04K\x01.", "weights.torch_legacy"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n", "weights.lfs_pointer"),
        (b"PK\x03\x04", "weights.torch_cut"),
        (b"PK\x03\x04" + bytes(200), "weights.torch_cut"),
    ],
)
def test_files_that_are_something_else(path: Path, raw: bytes, code: str) -> None:
    path.write_bytes(raw)
    assert problem(path).code == code


def test_a_download_that_stopped(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])
    assert problem(path).code == "weights.torch_cut"


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.bin")
    assert problem(tmp_path / "pipe.bin").code == "weights.not_torch"


def test_a_missing_file(tmp_path: Path) -> None:
    assert problem(tmp_path / "none.bin").code == "io.not_found"


def test_other_archives(path: Path) -> None:
    repack(path, lambda name, raw: (name.replace("data.pkl", "notes.txt"), raw))
    assert problem(path).code == "weights.not_torch"


def test_compressed_entries(path: Path) -> None:
    repack(path, keep, compression=zipfile.ZIP_DEFLATED)
    assert problem(path).code == "weights.torch_damaged"


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda n, raw: (n, raw[:-1] if n.endswith("data/0") else raw), "data/0"),
        (lambda n, raw: (n.replace("data/1", "data/2"), raw), "data/1"),
        (lambda n, raw: (n, b"big" if n.endswith("byteorder") else raw), "byteorder"),
    ],
)
def test_entries_that_do_not_fit(path: Path, change: Callable[..., tuple[str, bytes]], what: str) -> None:
    fault = problem(repack(path, change))
    assert (fault.code, fault.values["what"]) == ("weights.torch_damaged", what)


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_a_file_with_changed_bytes_is_tensors_or_a_problem(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "changed.bin"
    buffer = io.BytesIO()
    torch.save({"w": torch.arange(6.0), "v": torch.ones(2, dtype=torch.bfloat16)}, buffer)
    raw = bytearray(buffer.getvalue())
    for _ in range(data.draw(st.integers(1, 4))):
        # The pickle at the front and the table of contents at the back decide; the values do not.
        place = data.draw(st.integers(0, 500) | st.integers(1, 900).map(lambda n: len(raw) - n))
        raw[place] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(raw))
    try:
        found = open_file(path)
    except Problem as fault:
        assert fault.code.startswith("weights.")
        assert fault.texts()["what"]
    else:
        assert all(array.nbytes <= len(raw) and not array.flags.writeable for array in found.values())


def test_a_pickle_of_too_many_operations_is_not_read_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = []
    genops = pickletools.genops

    def counted(raw: bytes) -> Any:
        for operation in genops(raw):
            read.append(operation[0].name)
            yield operation

    monkeypatch.setattr(pickletools, "genops", counted)
    monkeypatch.setattr(torch_pickle, "MAX_OPERATIONS", 100)
    with pytest.raises(torch_pickle.Fault, match="operations"):
        torch_pickle.read_tensors(b"\x80\x02" + b"N" * 1000 + b".")
    assert len(read) == 101
