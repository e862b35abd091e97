"""What an adapter_config.json says its file holds, by PEFT's rules for names (0.21).

PEFT passes over tensors that its config does not name, and trains nothing more than it names: where file and
config differ, what comes of the adapter is not what was trained.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tengtune.ui.problems import Problem

ALL_LINEAR = "all-linear"
_BLOCK = r"(?:^|.*?\.){}\.(?P<layer>\d+)\."
_SAVED_UNASKED = ("embed_tokens", "wte", "lm_head")
"""PEFT saves embedding and head with a vocabulary that has grown, whatever modules_to_save says."""


class Claims:
    """Which modules the config names for what. A module is called as the base's folder calls it, `targets` as
    the config does. Problem for keys of the wrong kind."""

    def __init__(self, config: dict[str, Any], path: Path) -> None:
        self._config, self._path = config, path
        found = config.get("target_modules")
        self.targets: tuple[str, ...] = (
            (found,) if isinstance(found, str) else self._strings("target_modules")
        )
        self._is_target = self._matcher("target_modules")
        self._is_excluded = self._matcher("exclude_modules")
        self._saved = self._strings("modules_to_save")
        self._layers = self._indices()
        self._blocks = [
            self._compiled(_BLOCK.format(name), "layers_pattern") for name in self._blocks_named()
        ]
        self.bias = config.get("bias") or "none"
        if self.bias not in ("none", "all", "lora_only"):
            raise self._bad("bias")

    def adapts(self, module: str) -> bool:
        """Whether the linear has a LoRA pair."""
        whole = any(re.match(rf"(^|.*\.){re.escape(name)}($|\..*)", module) for name in self._saved)
        if whole or self._is_excluded(module) or not self._is_target(module):
            return False
        return self._layers is None or self._layer(module) in self._layers

    def saves(self, module: str) -> bool:
        """Whether the module, or one that it is part of, is trained as a whole (modules_to_save): the ends of
        names, "norm" for input_layernorm too."""
        parts = module.split(".")
        around = (".".join(parts[: count + 1]) for count in range(len(parts)))
        return any(name.endswith(self._saved) for name in around)

    def trains_bias(self, module: str) -> bool:
        """Whether the module's bias is trained beside its weight."""
        return self.bias == "all" or (self.bias == "lora_only" and self.adapts(module))

    def allows_whole(self, module: str, bias: bool) -> bool:
        """Whether the file may hold the module's weight (or bias) itself."""
        asked = self.saves(module) or (bias and self.trains_bias(module))
        return asked or module.rpartition(".")[2] in _SAVED_UNASKED

    @property
    def resolved(self) -> bool:
        """Whether the targets are names: PEFT writes them so, other tools may leave them for it to find."""
        return bool(self.targets) and self.targets != (ALL_LINEAR,)

    def _matcher(self, key: str) -> Callable[[str], bool]:
        """What tells a module of this key: a text is a regular expression, a list has names or their ends."""
        value = self._config.get(key)
        if isinstance(value, str):
            pattern = self._compiled(value, key)
            return lambda module: pattern.fullmatch(module) is not None
        names = self._strings(key)
        return lambda module: any(module == name or module.endswith(f".{name}") for name in names)

    def _layer(self, module: str) -> int | None:
        found = next((match for block in self._blocks if (match := block.match(module))), None)
        return int(found["layer"]) if found else None

    def _indices(self) -> frozenset[int] | None:
        """layers_to_transform; None for all. It counts only where targets are a list."""
        value = self._config.get("layers_to_transform")
        if value in (None, []):
            return None
        indices = value if isinstance(value, list) else [value]
        if not all(type(index) is int for index in indices):
            raise self._bad("layers_to_transform")
        return None if isinstance(self._config.get("target_modules"), str) else frozenset(indices)

    def _blocks_named(self) -> Sequence[str]:
        """layers_pattern: what the list of blocks is called, a regular expression or several."""
        value = self._config.get("layers_pattern")
        return [value] if isinstance(value, str) and value else self._strings("layers_pattern") or [r"[^.]*"]

    def _strings(self, key: str) -> tuple[str, ...]:
        """The list of texts under a key; of one text, which is read elsewhere, nothing."""
        value = self._config.get(key) or []
        if isinstance(value, str):
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._bad(key)
        return tuple(value)

    def _compiled(self, pattern: str, key: str) -> re.Pattern[str]:
        try:
            return re.compile(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise self._bad(key) from error

    def _bad(self, key: str) -> Problem:
        return Problem("adapter.bad_key", where=self._path, key=key, value=str(self._config.get(key))[:100])
