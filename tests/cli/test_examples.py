"""Every run file under examples/ rehearses, or is refused for what is not there yet with nothing done."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_rehearse import rehearse, stages
from tests.cli.test_start import tengtune
from tests.examples import EXAMPLES
from tests.qwen1 import qwen1_config
from tests.tiny import tiny_config

from tengtune import capabilities
from tengtune import recipe as recipes
from tengtune.models.spec import from_config
from tengtune.models.targets import find_targets

TOKENIZERS = EXAMPLES.parent / ".cache" / "tokenizers"
QWEN_7B = qwen1_config(
    tiny_config(
        hidden_size=4096,
        num_hidden_layers=32,
        num_attention_heads=32,
        intermediate_size=11008,
        vocab_size=151936,
        max_position_embeddings=8192,
    )
)
QWEN_14B = qwen1_config(
    tiny_config(
        hidden_size=5120,
        num_hidden_layers=40,
        num_attention_heads=40,
        intermediate_size=13696,
        vocab_size=152064,
        max_position_embeddings=8192,
    )
)
REHEARSED: dict[str, tuple[dict[str, Any], str]] = {
    "qwen2.5-7b-lora-1x64g": (
        tiny_config(
            hidden_size=3584,
            num_hidden_layers=28,
            num_attention_heads=28,
            num_key_value_heads=4,
            intermediate_size=18944,
            vocab_size=152064,
            max_position_embeddings=32768,
        ),
        "qwen3/tokenizer.json",
    ),
    "qwen-7b-chat-lora-8x32g": (QWEN_7B, "qwen1/qwen.tiktoken"),
    "qwen7b-chat-8x910b": (QWEN_7B, "qwen1/qwen.tiktoken"),
    "ascend-qa.zh": (
        tiny_config(
            hidden_size=896,
            num_hidden_layers=24,
            num_attention_heads=14,
            num_key_value_heads=2,
            intermediate_size=4864,
            vocab_size=151936,
            max_position_embeddings=32768,
            tie_word_embeddings=True,
        ),
        "qwen3/tokenizer.json",
    ),
}
"""Run files and, of their models, the config and a vocabulary."""
REFUSED: dict[str, tuple[dict[str, Any], str, set[str]]] = {
    "plan-a-14b-lora-1x32g": (QWEN_14B, "capability.int8_base", {"int8_base"}),
    "plan-b-14b-full-4x32g": (QWEN_14B, "capability.zero", {"zero_3", "offload_optimizer"}),
}
"""Run files, the config of their models, the Problem, and all that their back end lacks."""
ALIKE: dict[str, dict[str, Any]] = {"qwen14b-8x64g": QWEN_14B}
"""Rehearsed by hand only: as qwen7b-chat-8x910b in another size, and MindSpore's ranks take a while."""
COMMANDS = [(name, command) for name in REFUSED for command in ("rehearse", "train --dry-run")]
OURS = {"demo"}
"""Run by tests/cli/test_demo.py."""
NOT_ON_A_CARD = "尚未在真实的卡上运行过 / not run on a card so far."


def header(path: Path) -> list[str]:
    """The comment lines at the beginning of a run file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return lines[: next(i for i, line in enumerate(lines) if not line.startswith("#"))]


def everything(folder: Path) -> dict[str, int]:
    """All files and folders below, with the time of their last change."""
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_no_example_is_left_out() -> None:
    named = [*REHEARSED, *REFUSED, *ALIKE, *OURS]
    assert sorted(path.stem for path in EXAMPLES.rglob("*.y*ml")) == sorted(named)


@pytest.mark.slow
@pytest.mark.parametrize("name", REHEARSED)
def test_it_rehearses(name: str, tmp_path: Path) -> None:
    """Of the model its config and its tokenizer are enough."""
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    run = tmp_path / "examples" / f"{name}.yaml"
    config, tokenizer = REHEARSED[name]
    model = recipes.load(run).model_folder
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps(config), "utf-8")
    shutil.copy(TOKENIZERS / tokenizer, model)
    code, said = rehearse(run, "--json")
    assert code == 0, said
    assert stages(said)["resume"]["showed"].startswith("6 steps done")


@pytest.mark.parametrize(
    ("name", "command"),
    [*COMMANDS, ("plan-b-14b-full-4x32g", "run"), ("plan-b-14b-full-4x32g", "train --fresh")],
)
def test_it_is_refused_before_anything_is_done(name: str, command: str, tmp_path: Path) -> None:
    """The model is not there: whoever began would fetch it, and be told that there is no network."""
    shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=shutil.ignore_patterns("*.py"))
    (tmp_path / "runs" / recipes.load(EXAMPLES / f"{name}.yaml").name).mkdir(parents=True)
    before = everything(tmp_path)
    word, *options = command.split()
    done = tengtune(word, f"examples/{name}.yaml", *options, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert f"code {REFUSED[name][1]}, exit 2" in done.stderr
    assert done.stdout == ""
    assert everything(tmp_path) == before


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_all_that_is_wrong(name: str) -> None:
    """What it says fits the model, so that it runs once its features are there."""
    config, _, lacking = REFUSED[name]
    recipe, spec = recipes.load(EXAMPLES / f"{name}.yaml"), from_config(config)
    asked = {each.name for each in capabilities.FEATURES.values() if each.asked(recipe, spec)}
    assert {each for each in asked if not capabilities.has(each, recipe.backend)} == lacking
    if recipe.train.method == "lora":
        linears = [
            "self_attn.qkv_proj",
            "self_attn.o_proj",
            *(f"mlp.{n}_proj" for n in ("gate", "up", "down")),
        ]
        assert find_targets(spec, recipe.lora.targets, recipe.file) == linears


@pytest.mark.parametrize("name", ALIKE)
def test_what_is_alike_is_refused_nothing(name: str) -> None:
    recipe, spec = recipes.load(EXAMPLES / f"{name}.yaml"), from_config(ALIKE[name])
    asked = [each.name for each in capabilities.FEATURES.values() if each.asked(recipe, spec)]
    assert {"full", "float16", "ranks", "zero_3"} <= set(asked)
    assert all(capabilities.has(each, recipe.backend) for each in asked)


@pytest.mark.parametrize("name", [*REHEARSED, *REFUSED, *ALIKE])
def test_its_first_lines_are_the_commands(name: str) -> None:
    commands = [line for line in header(EXAMPLES / f"{name}.yaml") if line.startswith("# tengtune ")]
    words = [re.sub(r"\s+", " ", line[2:]).split(" ")[:3] for line in commands]
    file = f"examples/{name}.yaml"
    assert header(EXAMPLES / f"{name}.yaml")[: len(commands)] == commands
    assert words[-1] == ["tengtune", "run", file]
    assert ["tengtune", "data", file] in words
    if (hub := recipes.load(EXAMPLES / f"{name}.yaml").hub_model) is None:
        return
    assert words[0] == ["tengtune", "download", hub]
    assert f" --to examples/models/{hub.split('/')[1]} " in commands[0]
    assert ["tengtune", "rehearse", file] in words
    assert f"# {NOT_ON_A_CARD}" in header(EXAMPLES / f"{name}.yaml")


@pytest.mark.parametrize(
    ("config", "parameters"), [(QWEN_7B, 7_721_324_544), (QWEN_14B, 14_167_290_880)], ids=["7b", "14b"]
)
def test_the_sums_in_the_headers(config: dict[str, Any], parameters: int) -> None:
    """Bytes a parameter x published parameters, in GB, as the headers have them."""
    assert from_config(config).parameters() == parameters
    billions = parameters / 1e9
    wanted = {
        7_721_324_544: {"qwen7b-chat-8x910b": (16 / 8,)},
        14_167_290_880: {
            "plan-a-14b-lora-1x32g": (2,),
            "plan-b-14b-full-4x32g": (16 / 4, 2 + 14 / 4, 4 / 4),
            "qwen14b-8x64g": (2 + 2 + 12 / 8, 2 + 14 / 8, 16 / 8),
        },
    }[parameters]
    for name, sizes in wanted.items():
        text = "\n".join(header(EXAMPLES / f"{name}.yaml"))
        for size in sizes:
            assert text.count(f"{size * billions:.1f} GB") == 2, (name, size)
