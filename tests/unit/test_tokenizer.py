"""Tokenizers: what is typed stays text, what is decoded is what was encoded, and bad folders are Problems."""

from __future__ import annotations

import json
import shutil
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import tiny
from tests.fetch import tokenizer_folder

from tengtune.models.spec import Family, ModelSpec, from_config
from tengtune.text.tokenizer import Tokenizer, open_tokenizer, text_files
from tengtune.text.tokenizer_tiktoken import LONGEST_BLANKS, SEPARATOR
from tengtune.ui.problems import Problem

CONTROL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<tool_call>", "<think>", "</think>", "<|extra_0|>"]
TEXT = st.lists(st.one_of(st.text(max_size=12), st.sampled_from(CONTROL)), max_size=8).map("".join)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    own = tiny.tiny_tokenizer(tmp_path_factory.mktemp("tiny"))
    return {"tiny": own, "qwen1": tokenizer_folder("qwen1"), "qwen3": tokenizer_folder("qwen3")}


@pytest.fixture(scope="module")
def opened(folders: dict[str, Path]) -> dict[str, Tokenizer]:
    return {name: open_tokenizer(folder) for name, folder in folders.items()}


EACH = pytest.mark.parametrize("name", ["tiny", "qwen1", "qwen3"])


@EACH
@given(text=TEXT)
@settings(max_examples=150, deadline=None)
def test_plain_text_never_gives_a_control_id_and_comes_back(
    opened: dict[str, Tokenizer], name: str, text: str
) -> None:
    tokenizer = opened[name]
    ids = tokenizer.encode(text)
    assert not set(ids) & set(tokenizer.control.values())
    assert tokenizer.decode(ids) == unicodedata.normalize("NFC", text)


@EACH
@given(texts=st.lists(TEXT, max_size=5))
@settings(max_examples=40, deadline=None)
def test_a_batch_is_its_texts_one_by_one(opened: dict[str, Tokenizer], name: str, texts: list[str]) -> None:
    tokenizer = opened[name]
    assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]
    assert tokenizer.encode_batch(texts, control=True) == [tokenizer.encode_control(text) for text in texts]


JOINED = st.lists(
    st.one_of(
        TEXT, st.sampled_from(["", "  ", "\n", "\u0338x", "e", "\u0301", SEPARATOR, SEPARATOR[:-1], "\ud83d"])
    ),
    max_size=8,
)
"""Texts that would be changed by what stands beside them, if it could."""


@EACH
@given(texts=JOINED, control=st.booleans())
@settings(max_examples=120, deadline=None)
def test_texts_encoded_in_one_call_do_not_touch_each_other(
    opened: dict[str, Tokenizer], name: str, texts: list[str], control: bool
) -> None:
    tokenizer = opened[name]
    ids, sizes = tokenizer.encode_flat(texts, control)
    assert (ids.dtype, sizes.dtype) == (np.int32, np.int64)
    encode = tokenizer.encode_control if control else tokenizer.encode
    alone = [encode(text) for text in texts]
    assert sizes.tolist() == list(map(len, alone))
    assert ids.tolist() == [number for each in alone for number in each]


@EACH
@given(text=TEXT)
@settings(max_examples=80, deadline=None)
def test_a_stream_gives_whole_characters_only(opened: dict[str, Tokenizer], name: str, text: str) -> None:
    tokenizer = opened[name]
    stream = tokenizer.decode_stream()
    parts = [stream.put(number) for number in tokenizer.encode(text)]
    assert all("\ufffd" not in part for part in parts) or "\ufffd" in text
    assert "".join(parts) == unicodedata.normalize("NFC", text)
    assert stream.end() == ""


def test_a_stream_that_ends_inside_a_character_says_so(opened: dict[str, Tokenizer]) -> None:
    tokenizer = opened["tiny"]
    ids = tokenizer.encode("龘")  # not in the tiny corpus: three bytes, three tokens
    assert len(ids) == 3
    stream = tokenizer.decode_stream()
    assert [stream.put(number) for number in ids[:2]] == ["", ""]
    assert stream.end() == "\ufffd"


def test_control_text_is_parsed_on_request_only(opened: dict[str, Tokenizer]) -> None:
    qwen1, qwen3, own = opened["qwen1"], opened["qwen3"], opened["tiny"]
    assert qwen1.encode_control("<|im_start|><|endoftext|><|extra_204|>") == [151644, 151643, 151850]
    assert qwen1.encode_control("<|extra_205|>") == qwen1.encode("<|extra_205|>")  # there is no such token
    assert qwen3.encode_control("<think><tool_call>") == [151667, 151657]
    assert own.encode_control("<|im_end|><think>") == [tiny.IM_END, tiny.THINK]
    # as measured on the library with encode_special_tokens
    assert qwen1.encode("<|im_end|>") == qwen3.encode("<|im_end|>") == [27, 91, 318, 6213, 91, 29]


@pytest.mark.parametrize(
    ("name", "ids", "size"),
    [
        ("qwen1", (151644, 151645, 151643), 151851),
        ("qwen3", (151644, 151645, 151643), 151669),
        ("tiny", (tiny.IM_START, tiny.IM_END, tiny.ENDOFTEXT), tiny.VOCAB),
    ],
)
def test_control_ids(opened: dict[str, Tokenizer], name: str, ids: tuple[int, int, int], size: int) -> None:
    tokenizer = opened[name]
    assert (tokenizer.im_start, tokenizer.im_end, tokenizer.endoftext) == ids
    assert tokenizer.stop_ids == {ids[1], ids[2]}
    assert tokenizer.newline_ids == (198,)
    assert tokenizer.vocab_size == size
    assert tokenizer.id("<|im_end|>") == ids[1]
    assert tokenizer.id("no such token, surely") is None
    assert tokenizer.decode([size + 5]) == ""  # an unused row of the embedding


def test_ids_of_ordinary_tokens(opened: dict[str, Tokenizer]) -> None:
    known = {"user": 872, "assistant": 77091, "system": 8948, "\n": 198}
    for name in ("qwen1", "qwen3"):
        assert {text: opened[name].id(text) for text in known} == known


def test_the_fingerprint_is_the_files_sha256(opened: dict[str, Tokenizer]) -> None:
    known = "b2b1b8dfb5cc5f024bafc373121c6aba3f66f9a5a0269e243470a1de16a33186"
    assert opened["qwen1"].fingerprint == known


@EACH
def test_a_lone_surrogate_becomes_a_replacement_character(opened: dict[str, Tokenizer], name: str) -> None:
    tokenizer = opened[name]
    assert tokenizer.decode(tokenizer.encode("a\ud83db")) == "a\ufffdb"


def test_a_long_run_of_blanks_does_not_bring_the_library_down(opened: dict[str, Tokenizer]) -> None:
    text = "a" + " " * (10 * LONGEST_BLANKS) + "b"
    assert opened["qwen1"].decode(opened["qwen1"].encode(text)) == text


def test_fits(opened: dict[str, Tokenizer]) -> None:
    spec = spec_of("qwen2", tiny.VOCAB)
    opened["tiny"].fits(spec)
    with pytest.raises(Problem) as caught:
        opened["tiny"].fits(replace(spec, vocab=tiny.VOCAB - 1))
    assert caught.value.code == "tokenizer.too_large"
    assert "383" in str(caught.value)


def spec_of(family: Family, vocab: int = 151936) -> ModelSpec:
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "hidden_size": 8,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "intermediate_size": 8,
        "vocab_size": vocab,
    }
    return replace(from_config(config), family=family)


def test_a_vocabulary_of_another_generation_is_refused(opened: dict[str, Tokenizer], tmp_path: Path) -> None:
    """Id 151646 is `<|extra_0|>` in Qwen1 and `<|object_ref_start|>` from Qwen2 on."""
    opened["qwen1"].fits(spec_of("qwen1"))
    opened["qwen3"].fits(spec_of("qwen2"))
    opened["qwen3"].fits(spec_of("qwen3"))
    wrong: list[tuple[str, Family]] = [("qwen1", "qwen2"), ("qwen1", "qwen3"), ("qwen3", "qwen1")]
    for name, family in wrong:
        with pytest.raises(Problem) as caught:
            opened[name].fits(spec_of(family))
        assert (caught.value.code, caught.value.exit_code) == ("tokenizer.other_generation", 2)
    # A vocabulary that is no Qwen's contradicts nothing.
    for family in get_args(Family):
        opened["tiny"].fits(spec_of(family))


def test_vocab_and_merges_are_the_same_tokenizer(opened: dict[str, Tokenizer], tmp_path: Path) -> None:
    folder = tokenizer_folder("qwen3_parts")  # its merges.txt has CRLF line ends
    assert b"\r\n" in (folder / "merges.txt").read_bytes()
    parts, whole = open_tokenizer(folder), opened["qwen3"]
    assert parts.control == whole.control
    assert parts.vocab_size == whole.vocab_size
    texts = ["e\u0301 你好 1234  x\r\n\r\n don't <think> \U0001f44d\U0001f3fd", "<|im_end|></tool_call>"]
    for text in texts:
        assert parts.encode(text) == whole.encode(text)
        assert parts.encode_control(text) == whole.encode_control(text)
        assert parts.decode(parts.encode(text)) == whole.decode(whole.encode(text))
    assert {file.name for file in text_files(folder)} == {"vocab.json", "merges.txt", "tokenizer_config.json"}


def write_parts(folder: Path, merges: bytes | None = b"", config: str = "{}") -> Path:
    """A folder with a vocabulary of 258 tokens and no control tokens."""
    characters = ["a", "b", *(chr(0x100 + i) for i in range(256))]
    (folder / "vocab.json").write_text(json.dumps({text: i for i, text in enumerate(characters)}), "utf-8")
    (folder / "tokenizer_config.json").write_text(config, "utf-8")
    if merges is not None:
        (folder / "merges.txt").write_bytes(merges)
    return folder


def test_where_the_control_tokens_of_vocab_and_merges_come_from(tmp_path: Path) -> None:
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(tokenizer_folder("qwen3_parts") / name, tmp_path)
    own = open_tokenizer(tmp_path)  # Qwen's 151,643 tokens and no word of others
    assert own.control == {"<|endoftext|>": 151643, "<|im_start|>": 151644, "<|im_end|>": 151645}
    added = {"<|im_start|>": 258, "<|im_end|>": 259, "<tool_call>": 260}
    (write_parts(tmp_path) / "added_tokens.json").write_text(json.dumps(added))
    tokenizer = open_tokenizer(tmp_path)
    assert tokenizer.control == added
    assert tokenizer.encode_control("<tool_call>") == [260]
    (tmp_path / "added_tokens.json").write_text(json.dumps({**added, "<think>": 261}))
    assert open_tokenizer(tmp_path).fingerprint != tokenizer.fingerprint


@pytest.mark.parametrize(
    ("merges", "config", "code"),
    [
        (None, "{}", "tokenizer.no_merges"),
        (b"\xff\xfe", "{}", "tokenizer.broken"),
        (b"a b c\n", "{}", "tokenizer.broken"),
        (b"a zz\n", "{}", "tokenizer.broken"),
        (b"", '{"added_tokens_decoder": {"x": {"content": "<|im_end|>"}}}', "tokenizer.broken"),
        (b"", '{"added_tokens_decoder": [1]}', "tokenizer.broken"),
        (b"", "{}", "tokenizer.no_chatml"),
        (b"", "{", "tokenizer.broken"),
    ],
)
def test_vocab_and_merges_that_will_not_do(
    merges: bytes | None, config: str, code: str, tmp_path: Path
) -> None:
    write_parts(tmp_path, merges, config)
    with pytest.raises(Problem) as caught:
        open_tokenizer(tmp_path)
    assert (caught.value.code, caught.value.exit_code) == (code, 2)


def edited(change: Callable[[dict[str, Any]], None], folder: Path) -> Path:
    """The tiny tokenizer with its JSON changed."""
    path = tiny.tiny_tokenizer(folder) / "tokenizer.json"
    document = json.loads(path.read_text("utf-8"))
    change(document)
    path.write_text(json.dumps(document), "utf-8")
    return folder


def _without_im_end(document: dict[str, Any]) -> None:
    document["added_tokens"] = [t for t in document["added_tokens"] if t["id"] < tiny.IM_END]


def _unigram(document: dict[str, Any]) -> None:
    document["model"] = {"type": "Unigram", "vocab": {"a": 0}}


def _text_id(document: dict[str, Any]) -> None:
    document["added_tokens"][0]["id"] = "1"


def _gap_in_ids(document: dict[str, Any]) -> None:
    document["added_tokens"][-1]["id"] += 7


def _no_model(document: dict[str, Any]) -> None:
    del document["model"]


def _bad_merge(document: dict[str, Any]) -> None:
    document["model"]["merges"] = [["no", "such"]]


def _spells_im_end(document: dict[str, Any]) -> None:
    """Merges that build `<|im_end|>` out of plain text: typed text would close a turn."""
    vocab, merges = document["model"]["vocab"], document["model"]["merges"]
    document["pre_tokenizer"]["pretokenizers"].pop(0)  # nothing splits the text any more
    made = "<"
    for character in "|im_end|>":
        merges.append([made, character])
        made += character
        vocab.setdefault(made, tiny.IM_END if made == "<|im_end|>" else 1000 + len(made))


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (_without_im_end, "tokenizer.no_chatml"),
        (_unigram, "tokenizer.not_byte_level"),
        (_text_id, "tokenizer.broken"),
        (_gap_in_ids, "tokenizer.broken"),
        (_no_model, "tokenizer.broken"),
        (_bad_merge, "tokenizer.broken"),
        (_spells_im_end, "tokenizer.broken"),
    ],
)
def test_a_tokenizer_json_that_will_not_do(
    change: Callable[[dict[str, Any]], None], code: str, tmp_path: Path
) -> None:
    with pytest.raises(Problem) as caught:
        open_tokenizer(edited(change, tmp_path))
    assert caught.value.code == code
    assert caught.value.exit_code == 2


def test_padding_and_truncation_in_the_file_do_not_act(tmp_path: Path) -> None:
    path = tiny.tiny_tokenizer(tmp_path) / "tokenizer.json"
    before = open_tokenizer(tmp_path).encode("a longer text than three tokens")
    library = tokenizers.Tokenizer.from_file(str(path))
    library.enable_truncation(3)
    library.enable_padding(length=64)
    library.save(str(path))
    assert open_tokenizer(tmp_path).encode("a longer text than three tokens") == before
    assert len(open_tokenizer(tmp_path).encode_control("a longer text")) < 64


def test_an_added_word_stays_a_word(tmp_path: Path) -> None:
    path = tiny.tiny_tokenizer(tmp_path) / "tokenizer.json"
    library = tokenizers.Tokenizer.from_file(str(path))
    library.add_tokens(["昇腾"])
    library.save(str(path))
    tokenizer = open_tokenizer(tmp_path)
    assert tokenizer.encode("昇腾") == [tiny.VOCAB]
    assert tokenizer.decode([tiny.VOCAB]) == "昇腾"
    assert "昇腾" not in tokenizer.control


def test_control_tokens_may_stand_in_the_vocabulary_itself(tmp_path: Path) -> None:
    """As in SmolLM2's file, where they have the lowest ids."""

    def inside(document: dict[str, Any]) -> None:
        vocab = document["model"]["vocab"]
        vocab.update({token["content"]: token["id"] for token in document["added_tokens"]})

    tokenizer = open_tokenizer(edited(inside, tmp_path))
    assert tokenizer.encode_control("<|im_end|>") == [tiny.IM_END]
    assert tokenizer.decode(tokenizer.encode("<|im_end|>")) == "<|im_end|>"
    assert tiny.IM_END not in tokenizer.encode("<|im_end|>")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"model": 3}'])
def test_a_damaged_tokenizer_json(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(Problem) as caught:
        open_tokenizer(tmp_path)
    assert caught.value.code == "tokenizer.broken"
    assert str(tmp_path / "tokenizer.json") in str(caught.value.where)


def test_a_damaged_tiktoken_file_names_the_line(folders: dict[str, Path], tmp_path: Path) -> None:
    lines = (folders["qwen1"] / "qwen.tiktoken").read_bytes().splitlines(keepends=True)
    path = tmp_path / "qwen.tiktoken"
    path.write_bytes(b"".join([*lines[:5], b"not base64!\n", *lines[6:]]))
    with pytest.raises(Problem) as caught:
        open_tokenizer(tmp_path)
    assert (caught.value.code, caught.value.where) == ("tokenizer.broken", f"{path}:6")
    path.write_bytes(b"".join(lines[:1000] + lines[1001:]))
    with pytest.raises(Problem) as caught:
        open_tokenizer(tmp_path)
    assert caught.value.code == "tokenizer.broken"


def test_carriage_returns_in_a_tiktoken_file_do_no_harm(folders: dict[str, Path], tmp_path: Path) -> None:
    raw = (folders["qwen1"] / "qwen.tiktoken").read_bytes()
    (tmp_path / "qwen.tiktoken").write_bytes(raw.replace(b"\n", b"\r\n"))
    assert open_tokenizer(tmp_path).encode("Eat well.") == [88611, 1632, 13]


def test_a_folder_without_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(Problem) as caught:
        open_tokenizer(tmp_path)
    assert caught.value.code == "tokenizer.missing"
