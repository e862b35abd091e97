"""A host that is read as always, while what was read is kept: for a bundle that reads back the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tengtune.host.place import Output, Place


@dataclass
class Kept:
    """What was read. files: name -> text; folders: what else is there; links: name -> target; outputs: what
    commands printed. Names are those of the host, links in them followed."""

    files: dict[str, str] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)
    links: dict[str, str] = field(default_factory=dict)
    outputs: dict[tuple[str, ...], Output] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was there of all that was asked for."""
        printed = any(output.fault != "missing" for output in self.outputs.values())
        return not (self.files or self.folders or printed)


@dataclass(frozen=True)
class Recorder(Place):
    """A Place that keeps what it is asked for."""

    kept: Kept = field(default_factory=Kept)

    def followed(self, name: str) -> tuple[str, dict[str, str]]:
        """See Place."""
        real, links = super().followed(name)
        self.kept.links |= links
        return real, links

    def read(self, name: str) -> str | None:
        """See Place."""
        text = super().read(name)
        if text is not None:
            self.kept.files[self.followed(name)[0]] = text
        else:
            self.exists(name)
        return text

    def exists(self, name: str) -> bool:
        """See Place."""
        there = super().exists(name)
        if there:
            self.kept.folders.add(self.followed(name)[0])
        return there

    def names(self, name: str) -> list[str]:
        """See Place."""
        names = super().names(name)
        if names:
            real, _ = self.followed(name)
            self.kept.folders |= {real, *(f"{real}/{each}" for each in names)}
        return names

    def run(self, command: Sequence[str]) -> Output:
        """See Place."""
        output = super().run(command)
        self.kept.outputs[tuple(command)] = output
        return output
