"""The errors we know: facts/errors.yaml, the cards' health codes, and a user's own files in the same form."""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tengtune import facts
from tengtune.explain.sieve import SHORTEST
from tengtune.files import open_plain
from tengtune.ui import language
from tengtune.ui.lists import joined, size
from tengtune.ui.problems import Problem, os_errors

KINDS = ("root", "symptom", "warning", "wrapper")
DETAILS = ("memory", "collectives", "missing_ranks", "location", "absent", "module")
KEYS = {"kind", "find", "regex", "code", "over", "detail", "en", "zh", "source"}
_NUMBER = r"(?i)(?:err\w*[ _]?code|ret(?:urn)?[ _]?(?:code|value)|\bret|result)\W{0,4}(?:is )?\W?"
"""What stands before a code that is a number: "error code is ", "ErrCode=", "runtime result = "."""
_REPORT = rb"\b(?:health|fault|alarm|event)\b.{0,80}"
_LEADS = " =[:('\""
CODINGS = ("utf-8", "gb18030")
"""Codings that Chinese logs come in."""
MOST_BYTES = 16 << 20
"""More than any file of errors has."""


@dataclass(frozen=True)
class Error:
    """One entry, as facts/errors.yaml has it. A line tells of this error when it holds one of `find`, and
    `regex`, if there is one, matches in it. texts: language -> {"means", "fix"}."""

    id: str
    kind: str
    find: tuple[bytes, ...]
    regex: re.Pattern[bytes] | None
    over: tuple[str, ...]
    detail: str | None
    texts: Mapping[str, Mapping[str, str]]
    source: str

    @property
    def means(self) -> str:
        """What it means, in the language in force."""
        return self.texts[language.current()]["means"]

    @property
    def fix(self) -> str:
        """What to do, in the language in force."""
        return self.texts[language.current()]["fix"]


def load(own: Iterable[Path] = ()) -> dict[str, Error]:
    """All errors by id; those of `own`, YAML files, come on top and replace ours of the same id. Problem for
    a file that is not in our form."""
    found = dict(_ours())
    for path in own:
        with os_errors(path), open_plain(path) as stream:
            text = stream.read(MOST_BYTES + 1)
        if len(text) > MOST_BYTES:
            raise Problem("explain.bad_facts", where=path, reason=f"> {size(MOST_BYTES)}")
        found |= _read(text, path)
    return found


@functools.cache
def _ours() -> Mapping[str, Error]:
    found = _read(facts.text("errors.yaml"), Path("errors.yaml"))
    return found | _health(facts.text("npu_health_codes.csv"))


def exception_of_a_rank() -> Error:
    """What a rank's own exception is that nobody else knows, when others waited for that rank."""
    texts: dict[str, Mapping[str, str]] = {
        name: language.area_messages("explain")["explain.own_exception"][name] for name in language.LANGUAGES
    }
    return Error("own_exception", "root", (), None, (), None, texts, "tengtune")


def _read(text: str | bytes, path: Path) -> dict[str, Error]:
    import yaml

    try:
        tree = facts.parsed(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise Problem("explain.bad_facts", where=path, reason=" ".join(str(error).split())[:300]) from error
    if not isinstance(tree, dict):
        raise Problem("explain.bad_facts", where=path, reason=language.say("explain.no_entries"))
    return {str(id): _error(str(id), entry, path) for id, entry in tree.items()}


def _error(id: str, entry: Any, path: Path) -> Error:
    """An entry in our terms; Problem that names what is wrong in it."""
    fault = _fault(entry)
    if fault:
        raise Problem("explain.bad_facts", where=f"{path}: {id}", reason=fault)
    pattern, texts = entry.get("regex"), entry.get("find")
    if "code" in entry:
        codes = _codes(entry)
        number = codes[0].isdigit()
        pattern = (_NUMBER if number else r"(?<![0-9A-Za-z])") + f"(?:{'|'.join(codes)})(?![0-9A-Za-z])"
        texts = [lead + code for code in codes for lead in (_LEADS if number else ("",))]
    try:
        regex = _compiled(pattern) if pattern else None
    except re.error as error:
        raise Problem("explain.bad_facts", where=f"{path}: {id}", reason=f"regex: {error}") from error
    return Error(
        id,
        entry["kind"],
        tuple(dict.fromkeys(text.encode(coding) for text in texts for coding in CODINGS)),
        regex,
        tuple(entry.get("over", ())),
        entry.get("detail"),
        {name: entry[name] for name in language.LANGUAGES},
        str(entry.get("source", "")),
    )


def _compiled(pattern: str) -> re.Pattern[bytes]:
    """A pattern that also matches in every coding. In GB 18030 a byte of a character may look like one of the
    pattern's signs, hence the escapes."""

    def either(run: re.Match[str]) -> str:
        forms = (re.escape(run[0].encode(coding)).decode("latin-1") for coding in CODINGS)
        return f"(?:{'|'.join(forms)})"

    return re.compile(re.sub(r"[^\x00-\x7f]+", either, pattern).encode("latin-1"))


def _fault(entry: Any) -> str:
    """What keeps an entry from being one; empty when nothing does."""
    if not isinstance(entry, dict) or set(entry) - KEYS:
        return language.say("explain.entry_keys", keys=joined(sorted(KEYS)))
    if entry.get("kind") not in KINDS:
        return language.say("explain.entry_value", key="kind", wanted=" | ".join(KINDS))
    if entry.get("detail") not in (None, *DETAILS):
        return language.say("explain.entry_value", key="detail", wanted=" | ".join(DETAILS))
    texts = _codes(entry) if "code" in entry else entry.get("find")
    if "code" in entry and not _one_kind(_codes(entry)):
        return language.say("explain.entry_value", key="code", wanted="EI0006 | [507053, 507054]")
    if not isinstance(texts, list) or not texts or not all(_is_anchor(text) for text in texts):
        return language.say("explain.entry_find", count=SHORTEST)
    if not isinstance(entry.get("regex", ""), str) or not isinstance(entry.get("over", []), list):
        return language.say("explain.entry_value", key="regex, over", wanted="'...', [...]")
    for name in language.LANGUAGES:
        said = entry.get(name)
        if not isinstance(said, dict) or not all(isinstance(said.get(key), str) for key in ("means", "fix")):
            return language.say("explain.entry_value", key=name, wanted="{means: ..., fix: ...}")
    return ""


def _codes(entry: Mapping[str, Any]) -> list[str]:
    """The codes of an entry, one or several of a kind."""
    codes = entry["code"]
    return [str(code) for code in codes] if isinstance(codes, list) else [str(codes)]


def _one_kind(codes: Iterable[str]) -> bool:
    """Whether these are codes, all numbers or none of them."""
    return all(re.fullmatch("[0-9A-Za-z]+", code) for code in codes) and len({c.isdigit() for c in codes}) < 2


def _is_anchor(text: object) -> bool:
    return isinstance(text, str) and "\n" not in text and len(text.encode()) >= SHORTEST


def _health(table: str) -> dict[str, Error]:
    """The cards' health codes, each as an error of its own: health_80C78008. Where nothing is to be done the
    code is a notice."""
    found = {}
    for row in csv.DictReader(table.splitlines()):
        digits = row["code"][2:].upper()
        forms = tuple({f"0x{digits}".encode(), f"0x{digits.lower()}".encode()})
        lead = b"" if digits.startswith("8") else _REPORT  # 0x00000003 may be anything
        actions = row["actions"].split()
        found[f"health_{digits}"] = Error(
            f"health_{digits}",
            "warning" if actions == ["none"] else "root",
            forms,
            re.compile(lead + rb"(?<![0-9A-Za-z])0x" + digits.encode() + rb"(?![0-9A-Za-z])", re.IGNORECASE),
            (),
            None,
            {name: _health_texts(name, row, actions) for name in language.LANGUAGES},
            "Ascend/mind-cluster (Apache-2.0), fault codes",
        )
    return found


def _health_texts(name: language.Language, row: Mapping[str, str], actions: Iterable[str]) -> dict[str, str]:
    messages = language.area_messages("explain")
    means = messages["explain.health"][name].format(cause=row[f"cause_{name}"], code=row["code"])
    return {"means": means, "fix": " ".join(messages[f"explain.do_{action}"][name] for action in actions)}
