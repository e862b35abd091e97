"""Whether MindSpore computes here what it should: see backends/probe.py."""

from __future__ import annotations

import mindspore
import numpy as np
import numpy.typing as npt
from mindspore import Tensor, float32, ops

from tengtune.backends import probe
from tengtune.backends.mindspore import device, kernels
from tengtune.backends.mindspore.attention import attention, document_bias
from tengtune.backends.mindspore.parallel import join
from tengtune.backends.probe import Loaded, Measured, Trials


def prepare(wanted: str) -> tuple[Loaded, Trials]:
    """The device, and what can be tried on it. wanted: "npu", which must be there, or "cpu"."""
    chosen = device.prepare()
    if (chosen == "cpu") != (wanted == "cpu"):
        raise RuntimeError(
            f"MindSpore {mindspore.__version__} sees no {wanted}, it would compute on {chosen}"
        )
    trials = {
        "product_float16": lambda: _product("float16"),
        "attention": lambda: _attention("float32" if chosen == "cpu" else "float16"),
        "fused": _fused,
        "sum": _sum,
    }
    return _loaded(chosen), trials


def _loaded(chosen: str) -> Loaded:
    if chosen == "cpu":
        return Loaded(mindspore.__version__, chosen, "CPU", 1)
    count = int(mindspore.device_context.ascend.device_count())
    return Loaded(mindspore.__version__, chosen, str(mindspore.hal.get_device_name(0)), count)


def _product(name: str) -> Measured:
    a, b = (_there(name, probe.SIDE, probe.SIDE, seed=seed) for seed in (0, 1))
    return probe.measured(_here(ops.matmul(a, b)), _here(a) @ _here(b), name)


def _heads(name: str) -> list[Tensor]:
    tokens, counts = sum(probe.LENGTHS), (probe.HEADS, probe.KEY_HEADS, probe.KEY_HEADS)
    return [_there(name, 1, tokens, n, probe.HEAD_SIZE, seed=i) for i, n in enumerate(counts)]


def _segment() -> Tensor:
    """[1,T]: the number of each token's document."""
    return Tensor(np.repeat(np.arange(1, len(probe.LENGTHS) + 1), probe.LENGTHS).astype(np.int32)[None])


def _attention(name: str) -> Measured:
    """The back end's plain attention against the formula."""
    heads = _heads(name)
    mask = document_bias(_segment(), copies=probe.HEADS)
    found = attention(heads[0], heads[1], heads[2], mask)
    q, k, v = (_here(each)[0].astype(np.float64) for each in heads)
    wanted = probe.attention(q, k, v, probe.LENGTHS)
    return probe.measured(_here(found).reshape(wanted.shape), wanted, name, probe.MORE_ROUNDINGS)


def _fused() -> Measured:
    """The card's attention against the plain one, forward and backward, as the back end compares them."""
    segment = _segment()

    def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return kernels.fused_attention(q, k, v, kernels.fused_mask(segment))

    def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v, document_bias(segment, copies=1))

    error, limit = kernels.apart(fused, plain, tuple(_heads("float16")))
    return Measured(error, limit)


def _sum() -> Measured:
    """The sum over the ranks, of rank + 1."""
    group = join(None)
    total = group.sum_(Tensor(np.full(1024, group.rank + 1, np.float32)))
    return probe.measured(_here(total), np.full(1024, group.world * (group.world + 1) / 2), "float32")


def _there(name: str, *shape: int, seed: int) -> Tensor:
    return Tensor(probe.some(*shape, seed=seed)).astype(device.DTYPES[name])


def _here(tensor: Tensor) -> npt.NDArray[np.float32]:
    array: npt.NDArray[np.float32] = tensor.astype(float32).asnumpy()
    return array


if __name__ == "__main__":
    probe.serve(prepare)
