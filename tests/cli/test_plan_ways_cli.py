"""tengtune plan: the ways it finds, and what it writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.test_plan_cli import data, plan
from tests.cli.test_rehearse import rehearse
from tests.examples import EXAMPLES
from tests.tiny import tiny_model, tiny_tokenizer

from tengtune import recipe as recipes
from tengtune.report import plot
from tengtune.ui import language

SEVEN = ("--model", "Qwen/Qwen-7B-Chat", "--hardware", "8x910b3")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    language.choose(None)


def test_the_screen_has_the_first_five_and_json_has_all() -> None:
    code, out, _ = plan(*SEVEN)
    lines = out.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("How tengtune can run it"))
    table = [line.split() for line in lines[start + 2 : start + 7]]
    assert [row[0] for row in table] == ["1", "2", "3", "4", "5"]
    assert table[0][1:5] == ["torch", "8", "1", "none"]
    assert code == 0
    ways = data(*SEVEN)["ways"]
    assert f"{len(ways) - 5} more ways: --json" in lines
    assert [way["engine"] for way in ways[:5]] == [row[1] for row in table]
    assert ways[0]["tokens_per_s"]["expected"] == pytest.approx(float(table[0][-2]), rel=0.1)
    assert ways[0]["unverified"] == ["lora", "bfloat16", "ranks", "qwen1_lora"]


def test_what_is_planned_is_the_best_way() -> None:
    answer = data(*SEVEN)
    strategy = answer["strategy"]
    assert (answer["engine"], strategy["cards"], strategy["recompute"]) == ("torch", 8, False)
    assert answer["card"]["needs"]["expected"] == answer["ways"][0]["card"]["expected"]


def test_what_is_named_is_not_chosen() -> None:
    ways = data(*SEVEN, "--recompute", "full", "--micro-batch", "2", "--global-batch", "64")["ways"]
    assert {(way["recompute"], way["micro_batch"]) for way in ways} == {("full", 2)}
    assert {way["cards"] * way["micro_batch"] * way["accumulate"] for way in ways} == {64}
    assert {way["engine"] for way in data(*SEVEN, "--engine", "mindspore")["ways"]} == {"mindspore"}
    assert data(*SEVEN, "--engine", "deepspeed")["ways"] == []


@pytest.mark.parametrize(
    ("asked", "cards", "said"),
    [
        (("--global-batch", "7"), 1, "7 rows of a step cannot be shared evenly by 8 cards"),
        (("--global-batch", "12"), 4, "--global-batch 16 lets all of them work"),
        # loading takes a copy of 2.49 GB for each card
        (("--host-memory", "12"), 4, "All 8 cards would take 20 GB of host memory while loading, of 12 GB"),
        ((), 8, None),
        (("--micro-batch", "3"), 8, None),
    ],
)
def test_that_not_all_cards_are_used_has_its_reason(
    asked: tuple[str, ...], cards: int, said: str | None
) -> None:
    _, out, _ = plan(*SEVEN, *asked)
    assert data(*SEVEN, *asked)["ways"][0]["cards"] == cards
    assert said is None or said in out
    assert ("fewer are used" in out) == (said is not None)


def test_rows_of_a_step_are_as_many_micro_batches_for_every_card() -> None:
    best = data(*SEVEN, "--micro-batch", "3")["ways"][0]
    assert (best["cards"], best["micro_batch"], best["accumulate"]) == (8, 3, 1)
    code, _, err = plan(*SEVEN, "--micro-batch", "3", "--global-batch", "8")
    assert (code, "--global-batch must be a multiple of --micro-batch" in err) == (2, True)


@pytest.mark.parametrize(
    ("cards", "heading"),
    [
        ("2x Atlas 800T A2", "2 machines x 8 cards, Atlas 800T A2"),
        ("8x910b3", "8 cards, 910B3"),
        ("910b3", "1 card, 910B3"),
        ("cpu", "1 rank on a CPU"),
    ],
)
def test_the_heading_has_machines_and_cards(cards: str, heading: str) -> None:
    _, out, _ = plan("--model", "Qwen2.5-7B", "--hardware", cards)
    assert out.splitlines()[0].endswith(f", {heading}")


def test_ranks_on_a_cpu_are_as_many_as_are_asked_for() -> None:
    Path("run.yaml").write_text("model: Qwen/Qwen2.5-0.5B\ndata: d.json\nparallel: {ranks: 4}\n", "utf-8")
    one, four = (data("run.yaml", "--hardware", "cpu", "-s", f"parallel.ranks={n}") for n in (1, 4))
    assert (four["strategy"]["cards"], four["hardware"]) == (4, "CPU")
    # each rank has the 0.49B parameters in float32
    assert four["host"]["needs"]["expected"] - one["host"]["needs"]["expected"] > 3 * 4 * 0.49e9


def test_a_run_file_is_marked_among_the_ways() -> None:
    _, out, _ = plan(str(EXAMPLES / "qwen-7b-chat-lora-8x32g.yaml"), "--hardware", "8x910a")
    marked = [line.split() for line in out.splitlines() if line.strip().startswith(("1*", "2*", "3*"))]
    assert [row[1:5] for row in marked] == [["torch", "8", "1", "full"]]
    assert "*: as the run file has it" in out


def test_in_chinese() -> None:
    _, out, _ = plan("--model", "Qwen-14B", "--hardware", "4x910b4", "--method", "full", lang="zh")
    assert "“14B 全参微调约需 56 GB”，不成立" in out
    assert "优化器 42.5" in out
    assert "后端，微批 1 行，序列长度 1024，激活值重算，" in out
    _, out, _ = plan(*SEVEN, "--explain", lang="zh")
    assert "最接近的公开实测" in out


@pytest.mark.parametrize(
    ("cards", "asked", "text"),
    [
        ("8x910b3", (), "LoRA of rank 8 on bfloat16 weights"),
        ("8x910a", (), "LoRA of rank 8 on float16 weights"),
        ("8x910b3", ("--engine", "ms-swift"), "LoRA of rank 8 on 16-bit weights"),
        ("8x910b3", ("--base", "int8"), "LoRA of rank 8 on int8 weights"),
    ],
)
def test_the_type_of_the_frozen_weights_is_named(cards: str, asked: tuple[str, ...], text: str) -> None:
    _, out, _ = plan("--model", "Qwen-7B", "--hardware", cards, *asked)
    assert text in out.splitlines()[0]


def test_what_matters_is_on_one_screen_and_the_rest_on_demand() -> None:
    code, out, _ = plan(*SEVEN)
    assert code == 0
    assert len(out.splitlines()) <= 24
    assert "): weights 15.5 + optimizer 0.1 + activations 4.3 + logits 0.4 + " in out
    # facts/measurements.csv: 85 peaks and 73 speeds were scored (docs/benchmarks.md)
    assert "Never measured on a card." in out
    for score in (
        "memory 3% in the middle, 11% or more for one in ten",
        "of 85; speed 6% in the middle, 16% or",
    ):
        assert score in out
    _, whole, _ = plan(*SEVEN, "--explain")
    for text in ("The nearest published", "Host memory is without", "Counted from the back end's code"):
        assert text not in out
        assert text in whole


def test_the_largest_term_of_full_tuning_on_mindspore_has_its_figures() -> None:
    """Qwen-7B: embedding and head of 0.622B each, a block of 0.202B."""
    _, out, _ = plan(*SEVEN, "--method", "full", "--explain")
    assert "8 bytes x 1.24B of embedding and head" in out
    assert "4 x 0.62B for adding one + 12 x 0.20B of a block + 0.42 GB of HCCL" in out


def test_a_nearest_row_is_what_the_same_case_gets() -> None:
    """The row's settings as options give the figures that stand in the row."""
    asked = ("--model", "Qwen-7B", "--hardware", "a100", "--engine", "hf-trainer", "--rank", "64")
    asked += ("--seq-len", "1024", "--global-batch", "8", "--micro-batch", "1")
    row = data(*asked)["nearest"][0]
    now = row["strategy"]
    assert (row["program"], now["row_tokens"], now["rank"], now["rows"]) == ("hf-trainer", 1024, 64, 1)
    assert row["tokens_per_s"] == 2925.7
    answer = data(*asked, "--recompute", "full" if now["recompute"] else "none")
    assert answer["card"]["needs"]["expected"] == row["peak_predicted"]
    assert answer["time"]["tokens_per_s"]["expected"] == pytest.approx(
        row["tokens_per_s_predicted"], rel=1e-3
    )


def test_a_nearest_row_shows_how_its_cards_share() -> None:
    asked = ("--model", "Qwen-7B", "--hardware", "8x910b3", "--method", "full", "--seq-len", "8192")
    _, out, _ = plan(*asked, "--engine", "mindformers", "--explain")
    [split] = [line for line in out.splitlines() if line.startswith("mindformers") and " 1571 " in line]
    assert "tensor 4" in split
    _, out, _ = plan("--model", "Qwen-7B", "--hardware", "8x910b3", "--seq-len", "2048", "--explain")
    [plain] = [line for line in out.splitlines() if line.startswith("mindformers") and " 2695 " in line]
    assert "plain attention  none" in plain


# A run file of it.


@pytest.mark.parametrize(
    ("asked", "checks"),
    [
        (SEVEN, {"parallel.ranks": 8, "backend": "torch", "train.recompute": "none"}),
        (
            ("--model", "Qwen-14B-Chat", "--hardware", "8x64g", "--method", "full", "--seq-len", "512"),
            {"backend": "mindspore", "model.path": "Qwen/Qwen-14B-Chat", "data.seq_len": 512},
        ),
        (
            ("--model", "Qwen2.5-7B", "--hardware", "2x8x910b3", "--rank", "16", "--global-batch", "64"),
            {"parallel.nodes": 2, "lora.rank": 16, "train.global_batch": 64},
        ),
        (("--model", "Qwen-7B", "--hardware", "910a"), {"model.dtype": "auto", "parallel.ranks": 1}),
    ],
)
def test_a_new_run_file_is_one_and_fits(asked: tuple[str, ...], checks: dict[str, object]) -> None:
    code, out, _ = plan(*asked, "--write", "run.yaml")
    assert (code, "tengtune rehearse run.yaml" in out) == (0, True)
    recipe = recipes.load(Path("run.yaml"))
    for key, value in checks.items():
        group, _, name = key.rpartition(".")
        found = getattr(getattr(recipe, group) if group else recipe, name)
        assert found == value, key
    answer = data("run.yaml", "--hardware", asked[3])
    assert (answer["verdict"], answer["lacking"]) == ("fits", [])
    best = data(*asked)["ways"][0]
    assert answer["card"]["needs"]["expected"] == best["card"]["expected"]
    assert answer["ways"][0] == best


def test_a_given_run_file_keeps_what_the_best_way_does_not_change() -> None:
    text = (EXAMPLES / "plan-b-14b-full-4x32g.yaml").read_text("utf-8")
    Path("old.yaml").write_text(text, "utf-8")
    code, _, _ = plan("old.yaml", "--hardware", "8x64g", "--write", "new.yaml", "-s", "data.seq_len=512")
    assert code == 0
    made = Path("new.yaml").read_text("utf-8")
    before, after = text.splitlines(), made.splitlines()
    assert [pair for pair in zip(before, after, strict=True) if pair[0] != pair[1]] == [
        ("backend: torch", "backend: mindspore"),
        ("  seq_len: 1024", "  seq_len: 512"),
        ("  ranks: 4", "  ranks: 8"),
        ("  offload: optimizer", "  offload: none"),
    ]
    answer = data("new.yaml", "--hardware", "8x64g")
    assert (answer["verdict"], answer["lacking"]) == ("fits", [])


def test_an_impossible_type_becomes_auto() -> None:
    run = "model: {path: Qwen/Qwen-7B, dtype: bfloat16}  # mine\ndata: d.json\n"
    Path("run.yaml").write_text(run, "utf-8")
    assert data("run.yaml", "--hardware", "910a")["lacking"] == ["bfloat16"]
    assert plan("run.yaml", "--hardware", "910a", "--write", "new.yaml")[0] == 0
    assert Path("new.yaml").read_text("utf-8").splitlines()[0] == (
        "model: {path: Qwen/Qwen-7B, dtype: auto}  # mine"
    )
    assert data("new.yaml", "--hardware", "910a")["lacking"] == []


@pytest.mark.slow
def test_what_is_written_for_a_tiny_model_rehearses(here: Path) -> None:
    tiny_tokenizer(tiny_model(here / "model"))
    records = [{"instruction": f"question {n}?", "output": f"answer number {n}."} for n in range(40)]
    (here / "my.json").write_text(json.dumps(records), "utf-8")
    asked = ("--model", "model", "--hardware", "cpu", "--seq-len", "64", "--host-memory", "8")
    assert plan(*asked, "--write", "run.yaml", "--data", "my.json")[0] == 0
    recipe = recipes.load(Path("run.yaml"))
    assert (recipe.backend, recipe.data.files, recipe.model.path) == ("torch", ["my.json"], "model")
    code, said = rehearse(here / "run.yaml")
    assert code == 0, said


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ((*SEVEN, "--write", "there.yaml"), "plan.exists"),
        ((*SEVEN, "--png", "there.yaml"), "plan.exists"),
        ((*SEVEN, "--write", "folder", "--force"), "plan.is_folder"),
        ((*SEVEN, "--png", "folder"), "plan.is_folder"),
        ((*SEVEN, "--png", "/dev/null"), "io.not_plain"),
        ((*SEVEN, "--write", "there.yaml", "--data", "there.yaml", "--force"), "plan.is_read"),
        (("there.yaml", "--hardware", "910b4", "--png", "folder/../there.yaml", "--force"), "plan.is_read"),
        ((*SEVEN, "--write", "new.yaml", "--png", "./new.yaml"), "plan.written_twice"),
        ((*SEVEN, "--write", "new.yaml", "--engine", "deepspeed"), "plan.not_ours_to_write"),
        ((*SEVEN, "--compare", "--engine", "deepspeed"), "ui.wrong_option"),
        ((*SEVEN, "--write", "new.yaml", "--data", "none.json"), "run.no_data"),
        ((*SEVEN, "--data", "there.yaml"), "ui.wrong_option"),
        ((*SEVEN, "--compare", "--write", "new.yaml"), "ui.wrong_option"),
        ((*SEVEN, "--hardware", "910b4"), "ui.wrong_option"),
        (("there.yaml", "--hardware", "910b4", "--compare"), "ui.wrong_option"),
        (("there.yaml", "--hardware", "910b4", "--write", "folder/new.yaml"), "plan.write_beside"),
        (("--model", "Qwen-72B", "--hardware", "910b4", "--write", "new.yaml"), "plan.none_to_write"),
        ((*SEVEN, "--png", "none/mem.png"), "plan.no_folder"),
        ((*SEVEN, "--write", "none/more/new.yaml", "--force"), "plan.no_folder"),
        (("there.yaml", "--hardware", "910b4", "--write", "none/new.yaml"), "plan.no_folder"),
    ],
)
def test_faults_write_nothing(arguments: tuple[str, ...], code: str, here: Path) -> None:
    (here / "folder").mkdir()
    (here / "there.yaml").write_text("model: Qwen/Qwen-7B\ndata: d.json\n", "utf-8")
    before = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
    ended, out, err = plan(*arguments)
    assert ended == (3 if code == "plan.none_to_write" else 2)
    assert f" {code}," in err
    assert out == ""
    assert {path: path.read_bytes() for path in here.rglob("*") if path.is_file()} == before
    assert not (here / "none").exists()


def test_force_overwrites(here: Path) -> None:
    (here / "run.yaml").write_text("old", "utf-8")
    assert plan(*SEVEN, "--write", "run.yaml", "--force")[0] == 0
    assert recipes.load(Path("run.yaml")).model.path == "Qwen/Qwen-7B-Chat"


# A chart.


def test_a_chart(here: Path) -> None:
    code, out, _ = plan(*SEVEN, "--png", "memory.png", lang="zh")
    assert (code, out.splitlines()[-1]) == (0, "memory.png")
    assert (here / "memory.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_a_chart_without_matplotlib(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plot, "available", lambda: False)
    code, _, err = plan(*SEVEN, "--png", "memory.png", "--write", "run.yaml")
    assert code == 2
    assert "pip install 'tengtune[plot]'" in err
    assert list(here.iterdir()) == []
