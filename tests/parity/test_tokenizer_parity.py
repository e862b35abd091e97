"""Our tokenizers against each other and against the libraries they stand on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fetch import tokenizer_folder
from tests.shared import shared_path

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
