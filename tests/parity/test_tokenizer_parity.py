"""Our tokenizers against each other and against the libraries they stand on."""

from __future__ import annotations

import base64
import json
import random
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiktoken
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fetch import tokenizer_folder
from tests.shared import SHARED, shared_path

from tengtune.text.tokenizer import Tokenizer, open_tokenizer

MESSY = Path(__file__).resolve().parents[1] / "data" / "messy"


@pytest.fixture(scope="module")
def qwen1() -> Tokenizer:
    return open_tokenizer(tokenizer_folder("qwen1"))


@pytest.fixture(scope="module")
def qwen3() -> Tokenizer:
    return open_tokenizer(tokenizer_folder("qwen3"))


@pytest.fixture(scope="module")
def library() -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(tokenizer_folder("qwen3") / "tokenizer.json"))


@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs", "Cn"]), max_size=60))
@settings(max_examples=300, deadline=None)
def test_the_first_and_third_generation_share_their_vocabulary(
    qwen1: Tokenizer, qwen3: Tokenizer, text: str
) -> None:
    assert qwen1.encode(text) == qwen3.encode(text)


@pytest.mark.parametrize("name", ["lf_alpaca_zh_demo.json", "lf_alpaca_en_demo.json"])
def test_public_instructions_come_out_alike(qwen1: Tokenizer, qwen3: Tokenizer, name: str) -> None:
    records = json.loads(shared_path(f"data/instruct/{name}").read_text("utf-8"))[:300]
    texts = [record[key] for record in records for key in ("instruction", "input", "output")]
    assert qwen1.encode_batch(texts) == qwen3.encode_batch(texts)


@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="<>"), max_size=60))
@settings(max_examples=100, deadline=None)
def test_text_without_markup_is_what_the_library_makes_of_it(
    qwen3: Tokenizer, library: tokenizers.Tokenizer, text: str
) -> None:
    whole = library.encode(text, add_special_tokens=False).ids
    assert qwen3.encode(text) == whole == qwen3.encode_control(text)


MILLION = 1_000_000
BLOCKS = [
    *((0x20, 0x7F), (0x4E00, 0x9FFF), (0x3040, 0x30FF), (0xAC00, 0xD7A3), (0x400, 0x4FF), (0x600, 0x6FF)),
    *(
        (0x900, 0x97F),
        (0xE00, 0xE7F),
        (0x300, 0x36F),
        (0x1F300, 0x1FAFF),
        (0x2000, 0x206F),
        (0x20000, 0x2A6DF),
    ),
]
SPECIAL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|extra_7|>",
    "<tool_call>",
    "</think>",
    "<|object_ref_start|>",
]


def public_texts() -> Iterator[str]:
    """Every text of the shared instruction files, in records of any shape; none where they are absent."""
    for path in sorted((SHARED / "data" / "instruct").glob("*.json*")):
        raw = path.read_text("utf-8")
        records = (
            [json.loads(line) for line in raw.splitlines() if line]
            if path.suffix == ".jsonl"
            else json.loads(raw)
        )
        yield from strings(records)


def strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from strings(each)


def random_texts(chance: random.Random) -> Iterator[str]:
    """Runs out of several scripts, any code point, blanks and line ends, marks that combine, control-token
    text; without end."""
    while True:
        parts = []
        for _ in range(chance.randrange(1, 12)):
            kind = chance.randrange(8)
            if kind == 0:
                parts.append(chance.choice(SPECIAL))
            elif kind == 1:
                parts.append("".join(chance.choices(" \t\n\r\u3000\xa0", k=chance.randrange(1, 9))))
            elif kind == 2:
                points = (chance.randrange(0x110000) for _ in range(chance.randrange(1, 20)))
                parts.append("".join(chr(p) for p in points if not 0xD800 <= p < 0xE000))
            else:
                low, high = chance.choice(BLOCKS)
                parts.append(
                    "".join(chr(chance.randrange(low, high)) for _ in range(chance.randrange(1, 30)))
                )
        yield "".join(parts)


@pytest.mark.slow
def test_a_million_tokens_are_the_libraries_own(
    qwen1: Tokenizer, qwen3: Tokenizer, library: tokenizers.Tokenizer
) -> None:
    """Plain: tiktoken's encode_ordinary, and the tokenizers library without any added token. Control tokens:
    both libraries with all of theirs."""
    document = json.loads((tokenizer_folder("qwen3") / "tokenizer.json").read_text("utf-8"))
    pattern = document["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]
    bare = tokenizers.Tokenizer.from_str(json.dumps({**document, "added_tokens": []}))
    lines = (tokenizer_folder("qwen1") / "qwen.tiktoken").read_bytes().splitlines()
    ranks = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, lines)}
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{i}|>" for i in range(205))]
    special = {name: 151643 + i for i, name in enumerate(names)}
    theirs = tiktoken.Encoding("oracle", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
    generated = random_texts(random.Random(0))
    texts = list(public_texts())
    tokens = 0
    while texts or tokens < MILLION:
        batch, texts = texts[:2000], texts[2000:]
        batch = batch or [next(generated) for _ in range(2000)]
        normal = [unicodedata.normalize("NFC", text) for text in batch]
        plain = [theirs.encode_ordinary(text) for text in normal]
        assert qwen3.encode_batch(batch) == plain
        assert [e.ids for e in bare.encode_batch_fast(batch, add_special_tokens=False)] == plain
        flat, sizes = qwen1.encode_flat(batch)
        assert (flat.tolist(), sizes.tolist()) == ([i for ids in plain for i in ids], list(map(len, plain)))
        parsed = [theirs.encode(text, allowed_special="all") for text in normal]
        assert qwen1.encode_batch(batch, control=True) == parsed
        parsed = [e.ids for e in library.encode_batch_fast(batch, add_special_tokens=False)]
        assert qwen3.encode_batch(batch, control=True) == parsed
        tokens += sum(map(len, plain))


def test_every_control_token(qwen1: Tokenizer, qwen3: Tokenizer, library: tokenizers.Tokenizer) -> None:
    listed = {token.content: number for number, token in library.get_added_tokens_decoder().items()}
    assert qwen3.control == listed
    assert len(listed) == 26
    for tokenizer in (qwen1, qwen3):
        for text, number in tokenizer.control.items():
            assert tokenizer.encode_control(f"a{text}b") == [
                *tokenizer.encode("a"),
                number,
                *tokenizer.encode("b"),
            ]
            assert number not in tokenizer.encode(text)
            assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("text", ["\ud83d", "a\udc00b", "\ud83d\ude00", "\ude01\ud83dx"])
def test_surrogates(qwen1: Tokenizer, qwen3: Tokenizer, library: tokenizers.Tokenizer, text: str) -> None:
    """A pair is the character it stands for, a lone one U+FFFD; the library itself raises TypeError."""
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert qwen1.encode(text) == qwen3.encode(text) == library.encode(whole, add_special_tokens=False).ids
