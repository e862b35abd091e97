"""Every text exists in Chinese and English, with the same placeholders; every code that is used exists."""

from __future__ import annotations

import io
import queue
import re
import string
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import tengtune
from tengtune.hub.meter import meter
from tengtune.ui import language, lists, progress
from tengtune.ui.console import Console
from tengtune.ui.problems import Problem, screen

SOURCE = Path(tengtune.__file__).parent
AREAS = sorted(p.stem for p in (SOURCE / "ui" / "messages").glob("*.yaml"))
CODE = re.compile(r"""(?:Problem|say|warn|lookup|Fault)\(\s*["']([a-z_]+\.[a-z0-9_]+)["']""")


def entries() -> Iterator[tuple[str, dict[str, object]]]:
    for area in AREAS:
        yield from language.area_messages(area).items()


def parts(entry: object) -> dict[str, str]:
    return entry if isinstance(entry, dict) else {"text": str(entry)}


def placeholders(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


def test_every_entry_has_both_languages_alike() -> None:
    for code, entry in entries():
        assert set(entry) == {"en", "zh"}, code
        en, zh = parts(entry["en"]), parts(entry["zh"])
        assert set(en) == set(zh), code
        assert placeholders(" ".join(en.values())) == placeholders(" ".join(zh.values())), code
        if en != zh:  # alike: a key of the run file, a unit
            assert re.search(r"[\u4e00-\u9fff\uff00-\uffef]", "".join(zh.values())), code
            assert not re.search(r"[\u4e00-\u9fff\uff00-\uffef]", "".join(en.values())), code


CODED = re.compile(r"`[^`]*`|\{[^{}]*\}")
BESIDE = r"[\u4e00-\u9fff“”]"
MIXED = re.compile(rf"{BESIDE}[,;:!?()]|[,;:!?()]{BESIDE}")


def test_chinese_texts_have_chinese_punctuation() -> None:
    """Half-width marks stand where no Chinese is beside them: in code, which is quoted, and between names."""
    found = {
        f"{code}.{part}": mark[0]
        for code, entry in entries()
        for part, text in parts(entry["zh"]).items()
        if (mark := MIXED.search(CODED.sub("x", text)))
    }
    assert found == {}


def test_texts_are_not_joined_by_half_width_punctuation_in_the_source() -> None:
    """f"{say(...)}: {say(...)}" would put a half-width colon between Chinese words."""
    joined = re.compile(r"""say\([^{}()]*\)\}\s?[:;(]|[:;,(]\s?\{(?:language\.)?say\(""")
    found = {
        f"{path.name}: {line.strip()}"
        for path in SOURCE.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if joined.search(line)
    }
    assert found == set()


def test_no_blank_follows_a_chinese_mark() -> None:
    """A full-width mark brings its own blank; in texts, in the pages, and where a screen is put together."""
    blank = re.compile(r"[，。：；、][ \t]+(?=[^\s|])")
    texts = {f"{c}.{p}": t for c, entry in entries() for p, t in parts(entry["zh"]).items()}
    root = SOURCE.parent.parent
    pages = [root / "README.zh.md", *sorted((root / "docs" / "zh").glob("*.md"))]
    texts |= {page.name: page.read_text(encoding="utf-8") for page in pages if page.name != "plan.md"}
    assert {name: mark[0] for name, text in texts.items() if (mark := blank.search(text))} == {}
    fault = Problem("recipe.key_twice", where="run.yaml:3", key="model")
    language.choose("zh")
    try:
        assert not blank.search(screen(fault, colour=False))
    finally:
        language.choose(None)


NAMES_OF_CODE = {
    "cli/init.py": "a list of YAML",
    "cli/data_convert.py": "a place, of paths",
    "steps/data.py": "a place, of paths",
    "rehearsal/stage.py": "figures",
}


def test_names_are_joined_by_the_comma_of_the_language() -> None:
    """ ", ".join would put a half-width comma between Chinese names; ui/lists.py knows the right one."""
    joins = re.compile(r"""["'][,;] ["']\.join\(|first_few\([^\n]*["'], ["']\)""")
    found = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if joins.search(path.read_text(encoding="utf-8")) and path.parent.name != "plan"
    }
    assert found == set(NAMES_OF_CODE) | {"data/fix.py"}


def test_a_list_of_names_in_either_language(monkeypatch: pytest.MonkeyPatch) -> None:
    for lang, names, more in (("en", "a, b", "and 1 more"), ("zh", "a、b", "另有 1 项")):
        monkeypatch.setenv("TENGTUNE_LANG", lang)
        assert lists.joined(["a", "b"]) == lists.listed(["a", "b"]) == names
        assert more in lists.listed("abcdef")


def test_codes_stand_in_the_file_of_their_area_once() -> None:
    for area in AREAS:
        text = (SOURCE / "ui" / "messages" / f"{area}.yaml").read_text(encoding="utf-8")
        codes = [key.value for key, _ in yaml.compose(text).value]
        assert len(codes) == len(set(codes)), area
        assert all(code.startswith(f"{area}.") for code in codes), area


def test_every_code_in_the_source_has_a_text() -> None:
    known = {code for code, _ in entries()}
    used = {c for path in SOURCE.rglob("*.py") for c in CODE.findall(path.read_text(encoding="utf-8"))}
    assert len(used) > 20
    assert used <= known


def test_a_screen_has_place_reason_and_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    fault = Problem("recipe.key_twice", where="run.yaml:3", key="model")
    monkeypatch.setenv("TENGTUNE_LANG", "zh_CN.UTF-8")
    text = screen(fault, colour=False)
    assert "run.yaml:3" in text
    assert all(label in text for label in ("出错了", "位置", "原因", "办法", "recipe.key_twice"))
    monkeypatch.setenv("TENGTUNE_LANG", "en")
    assert all(label in screen(fault, colour=False) for label in ("Problem", "where", "why", "fix"))


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "en_US.UTF-8"}, "en"),
        ({"LANG": "en_US.UTF-8", "TENGTUNE_LANG": "zh"}, "zh"),
        ({"LANG": "C"}, "en"),
    ],
)
def test_the_language_follows_the_locale(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: str
) -> None:
    for name in ("TENGTUNE_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert language.current() == expected


def test_a_problem_is_told_in_either_language() -> None:
    fault = Problem("recipe.key_twice", where="run.yaml:3", key="model")
    assert fault.texts("en") == fault.texts()
    assert re.search(r"[\u4e00-\u9fff]", fault.texts("zh")["what"])


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, "0 rows of 8"),
        (1, "1 row of 8"),
        ("1", "1 row of 8"),
        (2, "2 rows of 8"),
        ("1,024", "1,024 rows of 8"),
    ],
)
def test_one_of_a_thing_is_no_plural(count: object, expected: str) -> None:
    assert language.fill("{count:row|rows} of {size:.0f}", {"count": count, "size": 8.2}) == expected
    assert language.fill("{count} 行", {"count": count}) == f"{count} 行"


@pytest.mark.parametrize(("lang", "left"), [("en", "0:00 left"), ("zh", "剩余 0:00")])
def test_the_progress_line_is_in_the_users_language(
    monkeypatch: pytest.MonkeyPatch, lang: str, left: str
) -> None:
    monkeypatch.setenv("TENGTUNE_LANG", lang)
    err = io.StringIO()
    title = language.say("train.progress")
    with Console(err=err).progress(5, title) as bar:
        bar.update(1, loss="2")  # the time left is reckoned from here
        bar.update(5, loss="1.2345")
    assert err.getvalue().splitlines()[-1] == f"{title} 5/5  loss 1.2345  {left}"
    with Console(err=err).progress(3, title) as bar:
        bar.update(1)
        bar.update(3)
    assert err.getvalue().splitlines()[-1] == f"{title} 3/3  {left}"


@pytest.mark.parametrize(
    ("total", "steps", "told"),
    [(1_800_000, [1_800_000], ["2/2"]), (3_000_000, [1_200_000, 1_800_000], ["1/3", "3/3"]), (9, [9], [])],
)
def test_a_meter_that_went_through_ends_at_its_total(
    total: int, steps: list[int], told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENGTUNE_LANG", "en")
    err = io.StringIO()
    with meter(Console(err=err), total, "check.progress") as advance:
        for count in steps:
            advance(count)
    assert re.findall(r"\d+/\d+", err.getvalue())[-len(told) or 99 :] == told
    err = io.StringIO()
    with pytest.raises(OSError, match="torn"), meter(Console(err=err), total, "check.progress") as advance:
        raise OSError("torn")
    assert not err.getvalue()


@pytest.mark.parametrize(("lang", "said"), [("en", "weights: 0:00 so far"), ("zh", "weights：已用 0:00")])
def test_a_wait_is_told_while_it_lasts(monkeypatch: pytest.MonkeyPatch, lang: str, said: str) -> None:
    monkeypatch.setenv("TENGTUNE_LANG", lang)
    monkeypatch.setattr(progress, "EVERY_S", 0.01)
    err = Told()
    with Console(err=err).waiting("weights"):
        assert err.lines.get(timeout=60) == f"{said}\n"
    told = threading.active_count()
    with Console("quiet", err=err).waiting("weights"), Console("json", err=err).waiting("weights"):
        assert threading.active_count() == told


def test_a_progress_that_has_not_moved_yet_says_what_takes_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of a kind compiles graphs, for minutes; after it its own lines tell enough."""
    monkeypatch.setattr(progress, "EVERY_S", 0.01)
    err = Told()
    with Console(err=err).progress(3, "train") as bar:
        assert err.lines.get(timeout=60).startswith("train, the first (")
        bar.update(1)
        assert "waiting" not in {thread.name for thread in threading.enumerate()}
    assert "waiting" not in {thread.name for thread in threading.enumerate()}


class Told(io.StringIO):
    """A stream whose lines can be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: queue.Queue[str] = queue.Queue()

    def write(self, text: str) -> int:
        self.lines.put(text)
        return super().write(text)


def test_titles_of_progress_lines_are_texts() -> None:
    """A literal title would be English in a Chinese run."""
    calls = re.compile(r"""\.progress\(\s*[^,()]+(?:\([^()]*\))?[^,()]*,\s*f?["']""")
    for path in SOURCE.rglob("*.py"):
        assert not calls.search(path.read_text(encoding="utf-8")), path


NUMBERED = re.compile(
    r"\{\w+\} (?:\w+ )?(?:records|rows|tokens|steps|documents|files|tensors|parameters|questions|bytes)\b"
)


def test_english_texts_know_the_singular() -> None:
    texts = [(code, text) for code, entry in entries() for text in parts(entry["en"]).values()]
    bare = {code: found[0] for code, text in texts if (found := NUMBERED.search(text))}
    assert bare == {}


def test_a_problem_with_one_of_a_thing() -> None:
    fault = Problem("weights.missing_shards", count=1, total=1, missing="x")
    assert fault.texts("en")["what"].startswith("1 of 1 shard ")
