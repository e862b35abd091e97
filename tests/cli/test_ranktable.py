"""`tengtune ranktable`: tables from every source, merged, and judged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tengtune.cluster import card_list, ranktable
from tengtune.cluster.ranktable import Device, Server
from tengtune.host import hccn
from tengtune.host.hccn import Port
from tengtune.ui.problems import Problem

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "hccn"

# As hccl_tools.py of mindformers r1.0 writes it: the keys in this order, indent 4, all values strings.
GOLDEN = """{
    "version": "1.0",
    "server_count": "1",
    "server_list": [
        {
            "server_id": "10.0.0.1",
            "device": [
                {
                    "device_id": "1",
                    "device_ip": "10.0.137.1",
                    "rank_id": "0"
                },
                {
                    "device_id": "4",
                    "device_ip": "10.0.170.4",
                    "rank_id": "1"
                }
            ],
            "host_nic_ip": "reserve"
        }
    ],
    "status": "completed"
}"""


def tengtune(folder: Path, *arguments: str, path: str = "") -> tuple[int, str]:
    environment = {**os.environ, "TENGTUNE_LANG": "en", "PATH": f"{path}:{os.environ['PATH']}"}
    command = [sys.executable, "-m", "tengtune", "ranktable", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_a_table_of_given_addresses_is_the_references_byte_for_byte(tmp_path: Path) -> None:
    code, said = tengtune(
        tmp_path, "make", "1,4", "--server-ip", "10.0.0.1", "--ip", "1=10.0.137.1", "--ip", "4=10.0.170.4"
    )
    assert code == 0, said
    assert (tmp_path / "hccl_2p_14_10.0.0.1.json").read_text() == GOLDEN
    assert "1, 4: a server of the first 910 generation" in said  # out of both rings
    assert "Not needed by msrun" in said


def test_the_hosts_file_and_its_tool(tmp_path: Path) -> None:
    """hccn.conf knows cards 0 and 7; the tool is asked first and knows card 0 otherwise."""
    conf = str(FIXTURES / "hccn.conf")
    assert tengtune(tmp_path, "make", "0,7", "--server-ip", "a", "--hccn", conf, "--out", "conf.json")[0] == 0
    assert addresses(tmp_path / "conf.json") == ["10.0.137.205", "10.0.170.143"]
    tool = tmp_path / "bin" / "hccn_tool"
    tool.parent.mkdir()
    text = (FIXTURES / "ip_g.txt").read_text()
    tool.write_text(f"#!/bin/sh\n[ $1 = -i ] && [ $2 = 3 ] && [ $3 = -ip ] && [ $4 = -g ] && echo '{text}'\n")
    tool.chmod(0o755)
    code, said = tengtune(
        tmp_path, "make", "3", "--server-ip", "a", "--out", "tool.json", path=str(tool.parent)
    )
    assert code == 0, said
    assert addresses(tmp_path / "tool.json") == ["10.0.112.213"]
    code, said = tengtune(tmp_path, "make", "[0,2)", "--server-ip", "a", path=str(tool.parent))
    assert (code, "code ranktable.no_port" in said) == (2, True)
    assert "of card 0, 1" in said


def addresses(path: Path) -> list[str]:
    return [device["device_ip"] for device in json.loads(path.read_text())["server_list"][0]["device"]]


def test_servers_are_merged_in_the_order_given(tmp_path: Path) -> None:
    for name in ("b", "a"):
        table = ranktable.make(name, {c: Port(f"10.0.{ord(name)}.{c}") for c in range(2)})
        ranktable.write(table, tmp_path / f"{name}.json")
    assert tengtune(tmp_path, "merge", "b.json", "a.json")[0] == 0
    table, faults = ranktable.read(tmp_path / "hccl_2s_4p.json")
    assert faults == []
    assert [(s.name, [(d.card, d.rank) for d in s.devices]) for s in table] == [
        ("b", [(0, 0), (1, 1)]),
        ("a", [(0, 2), (1, 3)]),
    ]
    assert tengtune(tmp_path, "check", "hccl_2s_4p.json")[1].startswith("sound: 2 servers, 4 ranks")
    (tmp_path / "pod.json").write_text(json.dumps(super_pod()))
    code, said = tengtune(tmp_path, "merge", "b.json", "pod.json", "--out", "lost.json")
    assert (code, "code ranktable.version" in said, (tmp_path / "lost.json").exists()) == (2, True, False)
    (tmp_path / "early.json").write_text(
        (tmp_path / "a.json").read_text().replace("completed", "initializing")
    )
    code, said = tengtune(tmp_path, "merge", "b.json", "early.json", "--out", "lost.json")
    assert (code, "initializing" in said, (tmp_path / "lost.json").exists()) == (2, True, False)
    code, said = tengtune(tmp_path, "merge", "b.json", "b.json", "--out", "twice.json")
    assert (code, "Server b stands 2 times" in said, (tmp_path / "twice.json").exists()) == (2, True, False)


@pytest.mark.parametrize(
    ("text", "cards", "doubtful"),
    [
        ("[0,8)", [0, 1, 2, 3, 4, 5, 6, 7], False),
        ("[4, 8)", [4, 5, 6, 7], False),
        ("[0,8]", [0, 1, 2, 3, 4, 5, 6, 7], True),
        ("［0，2）", [0, 1], False),
        ("0-7", [0, 1, 2, 3, 4, 5, 6, 7], False),
        ("0,1,4", [0, 1, 4], False),
        ("0、1，4", [0, 1, 4], False),
        ("6-7,0-1", [6, 7, 0, 1], False),
        ("5", [5], False),
    ],
)
def test_lists_of_cards(text: str, cards: list[int], doubtful: bool) -> None:
    assert card_list.parse(text) == (cards, doubtful)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "[0,0)",
        "[3,1]",
        "3-1",
        "0,,1",
        "0-",
        "(0,8)",
        "0-9999999",
        "0 - - 3",
        "0 1",
        "0-3 5",
        "[0 ,1 0)",
    ],
)
def test_what_is_no_list_of_cards(text: str) -> None:
    with pytest.raises(Problem) as caught:
        card_list.parse(text)
    assert caught.value.code == "ranktable.bad_cards"


def test_a_card_twice() -> None:
    with pytest.raises(Problem) as caught:
        card_list.parse("0-3,2")
    assert (caught.value.code, caught.value.values["card"]) == ("ranktable.card_twice", 2)


@given(st.text("[](),-0123456789 ，a", max_size=12))
def test_any_text_is_a_list_or_a_problem(text: str) -> None:
    try:
        cards, _ = card_list.parse(text)
    except Problem:
        return
    assert cards
    assert len(set(cards)) == len(cards)


def server(name: str = "s", start: int = 0, cards: tuple[int, ...] = tuple(range(8))) -> Server:
    devices = (Device(card, f"10.{start}.0.{card}", start + i) for i, card in enumerate(cards))
    return Server(name, tuple(devices))


def changed(table: Server, index: int, **values: Any) -> Server:
    devices = list(table.devices)
    devices[index] = Device(**{**vars(devices[index]), **values})
    return Server(table.name, tuple(devices))


@pytest.mark.parametrize(
    ("table", "codes"),
    [
        ([server()], []),
        ([server("a"), server("b", 8)], []),
        ([server("a"), server("a", 8)], ["server_twice"]),
        ([changed(server(), 3, address="10.0.0.1")], ["address_twice"]),
        ([changed(changed(server(), 3, address="fd00::1"), 4, address="FD00:0:0::1")], ["address_twice"]),
        ([changed(server(), 3, address="0.0.0.0")], ["unusable"]),
        ([changed(server(), 3, address="127.0.0.1")], ["unusable"]),
        ([changed(server(), 7, rank=8)], ["ranks", "interleaved"]),
        ([changed(server(), 7, rank=6)], ["ranks"]),
        ([changed(server(), 7, card=6)], ["server_card_twice"]),
        ([changed(server(), 7, address=None)], ["no_address"]),
        (
            [
                Server("a", (Device(0, "10.0.0.1", 0), Device(1, "10.0.0.2", 2))),
                Server("b", (Device(0, "10.0.1.1", 1), Device(1, "10.0.1.2", 3))),
            ],
            ["interleaved", "interleaved"],
        ),
    ],
)
def test_faults_of_a_table(table: list[Server], codes: list[str]) -> None:
    assert [fault.code.removeprefix("ranktable.") for fault in ranktable.faults(table)] == codes


def test_only_several_servers_need_addresses() -> None:
    (alone,) = ranktable.faults([changed(server(), 0, address=None)])
    (several,) = ranktable.faults([changed(server("a"), 0, address=None), server("b", 8)])
    assert (alone.blocking, several.blocking) == (False, True)


@pytest.mark.parametrize(
    ("cards", "crosses"),
    [
        ((0,), False),
        ((0, 3), False),
        ((4, 5, 6, 7), False),
        (tuple(range(8)), False),
        ((3, 4), True),
        ((2, 3, 4, 5), True),
        ((0, 1, 2), True),
        ((0, 1, 2, 3, 4, 5), True),
    ],
)
def test_the_rings_of_the_first_generation(cards: tuple[int, ...], crosses: bool) -> None:
    assert ranktable.crosses_rings(cards) is crosses


def test_subnets() -> None:
    def ports(network: Callable[[int], int], mask: str | None = "255.255.255.0") -> dict[int, Port]:
        return {card: Port(f"10.0.{network(card)}.{card + 1}", mask) for card in range(8)}

    assert ranktable.network_fault(ports(lambda card: 0)) is None  # 910B
    assert ranktable.network_fault(ports(lambda card: card % 4)) is None  # the first 910
    assert ranktable.network_fault(ports(lambda card: card, None)) is None  # nothing is known
    assert ranktable.network_fault(ports(lambda card: card // 4)) is not None
    assert read_conf_networks() == {"10.0.0.0/16"}


def read_conf_networks() -> set[str | None]:
    return {port.network for port in hccn.read_conf(FIXTURES / "hccn.conf").values()}


def test_an_address_that_is_none_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "hccn.conf").write_text("netmask_0=255.255.0.0\naddress_0=10.0.0\n")
    with pytest.raises(Problem) as caught:
        hccn.read_conf(tmp_path / "hccn.conf")
    assert (caught.value.code, caught.value.where) == (
        "ranktable.bad_address",
        f"{tmp_path / 'hccn.conf'}:2",
    )


def test_ranks_keep_their_order_when_tables_are_merged() -> None:
    table = [Server("a", (Device(0, "10.0.0.1", 1), Device(1, "10.0.0.2", 0)))]
    (merged,) = ranktable.merge([table])
    assert [(d.card, d.rank) for d in merged.devices] == [(1, 0), (0, 1)]


def test_a_table_with_gaps_is_not_merged(tmp_path: Path) -> None:
    ranktable.write([changed(server("a"), 7, rank=9)], tmp_path / "a.json")
    ranktable.write([server("b", 8)], tmp_path / "b.json")
    code, said = tengtune(tmp_path, "merge", "a.json", "b.json", "--out", "c.json")
    assert (code, "code ranktable.unsound" in said, (tmp_path / "c.json").exists()) == (2, True, False)


@pytest.mark.parametrize("name", ["../../evil", "a/b", "", "10.0.0.999", "1", "a b"])
def test_what_is_no_server(name: str) -> None:
    with pytest.raises(Problem) as caught:
        ranktable.make(name, {0: Port("10.0.0.1")})
    assert caught.value.code == "ranktable.bad_server"


def test_numbers_without_end(tmp_path: Path) -> None:
    digits = "9" * 5000
    found = super_pod()
    found["server_list"][0]["device"][0]["device_id"] = digits
    (tmp_path / "t.json").write_text(json.dumps(found))
    assert "code ranktable.no_table" in tengtune(tmp_path, "check", "t.json")[1]
    assert "code ranktable.bad_pair" in tengtune(tmp_path, "make", "0", "--ip", f"{digits}=10.0.0.1")[1]
    (tmp_path / "hccn.conf").write_text(f"\ufeffaddress_0=10.0.0.1\naddress_{digits}=10.0.0.2\n", "utf-8")
    assert hccn.read_conf(tmp_path / "hccn.conf") == {0: Port("10.0.0.1")}
    (tmp_path / "hccn.conf").write_text("address_0=10.0.0.1\naddress_0=10.0.0.2\n")
    with pytest.raises(Problem) as caught:
        hccn.read_conf(tmp_path / "hccn.conf")
    assert caught.value.code == "ranktable.conf_twice"


def test_a_super_pod_without_a_list(tmp_path: Path) -> None:
    found = super_pod()
    found["super_pod_list"] = [{"server_list": 5}, 7]
    (tmp_path / "t.json").write_text(json.dumps(found))
    (fault,) = ranktable.read(tmp_path / "t.json")[1]
    assert fault.code == "ranktable.super_pod"


def super_pod() -> dict[str, Any]:
    device = {"device_id": "0", "device_ip": "10.0.0.1", "super_device_id": "0", "rank_id": "0"}
    return {
        "version": "1.2",
        "server_count": "1",
        "server_list": [{"server_id": "s", "host_ip": "10.1.0.1", "device": [device]}],
        "super_pod_list": [{"super_pod_id": "0", "server_list": [{"server_id": "s"}]}],
        "status": "completed",
    }


def test_numbers_of_a_super_pod(tmp_path: Path) -> None:
    """0 is a number like any other, as a number, too; each stands once in a pod."""
    found = super_pod()
    devices = found["server_list"][0]["device"]
    devices[0]["super_device_id"] = 0
    (tmp_path / "t.json").write_text(json.dumps(found))
    assert ranktable.read(tmp_path / "t.json")[1] == []
    devices.append({"device_id": "1", "device_ip": "10.0.0.2", "super_device_id": "0", "rank_id": "1"})
    (tmp_path / "t.json").write_text(json.dumps(found))
    (fault,) = ranktable.read(tmp_path / "t.json")[1]
    assert (fault.code, fault.blocking, fault.values) == (
        "ranktable.super_device_twice",
        True,
        {"numbers": "0"},
    )


def test_a_hosts_file_that_never_ends_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in ("pipe", "/dev/zero"):
        code, said = tengtune(tmp_path, "make", "0", "--server-ip", "10.0.0.1", "--hccn", path)
        assert (code, "code io.not_plain" in said) == (2, True)


def test_an_address_given_twice(tmp_path: Path) -> None:
    code, said = tengtune(tmp_path, "make", "0", "--ip", "0=10.0.0.1", "--ip", "0=10.0.0.2")
    assert (code, "Card 0 stands twice" in said) == (2, True)


def test_super_pods_are_read(tmp_path: Path) -> None:
    found = super_pod()
    (tmp_path / "t.json").write_text(json.dumps(found))
    assert ranktable.read(tmp_path / "t.json") == ([Server("s", (Device(0, "10.0.0.1", 0),))], [])
    found["super_pod_list"] = []
    del found["server_list"][0]["device"][0]["super_device_id"]
    found |= {"server_count": "2", "status": "initializing"}
    (tmp_path / "t.json").write_text(json.dumps(found))
    _, faults = ranktable.read(tmp_path / "t.json")
    wanted = ["count", "status", "super_pod", "super_device"]
    assert [fault.code.removeprefix("ranktable.") for fault in faults] == wanted
    code, said = tengtune(tmp_path, "check", "t.json")
    assert (code, "code ranktable.unsound" in said) == (2, True)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 9) | st.sampled_from(["0", "s", "10.0.0.1", "completed"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["server_id", "device", "device_id", "rank_id", "x"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)


@given(data=st.data())
def test_any_json_is_a_table_with_its_faults_or_a_problem(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    found = super_pod()
    part: Any = data.draw(
        st.sampled_from([found, found["server_list"][0], found["server_list"][0]["device"][0]])
    )
    part[data.draw(st.sampled_from(sorted(part)))] = data.draw(VALUES)
    path = tmp_path_factory.mktemp("table") / "t.json"
    path.write_text(json.dumps(found))
    try:
        table, frame = ranktable.read(path)
    except Problem:
        return
    for fault in [*frame, *ranktable.faults(table)]:
        assert fault.code.startswith("ranktable.")


def one(name: str, *addresses: str, rank: object = None) -> str:
    """A table's text of one server."""
    devices = [
        {"device_id": str(n), "device_ip": each, "rank_id": str(n) if rank is None else rank}
        for n, each in enumerate(addresses)
    ]
    head = {"version": "1.0", "server_count": "1", "status": "completed"}
    return json.dumps({**head, "server_list": [{"server_id": name, "device": devices}]})


def test_faults_that_hccl_finds_late(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(one("10.0.0.1", "10.0.0.1"))
    code, said = tengtune(tmp_path, "check", "a.json")
    assert (code != 0, "the device_ip of card 0 is the server's own address" in said) == (True, True)
    (tmp_path / "b.json").write_text(one("10.0.0.1", "10.1.0.1", rank=0))
    code, said = tengtune(tmp_path, "check", "b.json")
    assert (code != 0, "Not written as texts: rank_id" in said) == (True, True)
    (tmp_path / "c.json").write_text(one("10.0.0.1", "10.1.0.1", "10.1.0.2"))
    (tmp_path / "d.json").write_text(one("10.0.0.2", "10.1.0.3"))
    code, said = tengtune(tmp_path, "merge", "c.json", "d.json", "--out", "e.json")
    assert (code, "different numbers of cards (10.0.0.1: 2, 10.0.0.2: 1)" in said) == (0, True)


def test_one_table_has_one_verdict(tmp_path: Path) -> None:
    """Unequal servers, one of three cards: each doubt is told once, and merge and check say the same."""
    ports = {name: {c: Port(f"10.{at}.0.{c + 1}") for c in range(4 - at)} for at, name in enumerate("ab")}
    for name, of_server in ports.items():
        ranktable.write(ranktable.make(name, of_server), tmp_path / f"{name}.json")
    verdict = "nothing that is surely wrong, but 2 warnings above to look at first: 2 servers, 7 ranks"
    for arguments in (("merge", "a.json", "b.json"), ("check", "hccl_2s_7p.json")):
        code, said = tengtune(tmp_path, *arguments)
        assert code == 0
        assert said.count("different numbers of cards (a: 4, b: 3)") == 1
        assert said.count("takes 1, 2, 4 or 8 cards") == 1
        assert said.count(verdict) == 1
        assert "sound" not in said
    code, said = tengtune(tmp_path, "merge", "a.json", "--out", "alone.json")
    assert (code, "alone.json: sound: 1 server, 4 ranks" in said) == (0, True)
    code, said = tengtune(tmp_path, "check", "hccl_2s_7p.json", "--json")
    assert json.loads(said.splitlines()[-1])["warnings"] == 2


def test_an_address_of_a_card_that_is_not_in_the_table(tmp_path: Path) -> None:
    given = ("--ip", "0=10.1.0.1", "--ip", "1=10.1.0.2", "--ip", "5=10.1.0.33")
    code, said = tengtune(tmp_path, "make", "0-1", "--server-ip", "10.0.0.1", *given, "--out", "t.json")
    assert (code, "Card 5 has an address and is not in the table" in said) == (2, True)
    assert not (tmp_path / "t.json").exists()


def test_a_table_that_is_there_is_kept(tmp_path: Path) -> None:
    make = ("make", "0", "--server-ip", "node-a", "--ip", "0=10.0.137.1", "--out", "t.json")
    code, said = tengtune(tmp_path, *make)
    assert (code, "node-a is taken for the server's name" in said) == (0, True)
    (tmp_path / "t.json").write_text("mine")
    assert tengtune(tmp_path, *make)[0] == 2
    assert (tmp_path / "t.json").read_text() == "mine"
    assert tengtune(tmp_path, *make, "--force")[0] == 0
    assert "node-a" in (tmp_path / "t.json").read_text()
