"""Taking out of texts what is nobody else's business: secrets, and the names and addresses of people, hosts
and networks. What was alike before is alike after, so that texts can still be compared.

Addresses become other addresses. Two that share their first n bits share n bits afterwards, and no more: what
is in one subnet stays in one (J. Xu et al., "Prefix-preserving IP address anonymization", 2002). The key is
made anew for each Mask and kept nowhere.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
import secrets
from collections.abc import Iterable, Mapping

SECRET_WORDS = (
    r"token(?!s|iz)|secret|passwo?r?d|passwd|pwd|passphrase|credential|signature|cookie|session[_-]?id"
    r"|auth(?!or)|api[_-]?key|[_-]key"
)
_NAME = rf"[\w.-]*(?:{SECRET_WORDS})[\w.-]*"
_VALUE = r""""(?:[^"\\\n]|\\.)*"|'[^'\n]*'|[^\s\0"',;&\])}]+"""
_KEYED = re.compile(rf"""((?<![\w.-]){_NAME}["']?\s*[=:]\s*|--{_NAME}\s+)({_VALUE})""", re.IGNORECASE)
_SECRET_NAME = re.compile(_NAME, re.IGNORECASE)
_SCHEMES = re.compile(r"(\b(?:bearer|basic)\s+)([\w.~+/=-]{8,})", re.IGNORECASE)
_IN_URLS = re.compile(
    r"(\b[a-z][a-z0-9+.-]*://)([^/\s\0:]*:[^\s\0\"']*|[^/\s\0]+)@",  # a password may hold / and @
    re.IGNORECASE,
)
_BARE = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|\b(?:hf|ghp|gho|ghu|ghs|ghr|glpat|github_pat|sk|xox[abprs])[_-][\w-]{12,}"
    r"|\b(?:AKIA|ASIA|LTAI)\w{12,}|\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*"
    r"|\bms-[0-9a-f]{8}-[0-9a-f-]{20,}",
    re.DOTALL,
)
_SERIAL = re.compile(r"(\b(?:serial\s*(?:number|no\.?)|uuid|vdie id)\s*[:=]\s*)(\S[^\n|]*)", re.IGNORECASE)
_MAC = re.compile(r"(?<![\w-])(?:[0-9a-f]{2}([:-]))(?:[0-9a-f]{2}\1){4,}[0-9a-f]{2}(?![\w-])", re.IGNORECASE)
_COLONS = re.compile(r"(?<![\w.])[0-9a-f]*:[0-9a-f.]*:[0-9a-f:.]*", re.IGNORECASE)
_QUADS = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?!\d)")
_MORE_PARTS = re.compile(r"\.\d")
_OF_VERSION = re.compile(r"(?:version|npu-smi)[^\n]*\Z", re.IGNORECASE)
_AT = re.compile(r"(?<![\w.%+-])([\w.%+-]+)@([\w-]+(?:\.[\w-]+)*)")
_HOME = re.compile(r"/(?:home|Users)/([^/\s\0:\"',;]+)")
_IS_MASK = re.compile(r"<secret-\d+>")
_SHORTEST_SECRET = 6
_COMMON = """
root nobody user users admin administrator ubuntu debian centos openeuler ec2-user docker test home
data run model models log logs dev usr local etc proc sys bin lib lib64 opt var tmp localhost host
npu smi npu-smi ascend info huawei driver firmware cann version python torch mindspore link status
health card cards HwHiAiUser HwDmUser HwBaseUser rank train name none null true false ok up down and
the enabled disabled required optional
"""
COMMON = frozenset(_COMMON.split())
"""Names that tell of nobody, and words that the texts are full of: they stay."""


class Mask:
    """`people`, `hosts`: names known beforehand; `hidden`: values that are secret wherever they stand.
    learn() finds more names; call it with every text before the first text()."""

    def __init__(self, people: Iterable[str], hosts: Iterable[str], hidden: Iterable[str] = ()) -> None:
        self._key = secrets.token_bytes(32)
        self._hidden = sorted(
            {each for each in hidden if len(each) >= _SHORTEST_SECRET}, key=len, reverse=True
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
        for match in _HOME.finditer(text):
            self._learn(match[1], "user")
        for match in _AT.finditer(text):
            self._learn(match[1], "user")
            self._learn_host(match[2])

    def text(self, text: str, versions: bool = False) -> str:
        """The text without them. versions: it holds versions of four numbers, which stay where the line calls
        them so."""
        for value in self._hidden:
            text = text.replace(value, self._mask("secret", value))
        text = _BARE.sub(lambda match: self._mask("secret", match[0]), text)
        text = _SCHEMES.sub(lambda match: match[1] + self._secret(match[2]), text)
        text = _IN_URLS.sub(lambda match: f"{match[1]}{self._secret(match[2])}@", text)
        text = _KEYED.sub(lambda match: match[1] + self._secret(match[2]), text)
        text = _SERIAL.sub(lambda match: match[1] + self._mask("serial", match[2].rstrip()), text)
        text = _MAC.sub(lambda match: self._mac(match[0]), text)
        text = _COLONS.sub(lambda match: self._six(match[0]), text)
        text = _QUADS.sub(lambda match: self._four(match, versions), text)
        return self._without_names(text)

    def _without_names(self, text: str) -> str:
        if not self._names:
            return text
        if self._pattern is None:
            longest = sorted(self._names, key=len, reverse=True)
            names = "|".join(map(re.escape, longest))
            self._pattern = re.compile(rf"(?<![^\W_])(?:{names})(?![^\W_])")
        return self._pattern.sub(lambda match: self._mask(self._names[match[0]], match[0]), text)

    def _learn_host(self, name: str) -> None:
        """A host's name, and its first part."""
        if not re.fullmatch(r"[\d.]+", name):
            self._learn(name, "host")
            self._learn(name.partition(".")[0], "host")

    def _learn(self, name: str, kind: str) -> None:
        if name and name not in COMMON and not name.isdigit() and name not in self._names:
            self._names[name] = kind
            self._pattern = None

    def _secret(self, value: str) -> str:
        """A secret's mask, in the quotes that it has."""
        quote = value[0] if value[:1] in ("'", '"') and len(value) > 1 and value[-1] == value[0] else ""
        inner = value[len(quote) : len(value) - len(quote)]
        return (
            value if not inner or _IS_MASK.fullmatch(inner) else quote + self._mask("secret", inner) + quote
        )

    def _mask(self, kind: str, original: str) -> str:
        found = self._masks.setdefault(kind, {})
        if original not in found:
            number = len(found) + 1
            found[original] = f"<secret-{number}>" if kind == "secret" else f"{kind}-{number}"
        return found[original]

    def _mac(self, original: str) -> str:
        """Another one, of those that nobody makes (IEEE 802: the bit of local administration is set)."""
        separator, plain = original[2], re.sub("[:-]", "", original.lower())
        size = len(plain) // 2 - 1
        digest = hashlib.blake2b(plain.encode(), key=self._key, digest_size=size).digest()
        self._masks.setdefault("mac", {})[plain] = ""
        return separator.join(f"{byte:02x}" for byte in b"\x02" + digest)

    def _four(self, match: re.Match[str], versions: bool) -> str:
        text = match.string
        line = text[text.rfind("\n", 0, match.start()) + 1 : match.start()]
        if versions and (_MORE_PARTS.match(text, match.end()) or _OF_VERSION.search(line)):
            return match[0]
        numbers = [int(part) for part in match[0].split(".")]
        if max(numbers) > 255 or numbers[0] in (127, 255) or not any(numbers):
            return match[0]
        return self._address(ipaddress.IPv4Address(bytes(numbers)))

    def _six(self, run: str) -> str:
        """What of a run of digits and colons is an address: all of it, or what follows a colon."""
        for start in (0, *(i + 1 for i, character in enumerate(run) if character == ":")):
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
        width, bits, out = address.max_prefixlen, int(address), 0
        size = width // 8 + 1
        for i in range(width):
            prefix = (1 << i | bits >> (width - i)).to_bytes(size, "big")
            flip = hashlib.blake2b(prefix, key=self._key, digest_size=1).digest()[0] & 1
            out = out << 1 | (bits >> (width - 1 - i) & 1) ^ flip
        self._masks.setdefault("address", {})[str(address)] = ""
        return str(type(address)(out))


def is_secret(variable: str) -> bool:
    """Whether a variable of this name holds a secret."""
    return _SECRET_NAME.fullmatch(variable) is not None
