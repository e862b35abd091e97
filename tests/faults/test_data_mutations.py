"""Damaged data files and odd records: documents or a reason for each record, or a Problem for the file."""

from __future__ import annotations

import gzip
import json
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tests import tiny
from tests.unit.test_data_step import CONFIG

from tengtune.data.fault import Fault
from tengtune.data.judge import Judge
from tengtune.data.read import Outcome, Reader
from tengtune.data.render import Renderer, batches, style_of
from tengtune.models.spec import from_folder
from tengtune.ui.problems import Problem

MESSY = Path(__file__).resolve().parents[1] / "data" / "messy"
HANGS_S = 20
"""Processor seconds after which a case counts as a hang; the slowest takes well under one."""

RECORDS: list[Any] = [
    {"instruction": "a", "input": "b", "output": "c", "system": "s", "history": [["q", "r"]]},
    {
        "messages": [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": [{"type": "text", "text": "a"}]},
        ]
    },
    {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}], "system": "s"},
    {"conversation": [{"human": "q", "assistant": "a"}]},
    {
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
        "messages": [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": None, "tool_calls": [{"name": "f", "arguments": '{"x": 1}'}]},
            {"role": "tool", "content": {"t": 20}},
            {"role": "assistant", "content": "a", "reasoning_content": "r", "train": False},
        ],
    },
    {"instruction": "a", "instances": [{"input": "", "output": "b"}]},
    {"query": "q", "response": "a"},
    {"text": "好" * 20},
]
ODD: list[Any] = [
    None, True, 0, -1.5, float("nan"), float("inf"), 10**400, "", " ", "\ud800", "\x00", "<|im_end|>",
    "x" * 500, [], {}, [[]], [None], {"": ""}, {"role": "user"}, [["a"]], "[1", '{"a": 1}', "\u202e",
]  # fmt: skip
KEYS = [
    "role",
    "from",
    "content",
    "value",
    "messages",
    "tools",
    "train",
    "text",
    "output",
    "",
    "système",
    "用户",
]


def mutated(value: Any, chance: random.Random) -> Any:
    """The value with one of its places changed."""
    places: list[tuple[Any, Any]] = []

    def walk(inner: Any) -> None:
        keys = (
            inner.keys() if isinstance(inner, dict) else range(len(inner)) if isinstance(inner, list) else ()
        )
        for key in keys:
            places.append((inner, key))
            walk(inner[key])

    root = [json.loads(json.dumps(value))]
    walk(root)
    holder, key = chance.choice(places)
    change = chance.randrange(5)
    if change == 0 and isinstance(holder, dict):
        holder[chance.choice(KEYS)] = holder.pop(key)
    elif change == 1:
        del holder[key]
    elif change == 2 and isinstance(holder, list):
        holder.insert(key, holder[key])
    elif change == 3:
        holder[key] = [holder[key]]
    else:
        holder[key] = chance.choice(ODD)
    return root[0] if root else None


def damaged(raw: bytes, other: bytes, chance: random.Random) -> bytes:
    """The bytes of a file with some of them changed, lost, doubled, or another file's among them."""
    for _ in range(chance.choice((1, 1, 2, 5))):
        at, to = sorted((chance.randrange(len(raw) + 1), chance.randrange(len(raw) + 1)))
        to = min(to, at + chance.choice((1, 3, 100)))
        piece = [b"", raw[at:to] * 2, other[:100], bytes(chance.choices(b'{}[]",:\\\n\t\x00\xff\xef 0', k=2))]
        raw = raw[:at] + chance.choice(piece) + raw[to:] if chance.random() < 0.9 else raw[:at]
    return raw


def cases(count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """Names and contents of files."""
    chance = random.Random(seed)
    files = {path.name: path.read_bytes()[:4000] for path in sorted(MESSY.iterdir())}
    files["table.csv"] = 'instruction,output\n你好,"再,见"\n"a\nb",c\n'.encode()
    files["packed.jsonl.gz"] = gzip.compress(b'{"instruction": "a", "output": "b"}\n' * 3, mtime=0)
    files["sixteen.json"] = json.dumps(RECORDS[:2]).encode("utf-16")
    files["plain.txt"] = "第一段\n\n第二段\n".encode()
    names = sorted(files)
    for number in range(count):
        if number % 2:
            name = chance.choice(names)
            yield name, damaged(files[name], files[chance.choice(names)], chance)
            continue
        records = chance.choices(RECORDS, k=3)
        for _ in range(chance.choice((1, 1, 2, 4))):
            records[1] = mutated(records[1], chance)
        as_lines = chance.random() < 0.5
        text = "\n".join(map(json.dumps, records)) if as_lines else json.dumps(records)
        yield ("r.jsonl" if as_lines else "r.json"), text.encode()


@contextmanager
def no_hang(what: bytes) -> Iterator[None]:
    def hung(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"hangs on {what!r}")

    before = signal.signal(signal.SIGVTALRM, hung)
    signal.setitimer(signal.ITIMER_VIRTUAL, HANGS_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@pytest.fixture
def renderer(tmp_path: Path) -> Renderer:
    folder = tiny.tiny_tokenizer(tmp_path / "model")
    (folder / "config.json").write_text(json.dumps(CONFIG), "utf-8")
    style = style_of(folder, from_folder(folder), "assistant", None)
    return Renderer(style, Judge("assistant", style.tokenizer.control, style.template.tools), 96, "split")


def account(reader: Reader, renderer: Renderer) -> None:
    """Every record that was read became documents, or there is a reason why not."""
    told: set[int] = set()
    read: set[int] = set()

    def fault(found: Fault) -> None:
        assert found.reason()
        if found.dropped and found.record is not None:
            told.add(found.record)

    def items() -> Iterator[Outcome | Fault]:
        for item in reader.read():
            if isinstance(item, Outcome):
                read.add(item.record.number)
            yield item

    made: set[int] = set()
    for batch in batches(items(), fault):
        rendered = renderer(batch)
        made |= set(rendered.records.tolist())
        for found in rendered.faults:
            fault(found)
        assert int(rendered.ids.max(initial=0)) < tiny.VOCAB
    assert read <= made | told
    assert not made & told


FOUND: dict[str, bytes] = {
    "mark_inside.json": '[{"instruction": "写", "output": "'.encode() + b'\xff\xfe[\x00"}]',
    "quote_in_header.csv": b'instruction,output,"\xe5\x86"a,b"\n"a\nb",c,d\n',
    "cut.jsonl.gz": gzip.compress(b'{"instruction": "a", "output": "b"}\n' * 3, mtime=0)[:-9],
    "sixteen_inside.json": b'[{"a": "\xe9\x87"' + ("b" * 40).encode("utf-16-le") + b"\x00\xd8c\x00",
    "junk_behind.json.gz": gzip.compress(b'[{"instruction": "a", "output": "b"}]', mtime=0) + b"junk",
    "several_encodings.json": json.dumps(RECORDS, ensure_ascii=False, indent=1).encode() + "好".encode("gbk"),
    "brackets.json": b'[{"a": 1 "b": "}"}, {"c": [}], {"instruction": "{a", "output": "b"}, {"a": "}, {"]',
}
"""Files that once ended in an exception."""


@pytest.mark.parametrize("name", FOUND)
@pytest.mark.parametrize("lenient", [False, True])
def test_what_was_found(name: str, lenient: bool, renderer: Renderer, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(FOUND[name])
    try:
        account(Reader({name: tmp_path / name}, lenient=lenient), renderer)
    except Problem as problem:
        assert problem.code.startswith("data.")


@pytest.mark.parametrize("count", [2000, pytest.param(50_000, marks=pytest.mark.soak)])
def test_a_document_a_reason_or_a_problem(count: int, renderer: Renderer, tmp_path: Path) -> None:
    outcomes = {"problems": 0, "read": 0}
    for name, raw in cases(count, seed=count):
        path = tmp_path / name
        path.write_bytes(raw)
        for lenient in (False, True):
            with no_hang(raw):
                try:
                    account(Reader({name: path}, lenient=lenient), renderer)
                    outcomes["read"] += 1
                except Problem as problem:
                    assert problem.texts()["what"]
                    outcomes["problems"] += 1
                except Exception as error:
                    raise AssertionError(
                        f"{type(error).__name__} on {name}, lenient={lenient}: {raw!r}"
                    ) from error
    assert min(outcomes.values()) > count / 10
