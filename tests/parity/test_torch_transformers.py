"""The PyTorch back end against transformers and peft on random models."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import peft
import pytest
import torch
import transformers
from tests.batches import Document, make_batch, random_documents
from tests.torch_lab import gradients, logits, make_backend, make_recipe, randomize_adapters

from tengtune.backends.torch.step import TorchBackend
from tengtune.models.spec import from_folder
from tengtune.train.lora_init import initial_a
from tengtune.weights.source import open_source

# peft 0.21.2 asks transformers 5.24 for a property that one has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

VOCAB = 160
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rope_parameters": {"rope_type": "default", "rope_theta": 50000.0},
    "rms_norm_eps": 1e-5,
}


def reference(family: str, tie: bool, dtype: torch.dtype, seed: int = 5) -> transformers.PreTrainedModel:
    """A random model of transformers in which no bias and no norm is at its neutral value."""
    kind = {"qwen2": transformers.Qwen2Config, "qwen3": transformers.Qwen3Config}[family]
    shape = SHAPE if family == "qwen2" else {**SHAPE, "head_dim": 16}
    config = kind(**shape, tie_word_embeddings=tie, attn_implementation="sdpa")
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in name else 0.0, 0.15, generator=random)
    return model.eval()


def padded(documents: list[Document]) -> dict[str, torch.Tensor]:
    """One document a row, as transformers takes them; a document's first label never counts."""
    longest = max(d.ids.size for d in documents)
    ids, mask = torch.zeros(len(documents), longest, dtype=torch.long), torch.zeros(len(documents), longest)
    labels = torch.full_like(ids, -100)
    for row, document in enumerate(documents):
        size = document.ids.size
        ids[row, :size] = torch.from_numpy(document.ids)
        mask[row, :size] = 1
        labels[row, :size] = torch.from_numpy(np.where(document.train, document.ids, -100))
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


@pytest.mark.parametrize(("family", "tie"), [("qwen2", True), ("qwen2", False), ("qwen3", True)])
def test_float64_through_files(family: str, tie: bool, tmp_path: Path) -> None:
    """Saved by transformers, read by our loader: loss and gradients agree to nine digits."""
    model = reference(family, tie, torch.float64)
    model.save_pretrained(tmp_path)
    spec = from_folder(tmp_path)
    backend = make_backend(spec, open_source(tmp_path, spec), make_recipe("full"), torch.float64)
    documents = random_documents([19, 7, 31, 2], VOCAB)
    batch = make_batch([documents[:2], documents[2:]], 40)

    inputs = padded(documents)
    wide_norms(model)
    output = model(**inputs)
    # The loss of transformers is float32; torch's own is not.
    shifted, wanted = output.logits[:, :-1].flatten(0, 1), inputs["labels"][:, 1:].flatten()
    expected = torch.nn.functional.cross_entropy(shifted, wanted)
    expected.backward()
    loss_sum, found = gradients(backend, batch, 1 / batch.trained_tokens)
    assert loss_sum / batch.trained_tokens == pytest.approx(expected.item(), abs=1e-9)
    for name, parameter in model.named_parameters():
        np.testing.assert_allclose(found[name], parameter.grad.numpy(), rtol=0, atol=1e-9, err_msg=name)
    real = output.logits[inputs["attention_mask"].bool()].detach().numpy()
    np.testing.assert_allclose(logits(backend, batch), real, rtol=0, atol=1e-5)


def wide_norms(model: transformers.PreTrainedModel) -> None:
    """The norms of transformers round to float32 whatever the model's type: torch's own instead."""
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            weight, eps = module.weight, module.variance_epsilon
            module.forward = partial(_wide_norm, weight=weight, eps=eps)


def _wide_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x, weight.shape, weight, eps)


def with_peft(family: str, tmp_path: Path, **lora: object) -> tuple[peft.PeftModel, TorchBackend]:
    """The same model and the same adapter on both sides, B not zero."""
    model = reference(family, False, torch.float32)
    model.save_pretrained(tmp_path)
    spec = from_folder(tmp_path)
    recipe = make_recipe("lora", lora={"rank": 4, "alpha": 12, **lora}, lr=2e-3, weight_decay=0.1)
    backend = make_backend(spec, open_source(tmp_path, spec), recipe)
    randomize_adapters(backend)
    config = peft.LoraConfig(r=4, lora_alpha=12, target_modules=recipe.lora.targets, task_type="CAUSAL_LM")
    wrapped = peft.get_peft_model(model, config)
    ours = {s.name: torch.from_numpy(s.array) for s in backend.named_shards() if s.kind == "param"}
    outcome = peft.set_peft_model_state_dict(wrapped, {f"base_model.model.{n}": t for n, t in ours.items()})
    assert not outcome.unexpected_keys
    return wrapped, backend


ATTENTION_ONLY = ["q_proj", "v_proj"]
THE_OTHERS = ["k_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def peft_gradients(wrapped: peft.PeftModel) -> dict[str, np.ndarray]:
    """By our module's names, B turned as we keep it."""
    found = {}
    for name, parameter in wrapped.named_parameters():
        if parameter.requires_grad:
            name = name.removeprefix("base_model.model.").removesuffix(".default.weight")
            gradient = parameter.grad.numpy()
            found[name] = gradient.T if name.endswith("lora_B") else gradient
    return found


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
@pytest.mark.parametrize(
    "targets", [["q_proj", "v_proj"], ["k_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]]
)
def test_lora_is_pefts(family: str, targets: list[str], tmp_path: Path) -> None:
    wrapped, backend = with_peft(family, tmp_path, targets=targets)
    documents = random_documents([20, 9, 14], VOCAB, seed=3)
    batch = make_batch([documents], 48)
    loss = wrapped(**padded(documents)).loss
    loss.backward()
    loss_sum, found = gradients(backend, batch, 1 / batch.trained_tokens)
    assert loss_sum / batch.trained_tokens == pytest.approx(loss.item(), abs=2e-6)
    expected = peft_gradients(wrapped)
    assert found.keys() == expected.keys()
    assert len(found) == 2 * 3 * len(targets)
    for name, gradient in expected.items():
        np.testing.assert_allclose(found[name], gradient, rtol=1e-3, atol=2e-6, err_msg=name)


def test_twenty_steps_are_those_of_peft(tmp_path: Path) -> None:
    """Both sides' losses on the same global batches, of two micro batches each, with clipping and decay."""
    wrapped, backend = with_peft("qwen2", tmp_path)
    wrapped.train()
    train = make_recipe(lr=2e-3, weight_decay=0.1).train
    optimizer = torch.optim.AdamW(
        [p for p in wrapped.parameters() if p.requires_grad],
        betas=(train.beta1, train.beta2),
        eps=train.eps,
        weight_decay=0.1,
    )
    ours, theirs = [], []
    for step in range(20):
        documents = random_documents([17, 11, 5, 24], VOCAB, seed=100 + step % 4)
        batches = [make_batch([documents[:2]], 32), make_batch([documents[2:]], 32)]
        tokens, lr = sum(b.trained_tokens for b in batches), 2e-3 * (1 - step / 20)
        ours.append(float(backend.train_step(batches, tokens, lr, 1.0).loss_sum) / tokens)
        optimizer.param_groups[0]["lr"] = lr
        loss = wrapped(**padded(documents)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_([p for p in wrapped.parameters() if p.requires_grad], train.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        theirs.append(loss.item())
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)
    assert ours[-1] < ours[0] - 0.5


def test_an_untrained_adapter_changes_nothing(tmp_path: Path) -> None:
    """B is zero at the start, A is the seeded draw."""
    model = reference("qwen2", False, torch.float32)
    model.save_pretrained(tmp_path)
    spec = from_folder(tmp_path)
    source = open_source(tmp_path, spec)
    tuned, plain = (make_backend(spec, source, make_recipe(method, seed=9)) for method in ("lora", "full"))
    batch = make_batch([random_documents([20, 9], VOCAB)], 32)
    np.testing.assert_array_equal(logits(tuned, batch), logits(plain, batch))
    parameters = {s.name: s.array for s in tuned.named_shards() if s.kind == "param"}
    name = "model.layers.2.mlp.down_proj.lora_A.weight"
    np.testing.assert_array_equal(parameters[name], initial_a(9, name, 8, 80))
    assert all(not array.any() for n, array in parameters.items() if "lora_B" in n)
