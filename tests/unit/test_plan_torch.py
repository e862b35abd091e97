"""The planner's figures for the PyTorch back end, beside what the back end keeps."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest
import torch
from tests.tiny import tiny_config, tiny_weights
from tests.torch_lab import make_backend, make_recipe

from tengtune.models.spec import ModelSpec, from_config
from tengtune.plan import memory
from tengtune.plan.profiles import TORCH, TORCH_CPU
from tengtune.plan.strategy import NOTHING, Strategy
from tengtune.train.batch import Batch

TOKENS = 64
ROW = 512


def batch() -> Batch:
    ids = np.arange(TOKENS, dtype=np.int32)[None] % 300
    positions = np.arange(TOKENS, dtype=np.int32)[None]
    label_index = np.array([[1, 2]], np.int32)
    return Batch(ids, positions, np.ones_like(ids), label_index, np.array([[3, 4]], np.int32))


def kept_bytes(spec: ModelSpec, method: str) -> int:
    """Bytes of all different storages that autograd keeps for the backward, without parameters."""
    backend = make_backend(spec, tiny_weights(spec), make_recipe(method))
    own = {parameter.untyped_storage().data_ptr() for parameter in backend.model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = backend.loss(batch(), 1.0)
        size = sum(storage.nbytes() for storage in kept.values())
    loss.detach_()
    return size


@pytest.mark.parametrize("method", ["lora", "full"])
@pytest.mark.parametrize("heads", [(4, 4), (4, 2)])
def test_a_layer_keeps_what_the_plan_says(method: str, heads: tuple[int, int]) -> None:
    """One layer more keeps that much more; LoRA's products of rank 8 and one number a token are beside it."""
    shape = {"hidden_size": 512, "intermediate_size": 1024}
    shape |= {"num_attention_heads": heads[0], "num_key_value_heads": heads[1]}
    two, three = (from_config(tiny_config(num_hidden_layers=layers, **shape)) for layers in (2, 3))
    one_layer = kept_bytes(three, method) - kept_bytes(two, method)
    strategy = Strategy(row_tokens=TOKENS, width_bytes=4)
    assert one_layer == pytest.approx(memory.layer_bytes(two, strategy, TORCH), rel=0.05)


def peak_bytes(spec: ModelSpec, method: str, recompute: str, micro_batches: int) -> int:
    """The most that PyTorch's allocator holds in a step beside what it held before, by its own profiler."""
    backend = make_backend(spec, tiny_weights(spec), make_recipe(method, recompute=recompute))
    ids = np.arange(ROW, dtype=np.int32)[None] % 300
    index, labels = np.arange(ROW - 1, dtype=np.int32)[None], ids[:, 1:].copy()
    batches = [Batch(ids, np.arange(ROW, dtype=np.int32)[None], np.ones_like(ids), index, labels)]
    kinds = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=kinds, profile_memory=True) as profiler:
        backend.train_step(batches * micro_batches, labels.size * micro_batches, 1e-4, 1.0)
    events = [each for each in profiler.profiler.kineto_results.events() if each.name() == "[memory]"]
    sizes: list[int] = [each.nbytes() for each in sorted(events, key=lambda each: each.start_ns())]
    return max(accumulate(sizes))


@pytest.mark.parametrize("tie", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize(
    ("method", "recompute", "micro_batches"),
    [("lora", "none", 1), ("lora", "full", 2), ("full", "none", 1), ("full", "full", 2)],
)
def test_a_step_takes_what_the_plan_says(method: str, recompute: str, micro_batches: int, tie: bool) -> None:
    """Gradients, activations, the chunk of logits, a head's gradient: to 5% of PyTorch's own count."""
    shape = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 3, "vocab_size": 4096}
    spec = from_config(tiny_config(tie_word_embeddings=tie, **shape))
    strategy = Strategy(
        method="full" if method == "full" else "lora",
        row_tokens=ROW,
        recompute=recompute == "full",
        width_bytes=4,
        accumulate=micro_batches,
        mapped=True,
    )
    card = memory.card_bytes(spec, strategy, TORCH_CPU, NOTHING, 0.0)
    beside = card.weights + card.optimizer + card.context + card.fragmentation
    copy = memory.copy_bytes(spec, strategy, TORCH_CPU).expected
    expected = card.total.expected - beside.expected - copy
    assert peak_bytes(spec, method, recompute, micro_batches) == pytest.approx(expected, rel=0.05)
