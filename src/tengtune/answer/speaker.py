"""Speaker: a model that answers conversations, piece by piece."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

from tengtune.answer import choice
from tengtune.answer.ending import StopText, loop
from tengtune.backends.base import Asked, Backend, Sampling, open_backend
from tengtune.data.system import system_of_run
from tengtune.models import spec as specs
from tengtune.recipe import Recipe
from tengtune.text import chatml
from tengtune.text.conversation import Message
from tengtune.text.template import Template, of_folder
from tengtune.text.tokenizer import Tokenizer, open_tokenizer
from tengtune.train.adaptation import chatml_is_new
from tengtune.ui import language
from tengtune.ui.console import Console
from tengtune.ui.lists import clauses
from tengtune.ui.problems import Problem

End = Literal["turn", "stop", "length"]
"""The model ended its turn; a stop string came; max_new_tokens (or the model's positions) were used up."""


@dataclass(frozen=True)
class Settings:
    """What the command line says of answers. None: the run file's, or the model's own."""

    max_new_tokens: int | None = None
    stops: tuple[str, ...] = ()
    system: str | None = None
    sampling: Mapping[str, float | None] = field(default_factory=dict)
    seed: int = 0


class Reply:
    """An answer as its ids come: `put` each, then `finish`; both give the text that is certain by then.
    `ids` are its tokens so far, `text` what was given."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str], limit: int) -> None:
        self._decoder, self._limit = tokenizer.decode_stream(), limit
        self._cut = StopText(stops)
        self.ids: list[int] = []
        self.text = ""
        self.end: End = "turn"

    @property
    def stopped(self) -> bool:
        """Whether a stop string came: nothing more is wanted."""
        return self._cut.hit

    def put(self, number: int) -> str:
        """Take the next id."""
        self.ids.append(number)
        return self._give(self._cut.put(self._decoder.put(number)))

    def finish(self) -> str:
        """The ids are at their end."""
        text = "" if self.stopped else self._cut.put(self._decoder.end())
        if self.stopped:
            self.end = "stop"
        else:
            self.end = "length" if len(self.ids) >= self._limit else "turn"
            text += self._cut.end()
        return self._give(text)

    def _give(self, text: str) -> str:
        self.text += text
        return text


class LiveReply(Reply):
    """One that is made while it is iterated over: gives its text piece by piece."""

    def __init__(self, source: Iterator[int], tokenizer: Tokenizer, stops: Sequence[str], limit: int) -> None:
        super().__init__(tokenizer, stops, limit)
        self._source = source

    def __iter__(self) -> Iterator[str]:
        for number in self._source:
            yield from filter(None, [self.put(number)])
            if self.stopped:
                break
        yield from filter(None, [self.finish()])


@dataclass
class Speaker:
    """A model with all that decides its answers. `system`: of conversations that bring none, "": no system
    turn. A model whose template knows reasoning is asked to answer at once."""

    folder: Path
    backend: Backend
    tokenizer: Tokenizer
    template: Template
    system: str
    max_new_tokens: int
    stops: tuple[str, ...]
    sampling: Sampling
    origin: str

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """The ids the model answers to."""
        return chatml.prompt(messages, self.tokenizer, self.system, self.template, enable_thinking=False)

    def room(self, prompt: Sequence[int]) -> int:
        """How many new tokens there is room for after `prompt`, at most max_new_tokens."""
        return min(self.max_new_tokens, self.backend.spec.max_positions - len(prompt))

    def reply(self, prompt: Sequence[int], number: int = 0) -> LiveReply:
        """The answer to `prompt`, as it is made; `number` tells draws with the same seed apart."""
        room = self.room(prompt)
        if room < 1:
            positions = self.backend.spec.max_positions
            raise Problem("predict.too_long", tokens=len(prompt), positions=positions)
        ids = self.backend.generate(prompt, room, self.tokenizer.stop_ids, self._sampling_of(number))
        return LiveReply(ids, self.tokenizer, self.stops, room)

    def replies(self, prompts: Iterable[tuple[int, Sequence[int]]]) -> Iterator[tuple[int, Reply]]:
        """The whole answers to numbered prompts, each with room for one, several at a time: as they end, with
        their numbers. Each is what `reply` gives for the same prompt and number."""
        started: list[tuple[int, Reply]] = []

        def asked() -> Iterator[Asked]:
            for number, prompt in prompts:
                room = self.room(prompt)
                reply = Reply(self.tokenizer, self.stops, room)
                started.append((number, reply))
                yield Asked(prompt, room, partial(_taken, reply), self._sampling_of(number))

        for place in self.backend.generate_many(asked(), self.tokenizer.stop_ids):
            started[place][1].finish()
            yield started[place]

    def _sampling_of(self, number: int) -> Sampling:
        return replace(self.sampling, seed=self.sampling.seed + number)

    def why_endless(self, reply: Reply) -> str:
        """Why an answer was cut at its limit, as far as can be told, in one line."""
        found = loop(reply.ids)
        reasons = [
            language.say("predict.repeats", period=found[0], times=found[1])
            if found
            else language.say("predict.still_writing")
        ]
        new, measure = chatml_is_new(self.folder, self.backend.spec)
        if new:
            reasons.append(language.say("predict.base_weights", measure=measure))
        if not self.template.known:
            reasons.append(language.say("predict.unknown_template"))
        return clauses(reasons)

    def tell(self, console: Console) -> None:
        """Say how answers are chosen."""
        chosen = choice.in_words(self.sampling)
        console.say("predict.sampling", folder=self.folder, chosen=chosen, origin=self.origin)

    def tell_ending(self, reply: Reply, console: Console) -> None:
        """Say why an answer was cut at its limit; nothing where it was not."""
        if reply.end == "length":
            console.warn("predict.never_ended", count=len(reply.ids), reason=self.why_endless(reply))


def _taken(reply: Reply, number: int) -> bool:
    reply.put(number)
    return not reply.stopped


def open_speaker(recipe: Recipe, folder: Path, settings: Settings) -> Speaker:
    """The model in `folder`, to be asked as the run taught it to be asked. Problem where something is wrong
    with the folder."""
    tokenizer = open_tokenizer(folder)
    template = of_folder(folder, specs.from_folder(folder).family, tokenizer)
    system = settings.system
    sampling, origin = choice.choose(folder, settings.sampling, settings.seed)
    return Speaker(
        folder=folder,
        backend=open_backend(recipe, folder, trainable=False),
        tokenizer=tokenizer,
        template=template,
        system=system_of_run(recipe, tokenizer, template) if system is None else system,
        max_new_tokens=settings.max_new_tokens or recipe.output.max_new_tokens,
        stops=settings.stops,
        sampling=sampling,
        origin=origin,
    )
