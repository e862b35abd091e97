"""`tengtune ranktable make`, `merge` and `check`"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tengtune.cli.command import Command, Group
from tengtune.cli.options import FOLDER, make_console
from tengtune.ui import language
from tengtune.ui.console import Console
from tengtune.ui.lists import joined
from tengtune.ui.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tengtune.cluster.ranktable import Fault, Table
    from tengtune.host.hccn import Port


@click.group("ranktable", cls=Group, help="cli.ranktable")
def command() -> None:
    """Write and check RANK_TABLE_FILE."""


@command.command("make", cls=Command, help="cli.ranktable_make")
@click.argument("cards", default="[0,8)")
@click.option("--server-ip", help="cli.opt_server_ip")
@click.option("--ip", "given", multiple=True, metavar="N=ADDRESS", help="cli.opt_card_ip")
@click.option("--hccn", type=FOLDER, help="cli.opt_hccn")
@click.option("--out", type=FOLDER, help="cli.opt_table_out")
@click.option("--force", is_flag=True, help="cli.opt_table_force")
@click.option("-q", "--quiet", is_flag=True, help="cli.opt_quiet")
@click.option("--json", "as_json", is_flag=True, help="cli.opt_json")
def make(
    cards: str,
    server_ip: str | None,
    given: tuple[str, ...],
    hccn: Path | None,
    out: Path | None,
    force: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """A table of this server."""
    from tengtune.cluster import card_list, ranktable
    from tengtune.host.hccn import is_address

    console = make_console(quiet, as_json)
    chosen, doubtful = card_list.parse(cards)
    if doubtful:
        console.warn("ranktable.half_open", text=cards, cards=joined(chosen))
    ports = _ports(chosen, given, hccn)
    table = ranktable.make(server_ip or _own_address(), ports)
    if server_ip and not is_address(server_ip):
        console.warn("ranktable.named", text=server_ip)
    network = ranktable.network_fault(ports)
    warnings = _judge([*ranktable.faults(table), *([network] if network else [])], console, cards)
    _write(table, warnings, out, force, console)


@command.command("merge", cls=Command, help="cli.ranktable_merge")
@click.argument("tables", type=FOLDER, nargs=-1, required=True)
@click.option("--out", type=FOLDER, help="cli.opt_table_out")
@click.option("--force", is_flag=True, help="cli.opt_table_force")
@click.option("-q", "--quiet", is_flag=True, help="cli.opt_quiet")
@click.option("--json", "as_json", is_flag=True, help="cli.opt_json")
def merge(tables: tuple[Path, ...], out: Path | None, force: bool, quiet: bool, as_json: bool) -> None:
    """One table of several servers'."""
    from tengtune.cluster import ranktable

    console = make_console(quiet, as_json)
    parts = []
    for path in tables:  # what is written is of version 1.0, and has no place for super pods
        table, frame = ranktable.read(path, versions=["1.0"])
        _refuse([*frame, *ranktable.faults(table)], path)  # what is doubtful is so in the whole, too
        parts.append(table)
    table = ranktable.merge(parts)
    warnings = _judge(ranktable.faults(table), console, " ".join(map(str, tables)))
    _write(table, warnings, out, force, console)


@command.command("check", cls=Command, help="cli.ranktable_check")
@click.argument("file", type=FOLDER)
@click.option("-q", "--quiet", is_flag=True, help="cli.opt_quiet")
@click.option("--json", "as_json", is_flag=True, help="cli.opt_json")
def check(file: Path, quiet: bool, as_json: bool) -> None:
    """Judge a table, of version 1.0 or 1.2."""
    from tengtune.cluster import ranktable

    console = make_console(quiet, as_json)
    table, frame = ranktable.read(file)
    warnings = _judge([*frame, *ranktable.faults(table)], console, file)
    console.result(_verdict(table, warnings), **_counts(table), warnings=warnings)


def _ports(cards: Sequence[int], given: Iterable[str], conf: Path | None) -> dict[int, Port]:
    """The port of each card: as given, else what hccn_tool says, else what hccn.conf holds; with `conf` that
    file alone. Problem for a card without one."""
    from tengtune.cluster.ranktable import NUMBER
    from tengtune.host import hccn

    named: dict[int, Port] = {}
    for text in given:
        card, _, address = text.partition("=")
        if not NUMBER.fullmatch(card):
            raise Problem("ranktable.bad_pair", where=f"--ip {text}")
        if int(card) in named:
            raise Problem("ranktable.card_twice", where=f"--ip {text}", card=int(card))
        if int(card) not in cards:
            raise Problem("ranktable.other_card", where=f"--ip {text}", card=int(card), cards=joined(cards))
        named[int(card)] = hccn.Port(hccn.check_address(address, f"--ip {text}"))
    missing = [card for card in cards if card not in named]
    found: dict[int, Port] = {}
    if missing and conf is None:
        found = hccn.ask_tool(missing)
        if len(found) < len(missing) and hccn.CONF.exists():
            found = hccn.read_conf() | found
    elif missing and conf is not None:
        found = hccn.read_conf(conf)
    found |= named
    if lacking := [card for card in cards if card not in found]:
        raise Problem("ranktable.no_port", where=conf or hccn.CONF, cards=joined(lacking))
    return {card: found[card] for card in cards}


def _own_address() -> str:
    """This machine's address in its network; Problem where it has none but the loopback's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("10.255.255.255", 9))  # sends nothing: only asks which way it would go
            address = str(probe.getsockname()[0])
        except OSError:
            address = "127.0.0.1"
    if address.startswith("127."):
        raise Problem("ranktable.no_server", where="--server-ip")
    return address


def _judge(faults: Iterable[Fault], console: Console, where: object) -> int:
    """Say what may be wrong, and how much that is; Problem with all that is wrong."""
    found = list(faults)
    doubts = [fault for fault in found if not fault.blocking]
    for fault in doubts:
        console.warn(fault.code, **fault.values)
    _refuse(found, where)
    return len(doubts)


def _refuse(faults: Iterable[Fault], where: object) -> None:
    """Problem with all that is wrong."""
    blocking = [language.say(fault.code, **fault.values) for fault in faults if fault.blocking]
    if blocking:
        raise Problem("ranktable.unsound", where=where, faults="\n".join(blocking))


def _write(table: Table, warnings: int, out: Path | None, force: bool, console: Console) -> None:
    from tengtune.cluster import ranktable

    name = ranktable.file_name(table)
    path = Path(name) if out is None else out / name if out.is_dir() else out
    if os.path.lexists(path) and not force:
        raise Problem("check.out_exists", where=path)
    ranktable.write(table, path)
    console.say("ranktable.readers")
    text = language.say("ranktable.written", path=path, verdict=_verdict(table, warnings))
    console.result(text, file=str(path), **_counts(table), warnings=warnings)


def _verdict(table: Table, warnings: int) -> str:
    """The one judgement of a table that is not refused, the same wherever it is given."""
    code = "ranktable.doubtful" if warnings else "ranktable.sound"
    return language.say(code, **_counts(table), warnings=warnings)


def _counts(table: Table) -> dict[str, int]:
    return {"servers": len(table), "ranks": sum(len(server.devices) for server in table)}
