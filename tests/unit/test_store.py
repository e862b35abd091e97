"""The store: what goes in comes out, batches equal a naive one, a store that is not whole is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tengtune.data import store as store_module
from tengtune.data.documents import Documents, spool
from tengtune.data.pack import Plan, one_per_row, pack
from tengtune.data.store import About, Store, default_buckets, open_store, write_store
from tengtune.text.conversation import Example
from tengtune.train.batch import NO_LABEL
from tengtune.ui.problems import Problem

SEQ_LEN = 24
ABOUT = About("fingerprint", "assistant", SEQ_LEN)
DOCUMENT = st.lists(st.tuples(st.integers(1, 400), st.booleans()), min_size=1, max_size=SEQ_LEN)


def examples(documents: list[list[tuple[int, bool]]]) -> list[Example]:
    made = []
    for i, document in enumerate(documents):
        ids, train = zip(*document, strict=True)
        source = f"file{i % 2}.json:{i // 2}"
        made.append(Example(np.array(ids, np.int32), np.array(train, np.bool_), source))
    return made


def write(folder: Path, documents: list[list[tuple[int, bool]]], seed: int = 0, packed: bool = True) -> Store:
    with spool(folder.parent / "spool") as pool:
        for example in examples(documents):
            file, _, record = example.source.rpartition(":")
            numbers = (np.array([n], np.int64) for n in (len(example.ids), int(record), 0))
            pool.add(file, example.ids, example.train, *numbers)
        collected = pool.documents()
        plan = pack(collected.lengths, SEQ_LEN, seed) if packed else one_per_row(len(collected))
        write_store(folder, collected, plan, ABOUT)
    assert not (folder.parent / "spool").exists()
    return open_store(folder)


def naive_rows(documents: list[list[tuple[int, bool]]], store: Store) -> list[list[int]]:
    """Document numbers (as given) of each row, found again by their contents' positions on disk."""
    by_source = {example.source: i for i, example in enumerate(examples(documents))}
    flat = [by_source[store._documents.source_of(d)] for d in range(store.documents)]
    starts = np.load(store.folder / "documents.npy").tolist()
    return [
        [flat[d] for d in range(store.documents) if a <= starts[d] < b]
        for a, b in zip(
            np.load(store.folder / "rows.npy")[:-1], np.load(store.folder / "rows.npy")[1:], strict=True
        )
    ]


@given(documents=st.lists(DOCUMENT, min_size=1, max_size=12), seed=st.integers(0, 2), packed=st.booleans())
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_batches_equal_a_naive_one(
    tmp_path: Path, documents: list[list[tuple[int, bool]]], seed: int, packed: bool
) -> None:
    store = write(tmp_path / "store", documents, seed, packed)
    rows = naive_rows(documents, store)
    assert sorted(d for row in rows for d in row) == list(range(len(documents)))
    batch = store.batch(range(store.rows), buckets=[SEQ_LEN])
    assert batch.ids.shape == batch.positions.shape == batch.segment.shape == (store.rows, SEQ_LEN)
    assert batch.label.shape == batch.label_index.shape == (store.rows, SEQ_LEN)
    for r, row in enumerate(rows):
        ids, positions, segment = [0] * SEQ_LEN, [0] * SEQ_LEN, [0] * SEQ_LEN
        labels = []
        place = 0
        for number, document in enumerate(row, 1):
            for position, (token, trained) in enumerate(documents[document]):
                ids[place], positions[place], segment[place] = token, position, number
                if trained and position:  # the first token of a document is nobody's label
                    labels.append((place - 1, token))
                place += 1
        assert batch.ids[r].tolist() == ids
        assert batch.positions[r].tolist() == positions
        assert batch.segment[r].tolist() == segment
        unused = [(0, NO_LABEL)] * (SEQ_LEN - len(labels))
        assert (
            list(zip(batch.label_index[r].tolist(), batch.label[r].tolist(), strict=True)) == labels + unused
        )
        assert store.labels_per_row[r] == len(labels)
    assert store.trained_tokens == batch.trained_tokens == int(store.labels_per_row.sum())
    assert store.tokens == sum(map(len, documents))
    assert all(array.dtype == np.int32 for array in vars(batch).values())


@given(documents=st.lists(DOCUMENT, min_size=1, max_size=12))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_documents_come_back_in_reading_order(
    tmp_path: Path, documents: list[list[tuple[int, bool]]]
) -> None:
    store = write(tmp_path / "store", documents)
    reading = sorted(examples(documents), key=lambda e: (e.source.split(":")[0], int(e.source.split(":")[1])))
    for number, example in enumerate(reading):
        found = store.example(number)
        assert found.source == store.source(number) == example.source
        assert found.ids.tolist() == example.ids.tolist()
        assert found.train.tolist() == [False, *example.train[1:].tolist()]


def test_writing_in_pieces_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(3)
    documents = [
        [(int(t), bool(t % 3)) for t in generator.integers(1, 400, generator.integers(1, SEQ_LEN + 1))]
        for _ in range(200)
    ]
    write(tmp_path / "whole", documents)
    monkeypatch.setattr(store_module, "COPY_TOKENS", 50)
    write(tmp_path / "pieces", documents)
    for file in sorted((tmp_path / "whole").iterdir()):
        assert file.read_bytes() == (tmp_path / "pieces" / file.name).read_bytes(), file.name


DOCUMENTS = [
    [(5, False), (6, True), (7, True)],
    [(8, True), (9, True)],
    [(10, False)] * 20 + [(11, True)] * 3,
]


def test_the_smallest_bucket_that_fits(tmp_path: Path) -> None:
    store = write(tmp_path / "store", DOCUMENTS, packed=False)
    assert store.labels_per_row.tolist() == [2, 1, 3]
    assert store.batch([0], buckets=[1, 2, 4, 24]).label.shape == (1, 2)
    assert store.batch([0, 2], buckets=[1, 2, 4, 24]).label.shape == (2, 4)
    assert store.batch([1]).label.shape == (1, 3)  # 24 // 8
    assert store.batch([]).label.shape == (0, 3)
    with pytest.raises(ValueError, match="no bucket holds 3"):
        store.batch([2], buckets=[1, 2])


@pytest.mark.parametrize(
    ("seq_len", "buckets"),
    [(1024, (128, 256, 512, 1024)), (24, (3, 6, 12, 24)), (8, (1, 2, 4, 8)), (5, (1, 2, 5))],
)
def test_default_buckets(seq_len: int, buckets: tuple[int, ...]) -> None:
    assert default_buckets(seq_len) == buckets


def test_what_a_store_says_of_itself(tmp_path: Path) -> None:
    store = write(tmp_path / "store", DOCUMENTS, packed=False)
    assert (store.rows, store.documents, store.tokens, store.trained_tokens) == (3, 3, 28, 6)
    assert store.about == ABOUT
    assert store.fill == pytest.approx(28 / 72)
    about = json.loads((tmp_path / "store" / "store.json").read_text("utf-8"))
    assert about["files"] == ["file0.json", "file1.json"]


@pytest.mark.parametrize(
    "name", ["ids.npy", "train.npy", "documents.npy", "rows.npy", "labels.npy", "source.npy", "store.json"]
)
def test_a_store_that_is_cut_short_or_misses_a_file(tmp_path: Path, name: str) -> None:
    write(tmp_path / "store", DOCUMENTS)
    path = tmp_path / "store" / name
    raw = path.read_bytes()
    for damaged in (raw[:-3], raw[: len(raw) // 2], b""):
        path.write_bytes(damaged)
        with pytest.raises(Problem) as caught:
            open_store(tmp_path / "store")
        assert caught.value.code == "data.store_broken"
    path.unlink()
    with pytest.raises(Problem) as caught:
        open_store(tmp_path / "store")
    assert caught.value.code in ("data.store_broken", "io.not_found")


@pytest.mark.parametrize("name", ["documents.npy", "rows.npy", "labels.npy", "ids.npy"])
def test_a_file_of_another_store_is_noticed(tmp_path: Path, name: str) -> None:
    write(tmp_path / "store", DOCUMENTS, packed=False)
    write(tmp_path / "other", [*DOCUMENTS[1:], [(3, True)] * 4], packed=False)
    shutil.copy(tmp_path / "other" / name, tmp_path / "store" / name)
    with pytest.raises(Problem) as caught:
        open_store(tmp_path / "store")
    assert caught.value.code == "data.store_broken"


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ("{}", "data.store_broken"),
        ("[]", "data.store_broken"),
        ("[" * 100_000, "data.store_broken"),
        ('{"format": "something else", "version": 1}', "data.store_foreign"),
        ('{"format": "tengtune store", "version": 99}', "data.store_foreign"),
        ('{"format": "tengtune store", "version": 1}', "data.store_broken"),
    ],
)
def test_a_foreign_store(tmp_path: Path, content: str, code: str) -> None:
    write(tmp_path / "store", DOCUMENTS)
    (tmp_path / "store" / "store.json").write_text(content, "utf-8")
    with pytest.raises(Problem) as caught:
        open_store(tmp_path / "store")
    assert caught.value.code == code


def test_no_store_at_all(tmp_path: Path) -> None:
    with pytest.raises(Problem) as caught:
        open_store(tmp_path / "none")
    assert caught.value.code == "io.not_found"


def test_a_fault_while_writing_leaves_the_old_store(tmp_path: Path) -> None:
    write(tmp_path / "store", DOCUMENTS)
    before = {file.name: file.read_bytes() for file in (tmp_path / "store").iterdir()}
    documents = Documents(
        np.arange(5, dtype=np.int32),
        np.ones(5, np.bool_),
        np.array([0, 5], np.int64),
        np.zeros((1, 2), np.int64),
        ("x",),
    )
    beyond = Plan(np.array([0, 1], np.int64), np.array([0, 2], np.int64))  # there is no document 1
    with pytest.raises(IndexError):
        write_store(tmp_path / "store", documents, beyond, ABOUT)
    assert {file.name: file.read_bytes() for file in (tmp_path / "store").iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
