"""Masking: nothing private survives, what was alike stays alike, and versions stay."""

from __future__ import annotations

import re
import string
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tengtune.host.mask import Mask
from tengtune.host.private import COMMON, is_secret

V4 = st.integers(1 << 24, (224 << 24) - 1).filter(lambda n: n >> 24 != 127).map(IPv4Address)
V6 = st.integers(0x2000 << 112, (0x4000 << 112) - 1).map(IPv6Address)
WORD = st.text(string.ascii_lowercase, min_size=4, max_size=9).filter(lambda word: word not in COMMON)
SECRET = st.text(string.ascii_letters + string.digits + "-_.~+/", min_size=8, max_size=40).map("Q7".__add__)
TOKEN = st.text(string.ascii_letters + string.digits, min_size=16, max_size=40)
OCTETS = st.binary(min_size=6, max_size=6)

FORMS = {
    "address": """address_0={} | ip[{}]:16666 | tcp://{}:80/x | from {}. | ({}) | a,{},b | IP={} | ip{}""",
    "address 6": """addr:{} | [{}]:8080 | ip={} | rank 3: {} | {}%eth0 | {}/64 | ({}) | is {}.""",
    "mac": """ether {} | HWaddr={} | [{}] | mac:{} x""",
    "secret": """HF_TOKEN={} | password: {} | "api_key": "{}" | 'secret' = '{}' | --token {} | --password={}
        | https://me:{}@hub.example/x | https://hub.example/?access_token={}&x=1 | export WANDB_API_KEY={};
        | Authorization: Bearer {} | aws_secret_access_key={} | PGPASSWORD={} | {{token: {}, x: 1}}""",
    "token": """curl hf_{} | x ghp_{} y | ["sk-{}"]
        | -----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----""",
    "called": """"password" : ["{}", "x"] | \\"token\\": \\"{}\\" | ?x=1&token%3D{}&y | DB_PASS={}
        | Authorization: {} | Authorization: Token {} | Proxy-Authorization: Digest a="x", response="{}"
        | \x1b[1mtoken\x1b[0m=\x1b[32m{}
        | accessKey={} | send?key={} | AK: {} | 密码：{} | 令牌={} | <password>{}</password> | token := {}
        | {{auth: {{pass: {}}}}} | key="password" value="{}" | ('password', '{}') | password=ab;{}
        | token: !!str {} | password: two words {} | SECRET='a'"{}" | Password for 'x': {}
        | https://h.example/bot/v2/hook/{}aaaaaaaaaaaa | http:\\/\\/me:{}@hub.example""",
    "serial": """Serial Number : {} | "serial": "{}" | SN: {} | 序列号：{} | NDie ID: {} | machine-id={}""",
    "person elsewhere": r"""C:\Users\{}\x | %2Fhome%2F{}%2Fx | username: {} | user={} | {}%40corp.example
        | hostname={} | http://{}.example:80/x""",
    "mac elsewhere": """{}-eth0 | _{}_ | \x1b[31m{}\x1b[0m""",
    "person": """/home/{}/x | HOME=/home/{} | mail {}@corp.example | ssh {}@h | '/Users/{}'""",
}
VALUES: dict[str, st.SearchStrategy[object]] = {
    "address": V4,
    "address 6": V6,
    "mac": OCTETS.map(lambda octets: octets.hex(":")),
    "secret": SECRET,
    "token": TOKEN,
    "person": WORD,
    "called": SECRET,
    "serial": TOKEN,
    "person elsewhere": WORD,
    "mac elsewhere": OCTETS.map(lambda octets: octets.hex(":")),
}


@st.composite
def private(draw: st.DrawFn) -> tuple[str, str]:
    """Something private, and a line that holds it."""
    kind = draw(st.sampled_from(sorted(FORMS)))
    value = str(draw(VALUES[kind]))
    return value, draw(st.sampled_from(FORMS[kind].split("|"))).strip().format(value)


@given(st.lists(private(), min_size=1, max_size=8), st.booleans())
def test_nothing_private_survives(found: list[tuple[str, str]], versions: bool) -> None:
    text = "\n".join(f"{line} | log of step 7" for _, line in found)
    mask = Mask([], [])
    mask.learn(text)
    masked = mask.text(text, versions)
    for value, line in found:
        assert not re.search(rf"(?<![a-z0-9]){re.escape(value)}(?![a-z0-9])", masked), (line, masked)
    assert masked.count(" | log of step 7") == len(found)


@given(WORD, WORD, SECRET)
def test_names_that_are_known_go_wherever_they_stand(person: str, host: str, secret: str) -> None:
    mask = Mask([person], [f"{host}.corp.example"], [secret])
    text = f"{person} on {host} ({host}.corp.example): {secret}; /data/{person}_1/{host}-7; {person.upper()}x"
    masked = mask.text(text)
    for value in {person, host} - {"corp", "example", "data"}:
        assert not re.search(rf"(?<![a-zA-Z0-9]){value}(?![a-zA-Z0-9])", masked)
    assert secret not in masked


def common(a: IPv4Address | IPv6Address, b: IPv4Address | IPv6Address) -> int:
    """How many leading bits two addresses share."""
    return a.max_prefixlen - (int(a) ^ int(b)).bit_length()


@pytest.mark.parametrize("kind", [V4, V6], ids=["4", "6"])
def test_subnets_stay(kind: st.SearchStrategy[IPv4Address | IPv6Address]) -> None:
    @given(kind, kind, st.integers(0, 20))
    def holds(one: IPv4Address, other: IPv4Address, bits: int) -> None:
        near = type(one)(int(one) ^ 1 << bits)
        mask = Mask([], [])
        first, second, third = (
            ip_address(mask.text(f"ip {each} of card").split()[1]) for each in (one, other, near)
        )
        assert ip_address(mask.text(f"ip {one} of card").split()[1]) == first
        assert common(first, second) == common(one, other)
        assert common(first, third) == common(one, near) == one.max_prefixlen - 1 - bits

    holds()


def test_two_masks_differ() -> None:
    assert Mask([], []).text("10.1.2.3") != Mask([], []).text("10.1.2.3")


@pytest.mark.parametrize(
    "text",
    [
        "Version=24.1.0.3\nrequired_firmware_version=[7.0.0.1,7.8.0.2.212]",
        "runtime_running_version=[7.6.0.1.220:8.0.0.1]",
        "| npu-smi 24.1.0.3              Version: 24.1.0.3 |",
        "netmask_0=255.255.252.0, 127.0.0.1, 0.0.0.0, ::1, ::",
        "0000:C1:00.0 at 12:34:56, std::max(x), 3.141.59",
        "max_new_tokens: 512, tokenizer: qwen, pairs of keys: 3, tokens = 17",
        "author: li, token_type_ids: 3, task: 8, monkey: 3, 2026-12-01-10-21-19-33",
        "driver@25.3.rc1, card 910B3@0, loss@910B3, torch@2.7.1: 910B3, 25.3.rc1, user: OK",
        "https://www.hiascend.com/doc, tcp://127.0.0.1:29500",
        "| 0     910B3  | OK   | 93.2   47   0 / 0 | 3314 / 65536 |",
    ],
)
def test_what_tells_of_nobody_stays(text: str) -> None:
    mask = Mask(["root", "npu"], ["localhost"])
    mask.learn(text)
    assert mask.text(text, versions=True) == text


def test_outside_of_versions_four_numbers_are_an_address() -> None:
    assert "24.1.0.3" not in Mask([], []).text("Version=24.1.0.3")
    assert "10.0.0.9" not in Mask([], []).text("to 10.0.0.9.5060")


def test_what_is_alike_stays_alike() -> None:
    mask = Mask(["wang"], ["node1"])
    text = "wang:10.0.0.1 token=abcdefgh node1 wang 10.0.0.1 token=abcdefgh node1 token=ABCDEFGH"
    first, second = mask.text(text).split(" wang"), mask.text(text)
    parts = second.split()
    assert len(first) == 1
    assert parts[1] == parts[5] != parts[7]
    assert parts[2] == parts[6] == "host-1"
    assert parts[0] == f"{parts[3]}:{parts[4]}"
    assert mask.counts == {"user": 1, "host": 1, "address": 1, "secret": 2}


def test_known_networks_stay_networks() -> None:
    """hccn.conf of eight cards in one subnet, and one outside."""
    mask = Mask([], [])
    lines = [f"address_{n}=10.0.0.{n + 10}" for n in range(8)] + ["address_8=10.0.1.10"]
    found = re.findall(r"=(\S+)", mask.text("\n".join(lines)))
    networks = [ip_network(f"{each}/24", strict=False) for each in found]
    assert len(set(networks[:8])) == 1
    assert networks[8] != networks[0]
    assert networks[8].supernet(new_prefix=16) == networks[0].supernet(new_prefix=16)


@pytest.mark.parametrize(
    "text", ["192.168.3.7", "10.1.2.3", "172.20.1.9", "169.254.7.7", "8.8.4.4", "fd00::7:1", "fe80::9:2"]
)
def test_an_address_becomes_one_of_its_kind(text: str) -> None:
    """Whatever the key: none becomes one of groups, of the link or of this machine that was not."""
    before = ip_address(text)
    kinds = ("is_private", "is_global", "is_multicast", "is_link_local", "is_loopback", "is_reserved")
    for _ in range(30):
        after = ip_address(Mask([], []).text(text))
        assert [getattr(after, kind) for kind in kinds] == [getattr(before, kind) for kind in kinds]


@pytest.mark.parametrize("name", ["HF_TOKEN", "GH_TOKEN", "DASHSCOPE_API_KEY", "DB_PASSWORD"])
def test_variables_that_hold_secrets(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize("name", ["HOME", "TOKENIZERS_PARALLELISM", "HCCL_BUFFSIZE", "ASCEND_HOME_PATH"])
def test_variables_that_hold_none(name: str) -> None:
    assert not is_secret(name)


def test_keys_that_a_cut_left_the_end_of() -> None:
    text = "step 1\nMIIabc123\nQ7f+/x==\n-----END RSA PRIVATE KEY-----\nstep 2 of 3\n"
    assert Mask([], []).text(text) == "<secret-1>-----\nstep 2 of 3\n".join(["step 1\n", ""])


def test_what_is_known_to_be_secret_is_found_in_other_forms() -> None:
    mask = Mask([], [], ["pass/word 1"])
    assert mask.text("pass%2Fword%201 cGFzcy93b3JkIDE=") == "<secret-2> <secret-1>="


def test_names_go_in_small_and_in_large_letters() -> None:
    assert Mask(["wang"], ["Node7"]).text("WANG on node7, Wang") == "user-1 on host-1, user-1"


def test_mail_goes_by_number_too() -> None:
    assert Mask([], []).text("an 12345678@qq.com.") == "an user-1@host-1."


@pytest.mark.parametrize(
    "piece", ["token", "a.", "1:", "1.", "://", 'token="', "0a:", "token: [", "aGVsbG8=\n"]
)
def test_long_runs_take_no_longer(piece: str) -> None:
    """Without a blank: what grew with their square took minutes for these, and hours for a log."""
    text = piece * (50_000 // len(piece))
    mask = Mask([], [])
    mask.learn(text)
    assert mask.text(text)


def test_a_text_of_several_lines_goes_whole() -> None:
    text = "token: |\n  abcdef\n  ghijkl\nlr: 3\n"
    assert Mask([], []).text(text).endswith("  <secret-1>\nlr: 3\n")
