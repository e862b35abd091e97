"""Unpickling the metadata of torch.distributed.checkpoint and DeepSpeed with everything unknown made inert.

Such files hold objects of many classes. The few that describe tensors are torch's own and are built; every
other name becomes an empty class that keeps its arguments and does nothing, so that neither DeepSpeed nor the
user's code need be installed, or is run. Still, torch's loader is not made to withstand a hostile file: the
commands that come here ask for --trust.
"""

from __future__ import annotations

import builtins
import collections
import importlib
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tengtune.ui.problems import UNFIT_MACHINE, Problem, os_errors

_TORCH = {
    "torch": {"Size", "device"},
    "torch._utils": {"_rebuild_tensor_v2", "_rebuild_parameter"},
    "torch.serialization": {"_get_layout"},
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
}
_BUILTINS = {
    "bool",
    "bytearray",
    "bytes",
    "complex",
    "dict",
    "float",
    "frozenset",
    "int",
    "list",
    "set",
    "str",
    "tuple",
}


class Inert:
    """Stands for an object of a class that is not built; `arguments` are what it was made from."""

    def __init__(self, *arguments: Any, **_: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        """What the object held is not needed."""

    def __setitem__(self, key: Any, value: Any) -> None:
        """An entry of a dict of a class of its own."""

    def append(self, value: Any) -> None:
        """An entry of a list of a class of its own."""

    def extend(self, values: Any) -> None:
        """Several."""


class Unpickler(pickle.Unpickler):
    """Builds what is named above, and Inert for everything else."""

    def find_class(self, module: str, name: str) -> Any:
        if module in ("builtins", "__builtin__") and name in _BUILTINS:
            return getattr(builtins, name)
        if (module, name) in (("collections", "OrderedDict"), ("collections", "defaultdict")):
            return getattr(collections, name)
        if module in _TORCH:
            value = getattr(importlib.import_module(module), name, None)
            if name in _TORCH[module] or type(value).__name__ in ("dtype", "layout", "memory_format"):
                return value
        return type(name, (Inert,), {})


def number(value: Any) -> Any:
    """An enumeration's value, where it was pickled as a member."""
    return value.arguments[0] if isinstance(value, Inert) and value.arguments else value


def load_metadata(path: Path) -> Any:
    """The object in a plain pickle."""
    torch_module()
    with os_errors(path), open(path, "rb") as stream:
        try:
            return Unpickler(stream).load()
        except Exception as error:  # a damaged pickle may raise anything
            raise _damaged(path, error) from error


def load_archive(path: Path) -> Any:
    """The object in a torch.save archive; its tensors are memory maps of the file."""
    module = SimpleNamespace(Unpickler=Unpickler, load=pickle.load, __name__="pickle")
    torch = torch_module()
    with os_errors(path):
        try:
            return torch.load(path, map_location="cpu", mmap=True, weights_only=False, pickle_module=module)
        except OSError:
            raise
        except Exception as error:
            raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> Problem:
    return Problem("convert.bad_pickle", where=path, reason=f"{type(error).__name__}: {error}"[:300])


def torch_module() -> Any:
    """torch, which only these folders need; Problem where it is not installed."""
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise Problem("convert.no_torch", exit_code=UNFIT_MACHINE) from error
