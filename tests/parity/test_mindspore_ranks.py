"""Two MindSpore ranks under msrun, each with half of all state, train as one process does."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.fault_lab import python
from tests.ranks_lab import under_msrun

WORLD = 2
SCRIPT = """
import json, sys
import numpy as np
from tests.batches import make_batch, random_documents
from tests.mindspore_lab import build
from tests.tiny import tiny_config, tiny_weights
from tests.torch_lab import make_recipe
from tengtune.models.spec import from_config

def rows_of(step):  # five rows: the last rank's third is padding
    rows = [random_documents([5, 9 + step, 12], 384, 100 * step + row) for row in range(5)]
    return [make_batch([row], 48, 32) for row in rows], make_batch([[]], 48, 32)

out = sys.argv[1]
for case in ("lora", "full", "float16"):
    # 385 rows of an embedding: one is left over.
    spec = from_config(tiny_config(vocab_size=385, tie_word_embeddings=case == "full"))
    method, half = "full" if case == "full" else "lora", case == "float16"
    recipe = make_recipe(method, lora={"train_embeddings": half}, lr=1e-2, clip_norm=0.5, weight_decay=0.1)
    if half:
        recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"dtype": "float16"})})
    backend = build(spec, tiny_weights(spec), recipe)
    rank, world = backend.ranks.rank, backend.ranks.world
    figures = []
    for step in range(4):
        batches, blank = rows_of(step)
        tokens = sum(batch.trained_tokens for batch in batches)
        mine = batches[rank::world]
        mine += [blank] * (-(-len(batches) // world) - len(mine))
        handles = backend.train_step(mine, tokens, 1e-2, 8.0)
        figures.append([float(handles.loss_sum) / tokens, float(handles.grad_norm), float(handles.finite)])
    held, blank = rows_of(9)
    mine = held[rank::world] + [blank] * (len(held) % world > 0 and rank >= len(held) % world)
    scored = sum(float(backend.eval_step(batch)) for batch in mine)
    figures.append([backend.ranks.total([scored])[0], backend.first_overflow(held[0]) is None, 1])
    values = {f"{s.kind} {s.offset} {s.shape} {s.name}": s.array for s in backend.named_shards()}
    bytes_held = sum(array.nbytes for array in values.values())
    texts = backend.ranks.gather("rank " + "一" * rank)
    np.savez(f"{out}_{case}_{rank}.npz", figures=np.array(figures), texts=np.array(texts),
             most=backend.ranks.most(rank), bytes_held=bytes_held, **values)
"""


def train(folder: Path, world: int) -> None:
    """Run SCRIPT in one process or under msrun, into `<world>_<method>_<rank>.npz`."""
    if world == 1:
        done = python(SCRIPT, folder / "1")
        assert done.returncode == 0, done.stderr
    else:
        under_msrun(SCRIPT, world, folder, str(folder / str(world)))


def joined(files: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The whole tensors of all ranks' ranges, each element of which is one rank's."""
    whole: dict[str, np.ndarray] = {}
    for key, array in ((k, a) for file in files for k, a in file.items() if k.count(" ") >= 2 and ")" in k):
        kind, offset, rest = key.split(" ", 2)
        shape, name = rest.rsplit(" ", 1)
        flat = whole.setdefault(
            f"{name} {kind}", np.full(json.loads(f"[{shape[1:-1].rstrip(',')}]"), np.nan, np.float32)
        ).reshape(-1)
        place = slice(int(offset), int(offset) + array.size)
        assert np.isnan(flat[place]).all()
        flat[place] = array.reshape(-1)
    return whole


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    for world in (1, WORLD):
        train(folder, world)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("case", ["lora", "full", "float16"])
def test_ranks_train_as_one(folder: Path, case: str) -> None:
    one = dict(np.load(folder / f"1_{case}_0.npz"))
    many = [dict(np.load(folder / f"{WORLD}_{case}_{rank}.npz")) for rank in range(WORLD)]
    for rank, file in enumerate(many):
        np.testing.assert_allclose(file["figures"], one["figures"], rtol=1e-5, err_msg=f"rank {rank}")
        assert file["texts"].tolist() == ["rank ", "rank 一"]
        assert file["most"] == WORLD - 1
    assert one["figures"][:, 2].all()
    alone, together = joined([one]), joined(many)
    assert together.keys() == alone.keys()
    for name, expected in alone.items():
        np.testing.assert_allclose(together[name], expected, rtol=2e-3, atol=2e-5, err_msg=name)
    held = [int(file["bytes_held"]) for file in many]
    assert sum(held) == one["bytes_held"]
    assert max(held) < 0.51 * sum(held)
