"""Every log excerpt is read as what it is, however it is mangled; no general code is ever the cause."""

from __future__ import annotations

import csv
import random
import re
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.explain_lab import INDEX, NAMES, STEP, WRAPPERS, at, content, diagnosis, found, read

import tengtune
from tengtune.explain import known
from tengtune.explain.cause import diagnose
from tengtune.explain.scan import LONGEST, MARGIN, MOST, PENDING, scan
from tengtune.explain.sieve import Sieve
from tengtune.ui.problems import Problem

ERRORS = known.load()
FACTS = Path(tengtune.__file__).parent / "facts"
OOM = "RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB"


@pytest.mark.parametrize("entry", INDEX, ids=NAMES)
def test_every_excerpt_has_its_cause(entry: dict[str, Any]) -> None:
    told = diagnosis(content(entry))
    assert told.error is not None
    assert told.error.id == entry["expected_id"]
    assert set(entry["wrappers_present"]) <= set(told.wrappers)
    assert not {hit.error.id for hit in (*told.evidence, *told.also) if hit.error} & WRAPPERS
    sentence = content(entry).splitlines()[told.evidence[0].line - 1].decode()
    assert told.evidence[0].text == sentence.strip()[:400]
    if entry.get("expected_subclass"):
        assert told.detail is not None
        cause = {"real": "full"}.get(word := entry["expected_subclass"].split(":")[0], word)
        assert told.detail.data["cause"] == cause


@pytest.mark.parametrize("id", sorted(WRAPPERS))
def test_a_general_code_alone_is_no_cause(id: str) -> None:
    line = f"{id.upper()}: Inner Error!\n".encode()
    told = diagnosis(line)
    assert (told.error, told.wrappers) == (None, [id])
    assert found(line, at("10:00:00", "EI0006: no link")) == "ei0006"


def test_no_known_error_of_the_kind_wrapper_is_ever_chosen() -> None:
    everything = [b" ".join(error.find) + b"\n" for error in ERRORS.values() if error.kind == "wrapper"]
    assert len(everything) >= len(WRAPPERS)
    assert diagnosis(*everything).error is None


MANGLED = {
    "crlf": lambda log: log.replace(b"\n", b"\r\n"),
    "progress bar": lambda log: b"\r".join(b" %d%%|##   |" % i for i in range(100)) + b"\r" + log,
    "coloured lines": lambda log: b"".join(b"\x1b[31m" + line + b"\x1b[0m\n" for line in log.splitlines()),
    "coloured words": lambda log: log.replace(b" ", b"\x1b[0m \x1b[1;33m"),
    "prefixed": lambda log: b"".join(b"[rank3]: " + line + b"\n" for line in log.splitlines()),
    "interleaved": lambda log: b"".join(STEP[24:] + line + b"\n" + STEP[24:] for line in log.splitlines()),
    "gbk before": lambda log: "第 1 步，损失 2.5\n".encode("gb18030") * 50 + log,
    "gbk in line": lambda log: b"".join(
        "信息：".encode("gb18030") + line + b"\n" for line in log.splitlines()
    ),
    "bytes": lambda log: bytes(range(256)) * 8 + b"\n" + log + b"\n" + bytes(range(255, -1, -1)),
    "holes": lambda log: bytes(100_000) + b"\n" + log,
    "late": lambda log: STEP[20:] * 15_000 + log,
    "early": lambda log: log + STEP[20:] * 15_000,
    "no end": lambda log: log.rstrip(b"\n"),
    "one line": lambda log: b"x" * 70_000 + log.replace(b"\n", b" ") + b"y" * 70_000,
}


@pytest.mark.parametrize("how", MANGLED)
def test_mangled_logs_are_read_all_the_same(how: str) -> None:
    wrong = {
        entry["file"]: told
        for entry in INDEX
        if (told := found(MANGLED[how](content(entry)))) != entry["expected_id"]
    }
    assert wrong == {}


@pytest.mark.parametrize("entry", INDEX, ids=NAMES)
def test_it_does_not_matter_where_blocks_end(entry: dict[str, Any]) -> None:
    """The same lines, line numbers and counts, whatever comes at a time."""
    log = STEP * 60 + content(entry) + STEP * 60
    whole = read(log)
    for size in (1, 977, 4096, 5003):
        pieces = (log[i : i + size] for i in range(0, len(log), size))
        assert read(pieces) == whole, size


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_cut_and_shuffled_lines_end_in_an_answer(seed: int) -> None:
    chance = random.Random(seed)
    lines = [line for entry in chance.sample(INDEX, 3) for line in content(entry).splitlines(keepends=True)]
    chance.shuffle(lines)
    mangled = [
        line[: chance.randrange(len(line) + 1)] + chance.choice([b"", b"\n", b"\r", b"\0"]) for line in lines
    ]
    told = diagnosis(b"".join(mangled))
    assert told.error is None or told.error.kind != "wrapper"


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_colours_are_taken_out_wherever_blocks_end(size: int) -> None:
    log = b"\x1b[31mOSError\x1b[0m: No space \x1b[1;4mleft\x1b[0m on \x1b]0;title\x07device\x1b[0m\n" * 3
    reading = read(log[i : i + size] for i in range(0, len(log), size))
    told = [(hit.line, hit.text) for hit in reading.hits if hit.error]
    assert told == [(line, "OSError: No space left on device") for line in (1, 2, 3)]
    assert (reading.lines, reading.bytes) == (3, len(log))


# One entry in one place


def test_every_error_of_the_facts_has_both_languages_and_a_source() -> None:
    table = yaml.safe_load((FACTS / "errors.yaml").read_text("utf-8"))
    for id, entry in table.items():
        assert entry["source"], id
        for part in ("means", "fix"):
            assert re.search(r"[\u4e00-\u9fff]", entry["zh"][part]), id
            assert not re.search(r"[\u4e00-\u9fff]", entry["en"][part]), id
        assert set(entry.get("over", [])) <= set(table), id


def test_the_pages_say_how_many_errors_there_are() -> None:
    """All but the one that is our own."""
    others = len(ERRORS) - len([id for id in ERRORS if id.startswith("health_")]) - 1
    for page, form in (
        *(("README.md", "{} errors, 250"), ("README.zh.md", "{} 个错误、250")),
        *(("docs/en/explain.md", "known are {} errors"), ("docs/zh/explain.md", "{} 个错误，来自")),
    ):
        assert form.format(others) in (FACTS.parents[2] / page).read_text("utf-8"), (page, others)


def test_every_error_is_found_by_its_own_text() -> None:
    """In the middle of a line, at any distance from the line's begin."""
    forms = {
        "set_env_var": "ASCEND_OPP_PATH environment variable is not set",
        "glibcxx": "`GLIBCXX_3.4.29' not found",
    }
    forms |= {"ms_mindrecord_lock": "open x.mindrecord.db failed", "ms_getnext": "GetNext timeout"}
    forms |= {
        "visible_devices": "set ASCEND_RT_VISIBLE_DEVICES:9 error",
        "lost_hb_text": "Device[0] lost heartbeat",
    }
    forms |= {
        "rendezvous": "1/2 clients joined",
        "store_gone": "store->get('0') got error: Connection reset by peer",
        "sigkill": "run.sh: line 3: 4711 Killed  python",
        "sighup": "SignalException: Process 4711 got signal: 1",
        "sigterm": "SignalException: Process 4711 got signal: 15",
        "lib_missing": "ImportError: libx.so: cannot open shared object file",
        "torch_abi": "torch_npu/_C.so: undefined symbol: _ZN3c105Error",
        "cann_symbol": "undefined symbol: aclrtMalloc",
        "no_npu_kernel": "Could not run 'aten::x' with arguments from the 'PrivateUse1' backend",
        "glibc": "version `GLIBC_2.34' not found",
    }
    forms |= {
        "hf_tokenizer_class": "Tokenizer class A does not exist or is not currently imported",
        "hccl_7": "HcclGetRootInfo(&id), error code is 7",
        "hccl_9": "HcclGetRootInfo(&id), error code is 9",
        "hccl_11": "HcclGetRootInfo(&id), error code is 11",
        "hccl_rank_table": "HcclCommInitRankTable failed",
        "ms_oom": "Malloc for kernel output failed",
        "ms_version_mismatch": "the version of software package expect one of, does not match",
    }
    forms |= {
        "no_module": "ModuleNotFoundError: No module named 'datasets'",
        "cann_package": "No module named 'decorator'",
        "launcher_missing": "bash: torchrun: command not found",
        "hub_missing": "modelscope.hub.errors.NotExistError: x",
        "net_timeout": "requests.exceptions.ConnectTimeout: x",
        "peft_targets": "Target modules ['c_attn'] not found in the base model.",
        "hf_removed_name": "cannot import name 'SampleOutput' from 'transformers.generation.utils'",
        "fp16_no_card": "(`--fp16_full_eval`) can only be used on CUDA devices.",
        "npu_denied": "PermissionError: [Errno 13] Permission denied: '/dev/davinci0'",
    }
    forms |= {"hal_missing_build": 'RUN python -c "import torch_npu"'}
    forms |= {
        id: f"fault code {id[7:]}".replace("code ", "code 0x") for id in ERRORS if id.startswith("health_")
    }
    for error in ERRORS.values():
        text = forms.get(error.id, error.find[0].decode())
        text = f"error code is {text.strip()}" if error.id.startswith("acl_") else text
        for lead in range(4):
            hits = read(b"-" * lead + b" " + text.encode() + b"\n").hits
            assert error in [hit.error for hit in hits], (error.id, lead)


def test_a_new_error_is_one_entry(tmp_path: Path) -> None:
    entry = {
        "kind": "root",
        "find": ["flux capacitor drained"],
        "regex": r"at \d+ mph",
        "over": ["oom"],
        "en": {"means": "No flux.", "fix": "Fill it."},
        "zh": {"means": "没有通量。", "fix": "补充。"},
    }
    own = tmp_path / "own.yaml"
    own.write_text(yaml.safe_dump({"flux": entry}), "utf-8")
    log = f"{OOM}\n the flux capacitor drained at 88 mph\n".encode()
    for errors, expected in ((ERRORS, "oom"), (known.load([own]), "flux")):
        told = diagnose(scan([log], errors, "x").hits)
        assert told.error is not None
        assert told.error.id == expected


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "cause"},
        {"find": []},
        {"find": ["four"]},
        {"find": "a text"},
        {"find": ["two\nlines"]},
        {"regex": "("},
        {"over": "oom"},
        {"detail": "magic"},
        {"zh": {"means": "x"}},
        {"more": 1},
    ],
    ids=str,
)
def test_an_entry_that_is_none_is_told(tmp_path: Path, change: dict[str, Any]) -> None:
    texts = {"means": "x", "fix": "x"}
    own = tmp_path / "own.yaml"
    own.write_text(
        yaml.safe_dump({"mine": {"kind": "root", "find": ["a text"], "en": texts, "zh": texts} | change})
    )
    with pytest.raises(Problem) as caught:
        known.load([own])
    assert (caught.value.code, caught.value.where) == ("explain.bad_facts", f"{own}: mine")


@pytest.mark.parametrize("text", ["a: [", "- 1", "", "\x00", "a: &a [*a]"])
def test_a_file_of_errors_that_is_none_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "own.yaml").write_text(text)
    with pytest.raises(Problem) as caught:
        known.load([tmp_path / "own.yaml"])
    assert caught.value.code == "explain.bad_facts"


def test_health_codes_are_errors_with_the_causes_of_the_table() -> None:
    rows = list(csv.DictReader((FACTS / "npu_health_codes.csv").read_text("utf-8").splitlines()))
    assert len(rows) == 250
    row = next(row for row in rows if row["code"] == "0x80E18402")
    for form in ("0x80E18402", "0x80e18402"):
        told = diagnosis(f"device 3 reports {form}, see the guide\n".encode())
        assert told.error is not None
        assert row["cause_en"] in told.error.texts["en"]["means"]
        assert row["cause_zh"] in told.error.texts["zh"]["means"]
    assert found(b"address 0x80E184020000 of a tensor\n") is None
    assert found(b"flags = 0x00000003\n") is None
    assert found(b"fault event, code 0x00000003\n") == "health_00000003"


# The sieve


@settings(max_examples=200, deadline=None)
@given(
    texts=st.lists(st.binary(min_size=5, max_size=12), min_size=1, max_size=6, unique=True),
    noise=st.binary(max_size=40),
    start=st.integers(0, 9),
    cut=st.integers(0, 99),
)
def test_the_sieve_misses_nothing(texts: list[bytes], noise: bytes, start: int, cut: int) -> None:
    sieve = Sieve([(text, text) for text in texts])
    data = b"#" * start + noise + b"".join(text + noise for text in texts) + texts[0]
    middle = start + cut % (len(data) - start)
    parts = [*sieve.places(data, start, middle), *sieve.places(data, middle, len(data))]
    assert {owner for _, maybe in parts for _, owner in maybe} == set(texts)
    assert parts == list(sieve.places(data, start, len(data)))


# Floods


def test_what_is_repeated_for_ever_does_not_hide_the_rest() -> None:
    flood = at("10:00:00", "EI9999 call trace") * 20_000  # more than a block
    reading = read(flood[i : i + (1 << 20)] for i in range(0, len(flood), 1 << 20))
    assert MOST <= len([hit for hit in reading.hits if hit.error]) < 20 * MOST
    assert reading.lines == 20_000
    pieces = [flood, at("10:30:00", OOM), flood, at("10:31:00", "EI9999 the end")]
    told = diagnosis(b"".join(pieces))
    assert told.error is not None
    assert (told.error.id, told.evidence[0].line) == ("oom", 20_001)


def test_a_text_across_two_pieces_of_an_endless_line_is_found() -> None:
    text = b"No space left on device"
    for cut in range(len(text) + 1):
        for lead in (PENDING + 2000, PENDING + 2001):
            log = b"x" * lead + text + b"x" * 9000
            stop = lead + cut + MARGIN  # the first piece ends within the text
            hits = read([log[:stop], log[stop:]]).hits
            assert [hit.error.id for hit in hits if hit.error] == ["disk"], (cut, lead)


class Counting:
    """In place of a regular expression: matches nothing, and counts."""

    def __init__(self) -> None:
        self.searches = 0

    def search(self, line: bytes) -> None:
        self.searches += 1
        assert len(line) <= 2 * LONGEST


def test_a_line_without_an_end_is_searched_once_a_piece() -> None:
    regex = Counting()
    texts = {"means": "x", "fix": "x"}
    error = known.Error("x", "root", (b"507035",), cast(Any, regex), (), None, {"en": texts, "zh": texts}, "")
    line = b"507035 " * 300_000
    blocks = (line[i : i + (1 << 20)] for i in range(0, len(line), 1 << 20))
    assert scan(blocks, {"x": error}, "x.log").hits == []
    assert 100 < regex.searches <= len(line) / LONGEST + 10


def test_the_end_is_looked_at_however_often_it_came() -> None:
    """An error of an earlier failure, repeated beyond what is kept, and then the last one."""
    log = at("2026-01-10-10:00:00", "No space left on device") * 20_000 + at(
        "2026-01-12-10:00:00", "No space left on device"
    )
    told = diagnosis(log)
    assert told.evidence[0].line == 20_001
    assert [hit.error.id for hit in told.earlier if hit.error] == ["disk"]
