"""The driver's device nodes and who may open them, and the user of this process."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tengtune.host.place import Output, Place

LISTING = ("ls", "-l", "/dev")
CONTROL = ("davinci_manager", "devmm_svm", "hisi_hdc")
_ROW = re.compile(r"c([rwx-]{9})\S*\s+\d+\s+(\S+)\s+(\S+)\s+.*?(?:/dev/)?([\w.-]+)\s*")


@dataclass(frozen=True)
class Node:
    """A device node; who owns it and the mode ("rw-rw----") are None where only its name is known."""

    name: str
    owner: str | None = None
    group: str | None = None
    mode: str | None = None

    @property
    def card(self) -> int | None:
        """The number of the card it is."""
        number = self.name.removeprefix("davinci")
        return int(number) if self.name.startswith("davinci") and re.fullmatch(r"\d{1,7}", number) else None


def read_listing(text: str) -> list[Node]:
    """The driver's nodes in what `ls -l` printed."""
    rows = (_ROW.fullmatch(line) for line in text.splitlines())
    nodes = [Node(row[4], row[2], row[3], row[1]) for row in rows if row]
    return [node for node in nodes if node.card is not None or node.name in CONTROL]


def find(place: Place, listing: Output) -> list[Node]:
    """The driver's nodes, with their owners where ls was there."""
    known = read_listing(listing.text)
    named = [Node(name) for name in place.names("/dev")]
    bare = [node for node in named if node.card is not None or node.name in CONTROL]
    return known or bare


@dataclass(frozen=True)
class User:
    """Who runs this; `groups` holds names and numbers. uid is None where nothing tells."""

    uid: int | None
    name: str
    groups: frozenset[str]

    def may_use(self, node: Node) -> bool | None:
        """Whether a node can be read and written; None where that is not known."""
        if self.uid == 0:
            return True
        if self.uid is None or node.mode is None:
            return None
        if node.owner in (self.name, str(self.uid)):
            return node.mode[:2] == "rw"
        if node.group in self.groups:
            return node.mode[3:5] == "rw"
        return node.mode[6:8] == "rw"


def user(place: Place) -> User:
    """The user of this process, by /proc/self/status, /etc/passwd and /etc/group."""
    status = place.read("/proc/self/status") or ""
    uid = re.search(r"^Uid:\s+\d+\s+(\d{1,10})", status, re.MULTILINE)
    gids = re.findall(r"^(?:Gid:\s+\d+|Groups:)(.*)$", status, re.MULTILINE)
    numbers = {number for line in gids for number in line.split() if number.isdigit()}
    names = {number: name for name, number in entries(place, "/etc/group")}
    number = uid[1] if uid else ""
    own = next((name for name, each in entries(place, "/etc/passwd") if each == number), number)
    return User(int(number) if uid else None, own, frozenset(numbers | {names.get(n, n) for n in numbers}))


def entries(place: Place, path: str) -> list[tuple[str, str]]:
    """(name, number) of the rows of /etc/passwd or /etc/group."""
    rows = (line.split(":") for line in (place.read(path) or "").splitlines())
    return [(row[0], row[2]) for row in rows if len(row) > 2]


def in_container(place: Place) -> bool:
    """Whether this is the inside of a container."""
    if place.exists("/.dockerenv") or place.exists("/run/.containerenv"):
        return True
    return re.search(r"docker|kubepods|containerd|lxc", place.read("/proc/1/cgroup") or "") is not None
