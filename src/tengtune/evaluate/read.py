"""A file of questions becomes a QuestionSet; its kind is told by its first record's columns.

    choice   question, A to H (or options / choices: a list, or an object by letter), answer; or the options
             inside the question's text, as GAOKAO-Bench has them
    number   question, answer with GSM8K's "#### 18"
    free     question, answer, keywords?; or a record of a training file, whose last answer is the right one

The right answer of a choice is a letter, the option's text, or its number from 0.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from tengtune.data import formats
from tengtune.data.fault import Unfit
from tengtune.data.formats.values import is_blank, parsed
from tengtune.data.read import one_conversation
from tengtune.evaluate.match import normalise
from tengtune.evaluate.numbers import MARK, final_number
from tengtune.evaluate.questions import LETTERS, By, Calculation, Choice, Free, Question
from tengtune.evaluate.records import ANSWER, KEYWORDS, OPTIONS, QUESTION, read_entries
from tengtune.text.conversation import Message
from tengtune.ui import language
from tengtune.ui.lists import joined
from tengtune.ui.problems import Problem

Kind = Literal["choice", "number", "free"]

# A letter before a point or bracket; "4C." follows a digit where a line break was lost.
_MARKER = re.compile(r"(?<![A-Za-z])([A-H])\s*[.．、:：)）]")


@dataclass(frozen=True)
class Settings:
    """How files are read. limit: questions of each file, from its beginning; shots: so many before them are
    shown as examples instead of being asked."""

    limit: int | None = None
    shots: int = 0
    by: By = "letter"
    max_new_tokens: int = 256


@dataclass(frozen=True)
class QuestionSet:
    """The questions of a file. refused: (record, reason) of what could not be asked, both languages' codes
    being in ui/messages; shots: the turns that go before every question."""

    name: str
    kind: Kind
    questions: list[Question]
    shots: tuple[Message, ...] = ()
    refused: list[tuple[int, Unfit]] = field(default_factory=list)


def read_set(path: Path, name: str, settings: Settings) -> QuestionSet:
    """The questions of a file, as many as asked for. Problem when there are none."""
    refused: list[tuple[int, Unfit]] = []
    found: list[tuple[Kind, Question]] = []
    wanted = None if settings.limit is None else settings.limit + settings.shots
    for kind, question in islice(_questions(path, name, settings, refused), wanted):
        found.append((kind, question))
    if len(found) <= settings.shots:
        raise _nothing(path, len(found), settings.shots, refused)
    questions = [question for _, question in found]
    shots = [m for q in questions[: settings.shots] for m in (*q.asked(), Message("assistant", q.expected()))]
    return QuestionSet(name, found[0][0], questions[settings.shots :], tuple(shots), refused)


def _questions(
    path: Path, name: str, settings: Settings, refused: list[tuple[int, Unfit]]
) -> Iterator[tuple[Kind, Question]]:
    kind: Kind | None = None
    for number, record in read_entries(path, name):
        try:
            if isinstance(record, Unfit):
                raise record
            kind = kind or kind_of(record)
            yield kind, _READERS[kind](record, f"{name}:{number}", settings)
        except Unfit as unfit:
            refused.append((number, unfit))


def kind_of(record: dict[str, Any]) -> Kind:
    """The kind of question a record is; Unfit when it is none."""
    form = formats.choose(record)
    if form is not None and form is not formats.FORMATS["question"]:
        return "free"
    if QUESTION not in record or ANSWER not in record:
        raise Unfit("no_question", keys=joined(record) or "-")
    if OPTIONS in record or {"a", "b"} <= record.keys():
        return "choice"
    answer = record[ANSWER]
    if _letters(answer) and len(_split(str(record[QUESTION]))) > 1:
        return "choice"
    return "number" if isinstance(answer, str) and MARK in answer else "free"


def _choice(record: dict[str, Any], source: str, settings: Settings) -> Choice:
    question = _text(record, QUESTION)
    whole = None
    options = _options(record)
    if not options:
        whole, parts = question, _split(question)
        question, options = question[: parts[0][0]] if parts else question, tuple(p[1] for p in parts)
    if len(options) < 2:
        raise Unfit("few_options")
    return Choice(source, question.strip(), options, _right(record.get(ANSWER), options), whole, settings.by)


def _options(record: dict[str, Any]) -> tuple[str, ...]:
    """The options that stand by themselves, up to the first that is blank."""
    given = record.get(OPTIONS)
    if isinstance(given, dict):
        record = {str(key).strip().casefold(): value for key, value in given.items()}
    texts = given if isinstance(given, list) else [record.get(letter.lower()) for letter in LETTERS]
    options: list[str] = []
    for text in texts:
        if text is None or not str(text).strip():
            break
        options.append(str(text).strip())
    return tuple(options)


def _split(text: str) -> list[tuple[int, str]]:
    """Options inside a text, marked A. B. ... in order: where each begins, and its text. [] without two."""
    marks = list(_MARKER.finditer(text))
    for start in reversed([i for i, mark in enumerate(marks) if mark[1] == "A"]):
        chain = [marks[start]]
        for mark in marks[start + 1 :]:
            if mark[1] == LETTERS[len(chain)]:
                chain.append(mark)
                if len(chain) == len(LETTERS):
                    break
        if len(chain) > 1:
            ends = [mark.start() for mark in chain[1:]] + [len(text)]
            spans = zip(chain, ends, strict=True)
            return [(mark.start(), text[mark.end() : end].strip()) for mark, end in spans]
    return []


def _letters(answer: Any) -> str:
    """The letters of an answer such as "B", ["B"], "(B)", "b."; "" when it is something else."""
    if isinstance(answer, list):
        return "".join(map(_letters, answer))
    if not isinstance(answer, str):
        return ""
    found = answer.strip().strip("().（）．").upper()
    return found if found and all(c in LETTERS for c in found) and len(set(found)) == len(found) else ""


def _right(answer: Any, options: Sequence[str]) -> int:
    """The number of the right option, from 0."""
    if isinstance(answer, list) and len(answer) == 1:
        answer = answer[0]
    if answer is None or not str(answer).strip():
        raise Unfit("no_answer_given")
    if answer in options:
        return options.index(answer)
    letters = _letters(answer)
    if len(letters) > 1:
        raise Unfit("several_answers")
    number = LETTERS.index(letters) if letters else int(answer) if str(answer).isdecimal() else -1
    if not 0 <= number < len(options):
        raise Unfit("no_such_option", options=len(options))
    return number


def _calculation(record: dict[str, Any], source: str, settings: Settings) -> Calculation:
    worked = _text(record, ANSWER)
    number = final_number(worked)
    if number is None:
        raise Unfit("no_number")
    return Calculation(source, _text(record, QUESTION), worked, number)


def _free(record: dict[str, Any], source: str, settings: Settings) -> Free:
    if QUESTION in record and ANSWER in record:
        turns = (Message("user", _text(record, QUESTION)),)
        keywords = _keywords(record.get(KEYWORDS))
        return Free(source, turns, _text(record, ANSWER), settings.max_new_tokens, keywords)
    *asked, last = one_conversation(record).messages
    if last.role != "assistant" or not last.content.strip() or not asked:
        raise Unfit("no_answer")
    return Free(source, tuple(asked), last.content, settings.max_new_tokens)


def _keywords(value: Any) -> tuple[tuple[str, ...], ...]:
    """Groups of which an answer must hold a phrase each. A text is one keyword, or a list as JSON (a table's
    cell); what is blank holds none."""
    if is_blank(value) and value != 0:
        return ()
    if isinstance(value, str):
        value = parsed(value, KEYWORDS) if value.lstrip().startswith("[") else [value]
    listed = value if isinstance(value, list) else [[]]
    groups = [each if isinstance(each, list) else [each] for each in listed]
    if not all(group and all(map(_is_keyword, group)) for group in groups):
        shown = json.dumps(value, ensure_ascii=False, default=str)
        raise Unfit("bad_keywords", value=shown[:60])
    return tuple(tuple(map(str, group)) for group in groups)


def _is_keyword(value: Any) -> bool:
    """Whether it is a text or a number of which something is left to compare."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return (number or isinstance(value, str)) and bool(normalise(str(value)))


_READERS: dict[Kind, Callable[[dict[str, Any], str, Settings], Question]] = {
    "choice": _choice,
    "number": _calculation,
    "free": _free,
}


def _text(record: dict[str, Any], key: str) -> str:
    value = record.get(key)
    if not isinstance(value, str) or not value.strip():
        raise Unfit("missing", at=key)
    return value.strip()


def reason(unfit: Unfit) -> str:
    """Why a record could not be asked, in the current language."""
    area = "evaluate" if f"evaluate.{unfit.code}" in language.area_messages("evaluate") else "data"
    return language.say(f"{area}.{unfit.code}", **unfit.values)


def _nothing(path: Path, found: int, shots: int, refused: list[tuple[int, Unfit]]) -> Problem:
    if found:
        return Problem("evaluate.only_shots", where=path, found=found, shots=shots)
    first = "-"
    if refused:
        first = language.say("data.reason_at", where=refused[0][0], reason=reason(refused[0][1]))
    return Problem("evaluate.no_questions", where=path, records=len(refused), reason=first)
