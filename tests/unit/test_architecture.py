"""Imports run one way, and the core loads no framework."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tengtune
from tengtune.pipeline import STEPS

SOURCE = Path(tengtune.__file__).parent
FRAMEWORKS = {"torch", "torch_npu", "mindspore", "transformers", "peft", "modelscope", "safetensors"}
CLIENTS = {"modelscope_hub", "huggingface_hub", "httpx2", "requests", "urllib3"}
"""The hubs' clients; each is imported by the one module that speaks to its hub."""
LEVELS: list[set[str]] = [
    {"cli"},
    {"steps", "rehearsal"},
    {"engine", "pipeline"},
    {"train", "data", "weights", "hub", "backends", "plan", "host", "doctor", "explain", "cluster"}
    | {"evaluate", "report", "answer", "mindformers", "docker"},
    {"text", "models", "facts", "recipe", "recipe_check", "recipe_fault", "run_yaml", "capabilities"},
    {"ui", "files", "json_file", "memory", "lock", "cards", "run_folder"},
]


HUB_MODULES = (("hub", "modelscope.py"), ("hub", "huggingface.py"))


def level(name: str) -> int:
    return next(i for i, names in enumerate(LEVELS) if name in names)


def imports(path: Path, everywhere: bool) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree)) if everywhere else tree.body
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


MODULES = sorted(
    p for p in SOURCE.rglob("*.py") if p.parent != SOURCE or p.stem not in ("__init__", "__main__")
)


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_run_one_way(path: Path) -> None:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    own = level(parts[0])
    for name in imports(path, everywhere=True):
        if not name.startswith("tengtune."):
            continue
        target = name.split(".")[1]
        if target[0] == "_" or not any(target in names for names in LEVELS):
            continue
        assert level(target) >= own, f"{'.'.join(parts)} imports {name}"
        if parts[0] == "steps":
            assert target != "steps", "a step never imports another step"
        if parts[:2] in (("backends", "torch"), ("backends", "mindspore")):
            other = "mindspore" if parts[1] == "torch" else "torch"
            assert f"backends.{other}" not in name


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_no_framework_at_module_load(path: Path) -> None:
    parts = path.relative_to(SOURCE).parts
    found = {name.split(".")[0] for name in imports(path, everywhere=False)} & FRAMEWORKS
    allowed = {parts[1], "torch_npu"} if parts[0] == "backends" and len(parts) > 2 else set()
    assert found <= allowed


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_only_the_hub_modules_import_a_client(path: Path) -> None:
    found = {name.split(".")[0] for name in imports(path, everywhere=True)} & CLIENTS
    assert not found or path.relative_to(SOURCE).parts in HUB_MODULES


def test_the_core_loads_without_any_framework() -> None:
    core = [
        ".".join(("tengtune", *p.relative_to(SOURCE).with_suffix("").parts))
        for p in MODULES
        if p.relative_to(SOURCE).parts[:2] not in (("backends", "torch"), ("backends", "mindspore"))
        and p.relative_to(SOURCE).parts not in HUB_MODULES
    ]
    code = (
        "import importlib, sys\n"
        f"for name in {core!r}: importlib.import_module(name.removesuffix('.__init__'))\n"
        f"print(sorted({FRAMEWORKS | CLIENTS - {'requests', 'urllib3'}!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_step_has_its_module_and_its_command() -> None:
    for step in STEPS:
        assert (SOURCE / "steps" / f"{step.name}.py").exists()
        assert (SOURCE / "cli" / f"{step.name}.py").exists()
        assert all(need in [s.name for s in STEPS[: STEPS.index(step)]] for need in step.needs)


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_a_file_is_a_room_one_can_see_across(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400
