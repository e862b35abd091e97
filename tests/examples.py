"""The scripts and data under examples/, for tests."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def script(name: str) -> ModuleType:
    """The script `examples/<name>.py` as a module; scripts beside it are importable, as when it is run."""
    if str(EXAMPLES) not in sys.path:
        sys.path.append(str(EXAMPLES))
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]
