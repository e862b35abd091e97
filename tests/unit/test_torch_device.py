"""Devices, types and fused operators, with stand-ins for the cards that are not here."""

from __future__ import annotations

import importlib.machinery
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.tiny import tiny_config
from torch import Tensor
from torch.nn import functional as F

from tengtune.backends.torch import device, kernels, probe
from tengtune.backends.torch.device import Placement
from tengtune.backends.torch.kernels import PLAIN, agreeing
from tengtune.models.spec import from_config
from tengtune.ui.problems import Problem

CPU = torch.device("cpu")
SPEC = from_config(tiny_config())


def test_types_on_a_cpu() -> None:
    assert device.choose_dtype(CPU, "auto") == torch.float32
    for name in ("float32", "bfloat16", "float16"):
        assert device.choose_dtype(CPU, name) == getattr(torch, name)
    assert device.computes(CPU, torch.bfloat16)


def test_what_a_narrow_type_costs_on_a_cpu_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device._product_seconds(torch.float32) > 0
    seconds = {torch.float32: 0.5, torch.bfloat16: 19.0}
    monkeypatch.setattr(device, "_product_seconds", seconds.__getitem__)
    assert device.slowdown(Placement(CPU, torch.bfloat16)) == 38
    assert device.slowdown(Placement(CPU, torch.float32)) == 1
    assert device.slowdown(Placement(torch.device("cuda", 0), torch.bfloat16)) == 1


def test_masters_are_never_narrow() -> None:
    found = {t: Placement(CPU, t).master for t in (torch.float16, torch.bfloat16, torch.float64)}
    assert found == {
        torch.float16: torch.float32,
        torch.bfloat16: torch.float32,
        torch.float64: torch.float64,
    }


def test_a_card_without_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """`auto` falls back to float16; asked for, it is refused. `meta` stands for the card: it is no CPU."""
    monkeypatch.setattr(device, "computes", lambda place, dtype: dtype != torch.bfloat16)
    card = torch.device("meta")
    assert device.choose_dtype(card, "auto") == torch.float16
    with pytest.raises(Problem) as refused:
        device.choose_dtype(card, "bfloat16")
    assert (refused.value.code, refused.value.exit_code) == ("device.no_dtype", 3)
    monkeypatch.setattr(device, "computes", lambda place, dtype: True)
    assert device.choose_dtype(card, "auto") == torch.bfloat16


def test_a_type_is_tried_not_looked_up() -> None:
    assert not device.computes(torch.device("meta"), torch.float32)  # computes nothing: no value comes back
    assert not device.computes(CPU, torch.uint32)  # casts, but has no matrix product


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("NPU out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:131] DefaultCPUAllocator: can't allocate memory"),
        torch.cuda.OutOfMemoryError("CUDA out of memory."),
    ],
)
def test_a_full_memory_is_a_problem(error: Exception) -> None:
    with pytest.raises(Problem) as found, device.memory_faults(CPU):
        raise error
    assert (found.value.code, found.value.exit_code) == ("device.out_of_memory", 4)


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="shapes"), device.memory_faults(CPU):
        raise RuntimeError("shapes do not match")


def test_a_really_full_memory() -> None:
    with pytest.raises(Problem), device.memory_faults(CPU):
        torch.empty(1 << 60, dtype=torch.uint8)


def install(monkeypatch: pytest.MonkeyPatch, module: types.ModuleType) -> None:
    module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)
    monkeypatch.setitem(sys.modules, module.__name__, module)


def test_an_ascend_card_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []
    module = types.ModuleType("torch_npu")
    module.npu = types.SimpleNamespace(is_available=lambda: True, set_device=chosen.append)
    install(monkeypatch, module)
    monkeypatch.setattr(device.torch, "device", lambda *place: place)  # torch here knows no "npu"
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert device.choose_device() == ("npu", 3)
    assert chosen == [3]
    module.npu.is_available = lambda: False
    monkeypatch.setattr(device.torch.cuda, "is_available", lambda: False)
    assert device.choose_device() == ("cpu",)


def test_torch_npu_that_cannot_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Installed, but CANN is not: libhccl.so is missing."""
    monkeypatch.setattr(device.importlib.util, "find_spec", lambda name: object())

    def fails(name: str) -> None:
        raise ImportError("libhccl.so: cannot open shared object file: No such file or directory")

    monkeypatch.setattr(device.importlib, "import_module", fails)
    assert not device.npu_available()


class Emulated:
    """torch_npu's operators as its documentation describes them, in plain torch; arguments are checked."""

    @staticmethod
    def npu_rms_norm(x: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
        assert gamma.dtype == x.dtype
        scale = (x.float().square().mean(-1, keepdim=True) + epsilon).rsqrt()
        return (x.float() * scale * gamma.float()).to(x.dtype), scale

    @staticmethod
    def npu_rotary_mul(x: Tensor, r1: Tensor, r2: Tensor) -> Tensor:
        assert x.ndim == r1.ndim == r2.ndim == 4
        assert r1.shape == (1, x.shape[1], 1, x.shape[3])
        first, second = x.chunk(2, -1)
        return r1 * x + r2 * torch.cat((-second, first), -1)

    @staticmethod
    def npu_swiglu(x: Tensor, dim: int = -1) -> Tensor:
        gate, up = x.chunk(2, dim)
        return F.silu(gate) * up

    @staticmethod
    def npu_fusion_attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        head_num: int,
        input_layout: str,
        *,
        atten_mask: Tensor,
        scale: float,
        keep_prob: float,
        sparse_mode: int,
        actual_seq_qlen: list[int],
        actual_seq_kvlen: list[int],
    ) -> tuple[Tensor]:
        """TND: cumulative lengths; sparse mode 3 wants the 2048 x 2048 mask, 1 above the diagonal."""
        assert (input_layout, sparse_mode, keep_prob, head_num) == ("TND", 3, 1.0, query.shape[1])
        assert torch.equal(atten_mask, torch.ones(2048, 2048).triu(1).bool())
        assert actual_seq_qlen == actual_seq_kvlen
        assert actual_seq_qlen[-1] == query.shape[0]
        parts, start = [], 0
        for end in actual_seq_qlen:
            q, k, v = (x[start:end].transpose(0, 1) for x in (query, key, value))
            k, v = (x.repeat_interleave(head_num // x.shape[0], 0) for x in (k, v))
            hidden = torch.ones(end - start, end - start).triu(1).bool()
            scores = (q @ k.transpose(1, 2) * scale).masked_fill(hidden, -torch.inf)
            parts.append((scores.softmax(-1) @ v).transpose(0, 1))
            start = end
        return (torch.cat(parts),)


OPERATIONS = ("rms_norm", "rotary", "swiglu", "attention")


def taken(ops: Any, dtype: torch.dtype = torch.float32) -> set[str]:
    found = agreeing(ops, Placement(CPU, dtype), SPEC)
    return {name for name in OPERATIONS if getattr(found, name) is not getattr(PLAIN, name)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_fused_operators_that_agree_are_taken(dtype: torch.dtype) -> None:
    assert taken(Emulated, dtype) == set(OPERATIONS)


def test_the_probe_measures_the_fused_attention() -> None:
    """doctor --probe: right with operators as documented, wrong with one that is twice too large."""
    right = probe._fused(Emulated, CPU)
    assert right.error <= right.limit == 8 * 2**-10
    broken = type("Broken", (), {"npu_fusion_attention": twice(Emulated.npu_fusion_attention)})
    assert probe._fused(broken, CPU).error == pytest.approx(1, abs=0.01)


def fails(*arguments: Any, **options: Any) -> Any:
    raise RuntimeError("EZ9999: unsupported operator")


def twice(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(*arguments: Any, **options: Any) -> Any:
        out = function(*arguments, **options)
        return tuple(2 * x for x in out) if isinstance(out, tuple) else 2 * out

    return wrong


@pytest.mark.parametrize("operation", ["rms_norm", "rotary_mul", "swiglu", "fusion_attention"])
@pytest.mark.parametrize("fault", ["missing", "unsupported", "wrong"])
def test_a_fused_operator_that_does_not_work_is_left_out(operation: str, fault: str) -> None:
    name = f"npu_{operation}"
    operators = {n: getattr(Emulated, n) for n in dir(Emulated) if n.startswith("npu_")}
    if fault == "missing":
        del operators[name]
    else:
        operators[name] = fails if fault == "unsupported" else twice(operators[name])
    left_out = set(OPERATIONS) - taken(types.SimpleNamespace(**operators))
    assert left_out == {operation.removesuffix("_mul").removeprefix("fusion_")}


def test_cards_of_others_get_plain_kernels() -> None:
    assert kernels.choose(Placement(torch.device("cuda", 0), torch.bfloat16), SPEC) is PLAIN


def test_a_folder_called_torch_npu_is_no_card(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, types.ModuleType("torch_npu"))
    assert not device.npu_available()
