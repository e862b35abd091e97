"""Every name of torch_npu that the code uses exists in its wheel, and is called as it is declared there."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

GOLDEN = json.loads((Path(__file__).parent / "npu_operators" / "signatures.json").read_text("utf-8"))
SOURCE = Path(__file__).resolve().parents[2] / "src" / "tengtune"
TREES = {path: ast.parse(path.read_text("utf-8")) for path in SOURCE.rglob("*.py")}


def operator_calls() -> Iterator[tuple[str, ast.Call]]:
    """Every call of an attribute whose name begins with npu_, with its place."""
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            called = node.func if isinstance(node, ast.Call) else None
            if isinstance(called, ast.Attribute) and called.attr.startswith("npu_"):
                assert isinstance(node, ast.Call)
                yield f"{path.name}:{node.lineno}", node


CALLS = list(operator_calls())


def declared(name: str) -> tuple[list[str], set[str]]:
    """The parameters of an operator in order, and those without a default."""
    inside = re.match(rf"{name}\((.*)\) ->", GOLDEN["operators"][name])
    assert inside
    parameters = [part.strip() for part in inside[1].split(",") if part.strip() != "*"]
    names = [parameter.split("=")[0].split()[-1] for parameter in parameters]
    return names, {n for n, parameter in zip(names, parameters, strict=True) if "=" not in parameter}


def test_all_calls_are_found() -> None:
    assert {call.func.attr for _, call in CALLS if isinstance(call.func, ast.Attribute)} == set(
        GOLDEN["operators"]
    )


@pytest.mark.parametrize(("place", "call"), CALLS, ids=[place for place, _ in CALLS])
def test_a_call_fits_its_declaration(place: str, call: ast.Call) -> None:
    assert isinstance(call.func, ast.Attribute)
    names, needed = declared(call.func.attr)
    starred = [argument for argument in call.args if isinstance(argument, ast.Starred)]
    given = names[: len(call.args) + len(starred)]  # the one call with *turns gives two
    keywords = {keyword.arg for keyword in call.keywords}
    assert len(given) == len(call.args) + len(starred)
    assert keywords <= set(names) - set(given)
    assert needed <= set(given) | keywords


def test_names_of_the_module_exist() -> None:
    used = set()
    for tree in TREES.values():
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Attribute)
                and node.value.attr == "npu"
            ):
                used.add(node.attr)
    assert used == set(GOLDEN["module"]["torch_npu.npu"])
