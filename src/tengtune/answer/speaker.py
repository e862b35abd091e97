"""Speaker: a model that answers conversations, piece by piece."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from tengtune.answer import choice
from tengtune.answer.ending import StopText, loop
from tengtune.backends.base import Backend, Sampling, open_backend
from tengtune.models import spec as specs
from tengtune.recipe import Recipe
from tengtune.text import chatml
from tengtune.text.conversation import Message
from tengtune.text.template import Template, of_folder
from tengtune.text.tokenizer import Tokenizer, open_tokenizer
from tengtune.train.adaptation import chatml_is_new
from tengtune.ui import language
from tengtune.ui.console import Console
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
    """An answer as it comes: iterate for its text. `ids` are its tokens so far, `text` what was given."""

    def __init__(self, tokenizer: Tokenizer, ids: Iterator[int], stops: Sequence[str], limit: int) -> None:
        self._tokenizer, self._source, self._limit = tokenizer, ids, limit
        self._cut = StopText(stops)
        self.ids: list[int] = []
        self.text = ""
        self.end: End = "turn"

    def __iter__(self) -> Iterator[str]:
        decoder = self._tokenizer.decode_stream()
        for number in self._source:
            self.ids.append(number)
            yield from self._give(self._cut.put(decoder.put(number)))
            if self._cut.hit:
                self.end = "stop"
                return
        self.end = "length" if len(self.ids) >= self._limit else "turn"
        yield from self._give(self._cut.put(decoder.end()))
        if self._cut.hit:
            self.end = "stop"
        else:
            yield from self._give(self._cut.end())

    def _give(self, text: str) -> Iterator[str]:
        if text:
            self.text += text
            yield text


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

    def reply(self, prompt: Sequence[int], number: int = 0) -> Reply:
        """The answer to `prompt`; `number` tells draws with the same seed apart."""
        room = self.room(prompt)
        if room < 1:
            positions = self.backend.spec.max_positions
            raise Problem("predict.too_long", tokens=len(prompt), positions=positions)
        sampling = replace(self.sampling, seed=self.sampling.seed + number)
        ids = self.backend.generate(prompt, room, self.tokenizer.stop_ids, sampling)
        return Reply(self.tokenizer, ids, self.stops, room)

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
        return "; ".join(reasons)

    def tell(self, console: Console) -> None:
        """Say how answers are chosen."""
        chosen = choice.in_words(self.sampling)
        console.say("predict.sampling", folder=self.folder, chosen=chosen, origin=self.origin)

    def tell_ending(self, reply: Reply, console: Console) -> None:
        """Say why an answer was cut at its limit; nothing where it was not."""
        if reply.end == "length":
            console.warn("predict.never_ended", count=len(reply.ids), reason=self.why_endless(reply))


def open_speaker(recipe: Recipe, folder: Path, settings: Settings) -> Speaker:
    """The model in `folder`, to be asked as the run taught it to be asked. Problem where something is wrong
    with the folder."""
    tokenizer = open_tokenizer(folder)
    template = of_folder(folder, specs.from_folder(folder).family, tokenizer)
    system = recipe.data.system if settings.system is None else settings.system
    sampling, origin = choice.choose(folder, settings.sampling, settings.seed)
    return Speaker(
        folder=folder,
        backend=open_backend(recipe, folder, trainable=False),
        tokenizer=tokenizer,
        template=template,
        system=chatml.default_system(system, recipe.data.policy, template),
        max_new_tokens=settings.max_new_tokens or recipe.output.max_new_tokens,
        stops=settings.stops,
        sampling=sampling,
        origin=origin,
    )
