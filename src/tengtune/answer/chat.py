"""Chat: a conversation over the terminal or a pipe, with one model or with two side by side."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tengtune import files
from tengtune.answer.speaker import Speaker
from tengtune.text.conversation import Message
from tengtune.ui import language
from tengtune.ui.console import Console
from tengtune.ui.problems import Problem

COMMANDS = ("/help", "/clear", "/system", "/save", "/quit")


@dataclass
class Side:
    """One model in the chat and what it has been told. `label` is "" where it is the only one."""

    speaker: Speaker
    label: str = ""
    messages: list[Message] = field(default_factory=list)

    def conversation(self) -> list[dict[str, str]]:
        system = [Message("system", self.speaker.system)] if self.speaker.system else []
        return [{"role": m.role, "content": m.content} for m in (*system, *self.messages)]


class Chat:
    """A chat with one or two models; each remembers its own answers."""

    def __init__(self, sides: list[Side], console: Console) -> None:
        self.sides, self.console, self.turns = sides, console, 0

    def run(self) -> None:
        """Answer line after line until /quit or the end of the input."""
        for side in self.sides:
            side.speaker.tell(self.console)
        self.console.say("chat.welcome")
        for line in _lines(self.console):
            text = line.strip()
            if text == "/quit":
                return
            try:
                if text.startswith("/"):
                    self._command(text)
                elif text:
                    self._turn(text)
            except Problem as problem:
                self.console.problem(problem)

    def _command(self, text: str) -> None:
        name, _, rest = text.partition(" ")
        rest = rest.strip()
        if name == "/help":
            self.console.result(language.say("chat.help"))
        elif name == "/clear":
            for side in self.sides:
                side.messages.clear()
            self.console.say("chat.cleared")
        elif name == "/system":
            for side in self.sides if rest else ():
                side.speaker.system = rest
            shown = self.sides[0].speaker.system or "-"
            self.console.result(language.say("chat.system", system=shown), system=shown)
        elif name == "/save":
            self._save(rest)
        else:
            self.console.warn("chat.unknown", name=name, known=" ".join(COMMANDS))

    def _save(self, name: str) -> None:
        """The conversation of each side as one line of a data file."""
        path = _new_file(name)
        lines = [json.dumps({"messages": side.conversation()}, ensure_ascii=False) for side in self.sides]
        files.write_text(path, "".join(f"{line}\n" for line in lines))
        self.console.say("chat.saved", path=path)

    def _turn(self, text: str) -> None:
        """Put one question to every side; Ctrl-C ends the answer, not the chat."""
        for side in self.sides:
            side.messages.append(Message("user", text))
            try:
                answer = self._answer(side)
            except Problem:
                side.messages.pop()
                raise
            if answer:
                side.messages.append(Message("assistant", answer))
            else:
                side.messages.pop()
        self.turns += 1

    def _answer(self, side: Side) -> str:
        """Write the side's answer as it comes; what there is of it when it was stopped."""
        speaker = side.speaker
        reply = speaker.reply(self._fitting(side), self.turns)
        stopped = False
        if side.label:
            self.console.part(f"[{side.label}] ")
        try:
            for piece in reply:
                self.console.part(piece)
        except KeyboardInterrupt:
            stopped = True
        self.console.part("\n")
        self.console.event(
            "answer", side=side.label, prompt=side.messages[-1].content, answer=reply.text, end=reply.end
        )
        if stopped:
            self.console.say("chat.stopped")
        else:
            speaker.tell_ending(reply, self.console)
        return reply.text

    def _fitting(self, side: Side) -> list[int]:
        """The prompt, after the oldest turns were forgotten where they leave no room for the answer: for
        max_new_tokens, but in a short window not for more than half of it."""
        speaker, dropped = side.speaker, 0
        positions = speaker.backend.spec.max_positions
        wanted = min(speaker.max_new_tokens, positions // 2)
        prompt = speaker.prompt(side.messages)
        while speaker.room(prompt) < wanted and len(side.messages) > 1:
            later = [n for n, m in enumerate(side.messages) if n and m.role == "user"]
            dropped += later[0]
            del side.messages[: later[0]]
            prompt = speaker.prompt(side.messages)
        if dropped:
            self.console.warn("chat.forgot", count=dropped, positions=positions, wanted=wanted)
        return prompt


def _new_file(name: str) -> Path:
    """The path a person means; Problem where something is there, or where no file can be called so: by a
    user there is none of, a NUL, a character the system's names do not have."""
    try:
        path = Path(name).expanduser()
        os.fsencode(path)
        free = bool(name) and "\0" not in name and not os.path.lexists(path)
    except (RuntimeError, ValueError):
        free = False
    if not free:
        shown = name.replace("\0", "\\0")
        raise Problem("chat.save_where", where=shown or "/save", name=shown)
    return path


def _lines(console: Console) -> Iterator[str]:
    """What is typed, line by line; Ctrl-C at the prompt says how to leave. An input that is closed, or not
    for reading, is at its end."""
    if sys.stdin is None:
        console.warn("chat.no_input")
        return
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    typed = sys.stdin.isatty()
    if typed:
        import readline  # noqa: F401  editing and history of input()
    while True:
        try:
            line = input(language.say("chat.prompt")) if typed else sys.stdin.readline()
        except EOFError:
            return
        except OSError:
            console.warn("chat.no_input")
            return
        except KeyboardInterrupt:
            console.part("\n")
            console.say("chat.how_to_leave")
            continue
        if not typed and not line:
            return
        yield line
