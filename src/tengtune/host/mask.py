"""Taking out of texts what is nobody else's business: secrets, and the names and addresses of people, hosts
and networks. What was alike before is alike after, so that texts can still be compared.

Addresses become other addresses of the same kind: a private one stays private. Two that share their first n
bits share n bits afterwards, and no more: what is in one subnet stays in one (J. Xu et al.,
"Prefix-preserving IP address anonymization", 2002). The key is made anew for each Mask and kept nowhere.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
import secrets
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import quote

from tengtune.host import private

_MORE_PARTS = re.compile(r"\.\d")
_OF_VERSION = re.compile(r"(?:version|npu-smi)[^\n]*\Z", re.IGNORECASE)
_BEGINS = r"(?:(?<![^\W_])|(?<=%[0-9A-F]{2})|(?<=\\[nrt]))"
"""Where a name may begin: at a word's begin, also after what a percent sign or a backslash writes."""
_SHORTEST_SECRET = 6
_SHORTEST_NAME = 2
_LONGEST_SIX = 64

_KINDS = [ipaddress.ip_network(each) for each in ("172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16")]
"""Networks for a purpose; those of eight bits are kept as the first eight of every address are."""


class Mask:
    """`people`, `hosts`: names known beforehand; `hidden`: values that are secret wherever they stand.
    learn() finds more names; call it with every text before the first text()."""

    def __init__(self, people: Iterable[str], hosts: Iterable[str], hidden: Iterable[str] = ()) -> None:
        self._key = secrets.token_bytes(32)
        self._hidden = sorted(
            {form for each in hidden if len(each) >= _SHORTEST_SECRET for form in _forms(each)},
            key=lambda form: (-len(form), form),
        )
        self._names: dict[str, str] = {}
        self._masks: dict[str, dict[str, str]] = {}
        self._pattern: re.Pattern[str] | None = None
        for host in hosts:
            self._learn_host(host)
        for name in people:
            self._learn(name, "user")

    @property
    def counts(self) -> Mapping[str, int]:
        """How many different ones of each kind were masked: secret, user, host, address, mac, serial."""
        return {kind: len(found) for kind, found in self._masks.items() if found}

    def learn(self, text: str) -> None:
        """Take note of the people and hosts that a text names."""
        text = private.ANSI.sub("", text)
        for pattern in (private.HOME, private.USER, private.AT):
            for match in pattern.finditer(text):
                measure = pattern is private.AT and re.match(r"\d+(?!.*\..*\.)", match[3])  # loss@910B3
                if private.is_name(match[1]) and not measure:
                    self._learn(match[1], "user")
        for pattern, group in ((private.AT, 3), (private.HOST, 1)):
            for match in pattern.finditer(text):
                if private.is_name(match[group]):
                    self._learn_host(match[group])
        for match in private.IN_URL.finditer(text):
            if private.is_name(match[1]) and not private.is_public(match[1]):
                self._learn(match[1], "host")

    def text(self, text: str, versions: bool = False) -> str:
        """The text without them. versions: it holds versions of four numbers, which stay where the line calls
        them so."""
        text = private.ANSI.sub("", text)
        for value in self._hidden:
            text = text.replace(value, self._mask("secret", value))
        named = private.NAMED if private.speaks_of_secrets(text) else ()
        for pattern in (*private.FORMS, *named):
            text = pattern.sub(lambda match: match[1] + self._secret(match[2]), text)
        text = private.SERIAL.sub(lambda match: match[1] + self._mask("serial", match[2]), text)
        text = private.MAC.sub(lambda match: self._mac(match[0]), text)
        text = private.COLONS.sub(lambda match: self._six(match[0]), text)
        text = private.QUADS.sub(lambda match: self._four(match, versions), text)
        text = private.MAIL.sub(self._mail, text)
        return self._without_names(text)

    def _mail(self, match: re.Match[str]) -> str:
        host = match[3] if private.is_public(match[3]) else self._mask("host", match[3].lower())
        return self._mask("user", match[1].lower()) + match[2] + host

    def _without_names(self, text: str) -> str:
        if not self._names:
            return text
        if self._pattern is None:
            longest = sorted(self._names, key=len, reverse=True)
            names = "|".join(map(re.escape, longest))
            self._pattern = re.compile(rf"{_BEGINS}(?:{names})(?![^\W_])", re.IGNORECASE)

        def masked(match: re.Match[str]) -> str:
            name = match[0].lower()
            return self._mask(self._names[name], name) if name in self._names else match[0]

        return self._pattern.sub(masked, text)

    def _learn_host(self, name: str) -> None:
        """A host's name, and its first part."""
        if not re.fullmatch(r"[\d.]+", name):
            self._learn(name, "host")
            self._learn(name.partition(".")[0], "host")

    def _learn(self, name: str, kind: str) -> None:
        name = name.lower()
        long = len(name) >= _SHORTEST_NAME and not name.isdigit()
        if long and name not in private.COMMON and name not in self._names:
            self._names[name] = kind
            self._pattern = None

    def _secret(self, value: str) -> str:
        """A secret's mask, in the quotes that it has."""
        quote = value[0] if value[:1] in ("'", '"') and len(value) > 1 and value[-1] == value[0] else ""
        inner = value[len(quote) : len(value) - len(quote)]
        return (
            value
            if not inner or private.IS_MASK.fullmatch(inner)
            else quote + self._mask("secret", inner) + quote
        )

    def _mask(self, kind: str, original: str) -> str:
        found = self._masks.setdefault(kind, {})
        if original not in found:
            number = len(found) + 1
            found[original] = f"<secret-{number}>" if kind == "secret" else f"{kind}-{number}"
        return found[original]

    def _mac(self, original: str) -> str:
        """Another one, of those that nobody makes (IEEE 802: the bit of local administration is set)."""
        plain = re.sub("[^0-9a-f]", "", original.lower())
        size = len(plain) // 2 - 1
        digest = hashlib.blake2b(plain.encode(), key=self._key, digest_size=size).digest()
        self._masks.setdefault("mac", {})[plain] = ""
        digits = iter((b"\x02" + digest).hex())
        return re.sub("[0-9A-Fa-f]", lambda _: next(digits), original)

    def _four(self, match: re.Match[str], versions: bool) -> str:
        text = match.string
        line = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
        if versions and (_MORE_PARTS.match(text, match.end()) or _OF_VERSION.search(line)):
            return match[0]
        mark = "-" if "-" in match[0] else "."
        numbers = [int(part) for part in match[0].split(mark)]
        if max(numbers) > 255 or numbers[0] in (127, 255) or not any(numbers):
            return match[0]
        return self._address(ipaddress.IPv4Address(bytes(numbers))).replace(".", mark)

    def _six(self, run: str) -> str:
        """What of a run of digits and colons is an address: all of it, or what follows a colon."""
        last = max(0, len(run) - _LONGEST_SIX)
        for start in (last, *(i + 1 for i in range(last, len(run)) if run[i] == ":")):
            for end in (len(run), len(run.rstrip(".")), len(run.rstrip(".:"))):
                try:
                    found = ipaddress.IPv6Address(run[start:end])
                except ValueError:
                    continue
                if found.is_loopback or found.is_unspecified:
                    return run
                return run[:start] + self._address(found) + run[end:]
        return run

    def _address(self, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
        found = self._masks.setdefault("address", {})
        if str(address) not in found:
            found[str(address)] = self._other(address)
        return found[str(address)]

    def _other(self, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
        width, bits, out = address.max_prefixlen, int(address), 0
        size = width // 8 + 1
        for i in range(width):
            prefix = (1 << i | bits >> (width - i)).to_bytes(size, "big")
            flip = hashlib.blake2b(prefix, key=self._key, digest_size=1).digest()[0] & 1
            flip = 0 if _tells_the_kind(width, i, bits >> (width - i)) else flip
            out = out << 1 | (bits >> (width - 1 - i) & 1) ^ flip
        return str(type(address)(out))


def _tells_the_kind(width: int, length: int, prefix: int) -> bool:
    """Whether the bit behind these first `length` bits decides what kind of address it is (private, of the
    link, of groups), which stays."""
    if length < (8 if width == 32 else 16):
        return True
    nets = (net for net in _KINDS if net.max_prefixlen == width and net.prefixlen > length)
    return any(int(net.network_address) >> (width - length) == prefix for net in nets)


def _forms(value: str) -> Iterator[str]:
    """How a value may be written: as it is, in an address of the web, in base64."""
    yield value
    yield quote(value, safe="")
    yield b64encode(value.encode("utf-8", "surrogateescape")).decode().rstrip("=")
