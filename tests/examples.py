"""The scripts and data under examples/, and the scripts of bench/, for tests."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def script(name: str) -> ModuleType:
    """The script `examples/<name>.py` as a module; scripts beside it are importable, as when it is run."""
    if str(EXAMPLES) not in sys.path:
        sys.path.append(str(EXAMPLES))
    return module(EXAMPLES / f"{name}.py")


def bench(name: str) -> ModuleType:
    """The script `bench/<name>.py` as a module."""
    return module(EXAMPLES.parent / "bench" / f"{name}.py")


def module(path: Path) -> ModuleType:
    """A script as a module of its name, executed once: dataclasses look their module up."""
    name = path.stem
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]
