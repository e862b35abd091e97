"""Several ranks over gloo train as one process does: losses, norms, held-out loss and final weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.ranks_lab import run_ranks

STEPS = 5
SCRIPT = """
import json, sys
import numpy as np
import torch
torch.set_num_threads(1)
from tests.batches import make_batch, random_documents
from tests.tiny import tiny_config, tiny_weights
from tests.torch_lab import make_backend, make_recipe
from tengtune.models.spec import from_config

def random_rows(count, seed):
    lengths = [5, 9 + seed, 12]  # three documents a row
    return [make_batch([random_documents(lengths, 384, 100 * seed + row)], 48) for row in range(count)]

method, dtype, rows, out = sys.argv[1], getattr(torch, sys.argv[2]), int(sys.argv[3]), sys.argv[4]
spec = from_config(tiny_config(**json.loads(sys.argv[5])))
recipe = make_recipe(method, lr=1e-2, clip_norm=0.5)
backend = make_backend(spec, tiny_weights(spec), recipe, dtype)
rank, world = backend.ranks.rank, backend.ranks.world
figures = []
for step in range(int(sys.argv[6])):
    batches = random_rows(rows - step % 2, seed=step)  # a step of another size now and then
    tokens = sum(batch.trained_tokens for batch in batches)
    handles = backend.train_step(batches[rank::world], tokens, 1e-2, 8.0)
    figures.append([float(handles.loss_sum) / tokens, float(handles.grad_norm), float(handles.finite)])
held = random_rows(3, seed=20)
figures.append([backend.ranks.total([sum(float(backend.eval_step(b)) for b in held[rank::world])])[0], 0, 1])
digest = [float(p.detach().double().norm()) for p in backend._optimizer.parameters]
everywhere = [json.loads(text) for text in backend.ranks.gather(json.dumps(digest))]
assert all(other == digest for other in everywhere), "ranks hold different weights"
if rank == 0:
    weights = {s.name: s.array for s in backend.named_shards() if s.kind == "param"}
    np.savez(out, figures=np.array(figures), **weights)
else:
    assert not list(backend.named_shards())
"""


def train(out: Path, world: int, *arguments: Any) -> dict[str, np.ndarray]:
    """Run SCRIPT with so many ranks; what rank 0 wrote."""
    words = [*map(str, arguments[:3]), str(out), *map(str, arguments[3:])]
    run_ranks(SCRIPT, world, *words)
    with np.load(out) as found:
        return dict(found)


FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2": {},
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 32},
}
CASES = [
    ("lora", "float64", 1e-9, 4, "qwen2"),
    ("full", "float64", 1e-9, 2, "qwen2"),
    ("lora", "float32", 1e-5, 2, "qwen3"),
    ("full", "float32", 1e-5, 2, "qwen3"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("method", "dtype", "bound", "world", "family"), CASES)
def test_ranks_train_as_one(
    method: str, dtype: str, bound: float, world: int, family: str, tmp_path: Path
) -> None:
    """Five rows a step, or four: with four ranks one has two rows and, at times, one has none."""
    arguments = (method, dtype, 5, json.dumps(FAMILIES[family]), STEPS)
    alone = train(tmp_path / "one.npz", 1, *arguments)
    shared = train(tmp_path / "many.npz", world, *arguments)
    assert alone["figures"][:, 2].all()
    np.testing.assert_allclose(shared["figures"], alone["figures"], rtol=bound)
    assert shared.keys() == alone.keys()
    for name in alone.keys() - {"figures"}:
        # AdamW divides by the root of a mean: what the gradients differ by, the weights may by a step more.
        np.testing.assert_allclose(
            shared[name], alone[name], rtol=1e3 * bound, atol=1e3 * bound, err_msg=name
        )
