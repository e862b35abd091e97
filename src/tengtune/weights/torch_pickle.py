"""The pickle inside a torch file, read as a description of tensors: nothing it names is imported or called.

`pickle` runs what a file tells it to. This reader has the instructions that a dictionary of tensors needs and
carries out its three calls by hand; any other instruction, and any name not in KNOWN, ends as a Fault.
"""

from __future__ import annotations

import pickletools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

_ORDERED_DICT = "collections.OrderedDict"
_TENSOR = "torch._utils._rebuild_tensor_v2"
_PARAMETER = "torch._utils._rebuild_parameter"
_STORAGES: dict[str, np.dtype[Any]] = {
    "torch.DoubleStorage": np.dtype("<f8"),
    "torch.FloatStorage": np.dtype("<f4"),
    "torch.HalfStorage": np.dtype("<f2"),
    "torch.BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
    "torch.LongStorage": np.dtype("<i8"),
    "torch.IntStorage": np.dtype("<i4"),
    "torch.ShortStorage": np.dtype("<i2"),
    "torch.CharStorage": np.dtype("i1"),
    "torch.ByteStorage": np.dtype("u1"),
    "torch.BoolStorage": np.dtype("?"),
}
KNOWN = {_ORDERED_DICT, _TENSOR, _PARAMETER, *_STORAGES}

_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_VALUES = {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"}
_TEXTS = {"BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}


MAX_OPERATIONS = 2_000_000
"""Room for 50,000 tensors. A pickle of one-byte operations would otherwise take gigabytes."""


class Fault(Exception):
    """What keeps a pickle from being a dictionary of tensors: `kind` is global, opcode or form."""

    def __init__(self, kind: str, found: str) -> None:
        super().__init__(f"{kind}: {found}")
        self.kind, self.found = kind, found


@dataclass(frozen=True)
class Storage:
    """A run of `count` values in the archive's entry `data/<key>`."""

    key: str
    dtype: np.dtype[Any]
    count: int


@dataclass(frozen=True)
class TensorInfo:
    """A view of a storage. offset and strides count values, not bytes."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class _Global:
    """A name the pickle mentions; it stays a name."""

    name: str


class _Mark:
    """Where a group of values begins on the stack."""


_MARK = _Mark()


def read_tensor(raw: bytes) -> TensorInfo:
    """The tensor of a pickle that holds just one. Raises Fault."""
    result = _run(raw)
    if not isinstance(result, TensorInfo):
        raise Fault("form", f"a {_kind(result)}, not a tensor")
    return result


def _run(raw: bytes) -> Any:
    try:
        with warnings.catch_warnings():  # of odd escapes: nobody's business
            warnings.simplefilter("ignore", DeprecationWarning)
            return _Machine().run(raw)
    except (ValueError, IndexError) as error:  # a broken instruction; a value that is not there
        raise Fault("form", str(error)[:200]) from error


def read_tensors(raw: bytes) -> dict[str, TensorInfo]:
    """The tensors by name of a pickled state dict (pickle protocols 2 to 5). Raises Fault."""
    result = _run(raw)
    if not isinstance(result, dict):
        raise Fault("form", f"a {_kind(result)}, not a dict")
    for name, value in result.items():
        if not isinstance(name, str) or not isinstance(value, TensorInfo):
            raise Fault("form", f"{str(name)[:100]!r} is a {_kind(value)}, not a tensor")
        if not is_text(name):
            raise Fault("form", f"the name {name[:100]!r} has half a character")
    return result


def is_text(name: str) -> bool:
    """Whether UTF-8 can hold a name: pickles may have halves of characters (surrogates)."""
    return name.encode(errors="ignore").decode() == name


class _Machine:
    """The stack and the memo of pickle's own machine, and no way to call anything."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self, raw: bytes) -> Any:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(raw)):
            if count == MAX_OPERATIONS:
                raise Fault("form", f"more than {MAX_OPERATIONS} operations")
            name = opcode.name
            if name == "STOP":
                return self.stack.pop()
            if name in _CONSTANTS:
                self.stack.append(_CONSTANTS[name])
            elif name in _VALUES or name in _TEXTS:
                self.stack.append(argument)
            elif name in _ACTIONS:
                _ACTIONS[name](self, argument)
            else:
                raise Fault("opcode", name)
        raise Fault("form", "no end")

    def group(self) -> list[Any]:
        """The values above the last mark, taken off the stack with it."""
        for place in range(len(self.stack) - 1, -1, -1):
            if self.stack[place] is _MARK:
                values = self.stack[place + 1 :]
                del self.stack[place:]
                return values
        raise Fault("form", "no mark")

    def tuple_of(self, count: int) -> None:
        values = [self.stack.pop() for _ in range(count)]
        self.stack.append(tuple(reversed(values)))

    def remember(self, place: int) -> None:
        self.memo[place] = self.stack[-1]

    def recall(self, place: int) -> None:
        if place not in self.memo:
            raise Fault("form", "no such memo")
        self.stack.append(self.memo[place])

    def name(self, text: str) -> None:
        """A global: known, or the end."""
        if text not in KNOWN:
            raise Fault("global", text[:200])
        self.stack.append(_Global(text))

    def stack_global(self) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        if not isinstance(module, str) or not isinstance(name, str):  # printing anything else may never end
            raise Fault("form", "a global without a name")
        self.name(f"{module}.{name}")

    def set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict) or len(items) % 2:
            raise Fault("form", f"items of a {_kind(target)}")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, (str, int)):
                raise Fault("form", f"a {_kind(key)} as a key")
            target[key] = value

    def set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.set_items([key, value])

    def extend(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, list):
            raise Fault("form", f"items of a {_kind(target)}")
        target.extend(items)

    def append(self) -> None:
        self.extend([self.stack.pop()])

    def build(self) -> None:
        """A dict's attributes (torch's _metadata): no part of the tensors."""
        self.stack.pop()
        if not isinstance(self.stack[-1], dict):
            raise Fault("form", f"attributes of a {_kind(self.stack[-1])}")

    def storage(self) -> None:
        """A persistent id: ("storage", its type, key, device, count)."""
        match self.stack.pop():
            case ("storage", _Global(name), str(key), str(), int(count)) if name in _STORAGES and count >= 0:
                self.stack.append(Storage(key, _STORAGES[name], count))
            case other:
                raise Fault("form", f"a {_kind(other)} as a storage")

    def reduce(self) -> None:
        """The three calls that a state dict has; they are carried out by hand."""
        arguments, function = self.stack.pop(), self.stack.pop()
        match function, arguments:
            case _Global(name), () if name == _ORDERED_DICT:
                self.stack.append({})
            case _Global(name), (TensorInfo() as tensor, *_) if name == _PARAMETER:
                self.stack.append(tensor)
            case _Global(name), (Storage() as storage, int(offset), tuple(shape), tuple(strides), *_) if (
                name == _TENSOR
            ):
                if not all(type(number) is int for number in (*shape, *strides)):
                    raise Fault("form", "a shape that is no tuple of integers")
                self.stack.append(TensorInfo(storage, offset, shape, strides))
            case _:
                name = function.name if isinstance(function, _Global) else _kind(function)
                raise Fault("form", f"a call of {name} with other arguments")


def _kind(value: object) -> str:
    return type(value).__name__.strip("_")


_Action = Callable[[_Machine, Any], None]
_ACTIONS: dict[str, _Action] = {
    "PROTO": lambda machine, _: None,
    "FRAME": lambda machine, _: None,
    "MARK": lambda machine, _: machine.stack.append(_MARK),
    "EMPTY_DICT": lambda machine, _: machine.stack.append({}),
    "EMPTY_LIST": lambda machine, _: machine.stack.append([]),
    "EMPTY_TUPLE": lambda machine, _: machine.stack.append(()),
    "TUPLE": lambda machine, _: machine.stack.append(tuple(machine.group())),
    "TUPLE1": lambda machine, _: machine.tuple_of(1),
    "TUPLE2": lambda machine, _: machine.tuple_of(2),
    "TUPLE3": lambda machine, _: machine.tuple_of(3),
    "BINPUT": lambda machine, place: machine.remember(place),
    "LONG_BINPUT": lambda machine, place: machine.remember(place),
    "MEMOIZE": lambda machine, _: machine.remember(len(machine.memo)),
    "BINGET": lambda machine, place: machine.recall(place),
    "LONG_BINGET": lambda machine, place: machine.recall(place),
    "GLOBAL": lambda machine, text: machine.name(str(text).replace(" ", ".")),
    "STACK_GLOBAL": lambda machine, _: machine.stack_global(),
    "SETITEM": lambda machine, _: machine.set_item(),
    "SETITEMS": lambda machine, _: machine.set_items(machine.group()),
    "APPEND": lambda machine, _: machine.append(),
    "APPENDS": lambda machine, _: machine.extend(machine.group()),
    "BUILD": lambda machine, _: machine.build(),
    "BINPERSID": lambda machine, _: machine.storage(),
    "REDUCE": lambda machine, _: machine.reduce(),
}
