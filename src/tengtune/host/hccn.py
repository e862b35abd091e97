"""The addresses of the cards' own network ports: from hccn_tool, or from the file it keeps.

Formats: Ascend's hccn_tool ("ipaddr:10.0.0.1", "netmask:255.255.0.0") and /etc/hccn.conf
("address_0=10.0.0.1", "netmask_0=255.255.0.0").
"""

from __future__ import annotations

import ipaddress
import re
import shutil
import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tengtune.files import open_plain
from tengtune.ui.problems import Problem, os_errors

CONF = Path("/etc/hccn.conf")
TOOL = Path("/usr/local/Ascend/driver/tools/hccn_tool")
MOST_BYTES = 4 << 20
"""More than the configuration of any machine has."""
SECONDS = 10.0
"""A tool that says nothing for so long is taken to hang."""

_CONF_LINE = re.compile(r"\s*(address|netmask)_([0-9]{1,7})\s*=\s*(\S*)\s*")
_TOOL_LINE = re.compile(r"\s*(ipaddr|netmask)\s*:\s*(\S+)\s*")


@dataclass(frozen=True)
class Port:
    """A card's port: its address and, where it is known, its netmask."""

    address: str
    netmask: str | None = None

    @property
    def network(self) -> str | None:
        """The subnet as "10.0.0.0/16"; None without a netmask that is one."""
        try:
            return str(ipaddress.ip_network(f"{self.address}/{self.netmask}", strict=False))
        except ValueError:
            return None


def read_conf(path: Path = CONF) -> dict[int, Port]:
    """Card -> port, from the file hccn.conf; Problem as parse_conf has it."""
    with os_errors(path), open_plain(path) as stream:
        text = stream.read(MOST_BYTES).decode("utf-8-sig", "replace")
    return parse_conf(text, str(path))


def parse_conf(text: str, path: str) -> dict[int, Port]:
    """Card -> port, from the text of hccn.conf. Problem at an address that is none, and at a key that stands
    twice; path: what the file is called there."""
    found: dict[str, dict[int, str]] = {"address": {}, "netmask": {}}
    for number, line in enumerate(text.splitlines(), 1):
        if match := _CONF_LINE.fullmatch(line):
            key, card, value = match[1], int(match[2]), match[3]
            if key == "address":
                check_address(value, f"{path}:{number}")
            if card in found[key]:
                raise Problem("ranktable.conf_twice", where=f"{path}:{number}", key=f"{key}_{card}")
            found[key][card] = value
    return {card: Port(address, found["netmask"].get(card)) for card, address in found["address"].items()}


def read_tool(text: str) -> Port | None:
    """The port in what `hccn_tool -i N -ip -g` prints; None where it prints no address."""
    found = {match[1]: match[2] for line in text.splitlines() if (match := _TOOL_LINE.fullmatch(line))}
    address = found.get("ipaddr")
    return Port(address, found.get("netmask")) if address and is_address(address) else None


def ask_tool(cards: Iterable[int]) -> dict[int, Port]:
    """Card -> port, of those that hccn_tool knows; all are asked at once. Nothing where it is not there."""
    tool = shutil.which("hccn_tool") or (str(TOOL) if TOOL.exists() else None)
    if tool is None:
        return {}

    def one(card: int) -> tuple[int, Port | None]:
        return card, read_tool(_run([tool, "-i", str(card), "-ip", "-g"]))

    with ThreadPoolExecutor(16) as pool:
        return {card: port for card, port in pool.map(one, cards) if port}


def _run(command: list[str]) -> str:
    """What a command prints; nothing where it fails or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def is_address(text: str) -> bool:
    """Whether it is an IP address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def is_usable(text: str) -> bool:
    """Whether an address is one that another machine can reach: not 0.0.0.0, a loopback or a group's."""
    address = ipaddress.ip_address(text)
    return not (address.is_unspecified or address.is_loopback or address.is_multicast)


def check_address(text: str, where: object) -> str:
    """The address; Problem if it is none."""
    if not is_address(text):
        raise Problem("ranktable.bad_address", where=where, text=text)
    return text
