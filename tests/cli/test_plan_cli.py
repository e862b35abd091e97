"""tengtune plan, as people run it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from tests.examples import EXAMPLES
from tests.tiny import tiny_config

from tengtune.cli.main import main
from tengtune.ui import language

SMOLLM2 = tiny_config(
    hidden_size=576,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    intermediate_size=1536,
    vocab_size=49152,
    max_position_embeddings=8192,
    tie_word_embeddings=True,
)
GOLDEN = {
    # name: hardware, verdict of a card, expected GB, what the back end lacks, GB by hand that it is above
    # 0.494B x 2 bytes, and 512 tokens of activations; 31.7 GB are there.
    "ascend-qa.zh": ("910b4", "fits", 2.5, [], 0.98),
    # 0.135B x 2 bytes.
    "demo": ("910b4", "fits", 1.0, [], 0.26),
    # 12.61B linears x 1 byte, embedding and head 1.56B x 2: well below 31.7. There is no int8 base so far.
    "plan-a-14b-lora-1x32g": ("1x32g", "fits", 17.8, ["int8_base"], 15.7),
    # 14.17B x 2 bytes of weights / 4; gradients and optimizer in the host. Neither is there so far.
    "plan-b-14b-full-4x32g": ("4x atlas-300t-a2", "fits", 15.3, ["zero_3", "offload_optimizer"], 7.08),
    # 7.72B x 2 bytes on each card, of 31.7.
    "qwen-7b-chat-lora-8x32g": ("8x32g", "fits", 17.4, [], 15.4),
    # 14.17B x 16 bytes / 8; embedding, head and their gradients, 4 x 0.78B x 4 bytes. 65.5 are there.
    "qwen14b-8x64g": ("8x64g", "fits", 50.3, [], 28.3 + 12.4),
    # 7.62B x 2 bytes, of 65.5.
    "qwen2.5-7b-lora-1x64g": ("1x64g", "fits", 17.3, [], 15.2),
    # 7.72B x 16 bytes / 8, and four times 0.62B x 4 bytes gathered; 65.5 are there, 31.7 would not do.
    "qwen7b-chat-8x910b": ("8x910b3", "fits", 32.4, [], 15.4 + 9.9),
}


def plan(*arguments: str, lang: str = "en") -> tuple[int, str, str]:
    """The command in this process: its exit code, stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as caught:
        main(["plan", "--lang", lang, *arguments])
    assert "Traceback" not in err.getvalue()
    return int(caught.value.code or 0), out.getvalue(), err.getvalue()


def data(*arguments: str) -> dict[str, Any]:
    code, out, _ = plan(*arguments, "--json")
    answer: dict[str, Any] = json.loads(out)
    assert code == (3 if answer["verdict"] in ("no", "cannot") else 0)
    return answer


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def language_of_its_own() -> Iterator[None]:
    yield
    language.choose(None)


def test_no_example_is_left_out() -> None:
    assert set(GOLDEN) == {path.stem for path in EXAMPLES.glob("*.yaml")}


@pytest.mark.parametrize("name", GOLDEN)
def test_every_example_has_its_verdict(name: str, tmp_path: Path) -> None:
    cards, verdict, expected_gb, lacking, by_hand = GOLDEN[name]
    model = []
    if name == "demo":
        (tmp_path / "config.json").write_text(json.dumps(SMOLLM2), "utf-8")
        model = ["-s", f"model={tmp_path}"]
    answer = data(str(EXAMPLES / f"{name}.yaml"), "--hardware", cards, *model)
    assert answer["card"]["verdict"] == verdict
    assert answer["card"]["needs"]["expected"] / 1e9 == pytest.approx(expected_gb, abs=0.06)
    assert answer["card"]["needs"]["low"] / 1e9 > by_hand
    assert answer["lacking"] == lacking


ASKED = ("--model", "Qwen/Qwen-14B-Chat", "--hardware", "4x atlas-300t-a2", "--method", "full")


def test_one_screen_with_the_sum_and_the_way_out() -> None:
    code, out, err = plan(*ASKED, "--explain")
    assert (code, err) == (3, "")
    lines = out.splitlines()
    assert lines[0] == "Qwen/Qwen-14B-Chat (14.17B), all weights, 4 cards, Atlas 300T A2"
    assert any(line.startswith("one card") and "does not fit" in line for line in lines)
    sums = [line.split() for line in lines if line.startswith("sum ")]
    terms = ("weights", "gradients", "optimizer", "activations", "logits", "communication", "context", "frag")
    assert all(any(line.startswith(term) for line in lines) for term in terms)
    assert float(sums[0][1]) > 31.7
    assert "parallel.offload: optimizer" in out
    assert "tengtune does not have parallel.zero: 3, parallel.offload: optimizer yet" in out
    assert "What tengtune runs today: " in out
    assert "bytes a trained parameter: weight 2" in out
    assert "is not confirmed by any source" in out


def test_the_same_in_chinese() -> None:
    code, out, _ = plan(*ASKED, "--explain", lang="zh")
    assert code == 3
    assert all(text in out for text in ("单卡显存", "放不下", "最小改动：", "碎片", "合计"))


def test_the_terms_add_up() -> None:
    card = data(*ASKED)["card"]
    for bound in ("low", "expected", "high"):
        assert sum(each[bound] for each in card["terms"].values()) == pytest.approx(
            card["needs"][bound], abs=9
        )


@pytest.mark.parametrize(("host_gb", "verdict"), [(512, "fits"), (256, "no")])
def test_the_hosts_memory_decides(host_gb: int, verdict: str) -> None:
    offload = ("--zero", "3", "--offload", "all", "--host-memory", str(host_gb), "--engine", "deepspeed")
    answer = data(*ASKED, *offload)
    assert answer["card"]["verdict"] == "fits"
    assert answer["host"]["verdict"] == answer["verdict"] == verdict


def test_layers_over_four_cards() -> None:
    alone, shared = (data(*ASKED, "--engine", "mindspeed", "--tensor", n)["card"] for n in ("1", "4"))
    for term in ("weights", "gradients", "optimizer"):
        assert shared["terms"][term]["expected"] == pytest.approx(alone["terms"][term]["expected"] / 4)
    assert "layers over 4 cards" in plan(*ASKED, "--engine", "mindspeed", "--tensor", "4")[1]


def test_disk_is_judged_where_it_is_known() -> None:
    answer = data(*ASKED, "--disk", "100", "--zero", "3", "--offload", "all")
    assert (answer["disk"]["verdict"], answer["verdict"]) == ("no", "no")


@pytest.mark.parametrize(
    ("text", "size"), [("768", 768e9), ("768GB", 768e9), ("1.5 TB", 1.5e12), ("64GiB", 64 * 2**30)]
)
def test_sizes_as_people_write_them(text: str, size: float) -> None:
    assert data("--model", "Qwen-7B", "--hardware", "910b4", "--host-memory", text)["host"]["there"] == size


@pytest.mark.parametrize("text", ["0", "-5", "x", "768 MB", "nan", "2e9"])
def test_what_is_no_size_is_said_with_what_is(text: str) -> None:
    code, out, err = plan("--model", "Qwen-7B", "--hardware", "910b4", f"--disk={text}")
    assert (code, out) == (2, "")
    assert "so many GB, as in 768, 768GB or 1.5TB" in err


def test_full_tuning_takes_the_back_end_that_fits() -> None:
    answer = data("--model", "Qwen/Qwen-7B-Chat", "--hardware", "8x 910b3", "--method", "full")
    assert (answer["verdict"], answer["engine"], answer["lacking"]) == ("fits", "mindspore", [])


def test_a_config_alone_is_enough(here: Path) -> None:
    (here / "config.json").write_text(json.dumps(SMOLLM2), "utf-8")
    for model in ("config.json", "."):
        answer = data("--model", model, "--hardware", "910b4")
        assert answer["parameters"] == 134_515_008 + 30 * 960  # and biases of q, k, v
        assert answer["verdict"] == "fits"


@pytest.mark.parametrize("asked", [("--engine", "hf-trainer"), ("--engine", "mindspore", "--method", "full")])
def test_where_nothing_helps_that_is_said(asked: tuple[str, ...]) -> None:
    """Four cards of 32 GB are less than the 145 GB of a 72B's weights in 16 bits."""
    code, out, _ = plan("--model", "Qwen-72B", "--hardware", "910b4", *asked)
    assert (code, "No one to three changes" in out) == (3, True)


def test_a_cpu_has_this_machines_memory() -> None:
    answer = data(
        "--model", "Qwen2.5-72B-Instruct", "--hardware", "cpu", "--method", "full", "--host-memory", "64"
    )
    assert (answer["verdict"], answer["card"]["verdict"]) == ("no", "no")
    answer = data("--model", "Qwen2.5-0.5B-Instruct", "--hardware", "cpu")
    assert answer["host"]["there"] > 10**9


def test_settings_of_a_run_file_count(here: Path) -> None:
    (here / "run.yaml").write_text("model: Qwen/Qwen-14B-Chat\ndata: d.json\n", "utf-8")
    short = data("run.yaml", "--hardware", "910b4", "-s", "train.recompute=full")
    long = data("--hardware", "910b4", "-s", "data.seq_len=4096")
    assert short["verdict"] == "tight"
    assert long["verdict"] == "no"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--model", "Qwen/Qwen-15B-Chat", "--hardware", "910b4"), "plan.unknown_model"),
        (("--model", "Qwen-7B", "--hardware", "atlas-800t-b2"), "plan.unknown_hardware"),
        (("--model", "Qwen-7B", "--hardware", "310p3"), "plan.no_training"),
        (("--model", "Qwen-7B", "--hardware", "-4x910b3"), "plan.bad_count"),
        (("--model", "Qwen3-30B-A3B", "--hardware", "910b4"), "plan.moe_model"),
        (("--model", "Qwen/Qwen2-VL-7B-Instruct", "--hardware", "910b4"), "plan.media_model"),
        (("--model", "Qwen2.5-7B-Instruct-GPTQ-Int4", "--hardware", "910b4"), "plan.quantized_model"),
        (("run.yaml", "--model", "Qwen-7B", "--hardware", "910b4"), "ui.wrong_option"),
        (("run.yaml", "--method", "full", "--hardware", "910b4"), "ui.wrong_option"),
        (("run.yaml", "--hardware", "2x910b4"), "plan.more_ranks"),
        ((*ASKED, "--offload", "all", "--zero", "2"), "ui.wrong_option"),
        ((*ASKED, "--tensor", "4"), "ui.wrong_option"),
        *(((*ASKED, option, "nan"), "ui.bad_value") for option in ("--tokens", "--host-memory", "--disk")),
        (("--model", "empty", "--hardware", "910b4"), "model.no_config"),
        ((*ASKED, "--engine", "mindspeed", "--tensor", "3"), "ui.wrong_option"),
    ],
)
def test_faults_are_one_screen(arguments: tuple[str, ...], code: str, here: Path) -> None:
    run = "model: Qwen/Qwen-7B-Chat\ndata: d.json\nparallel: {ranks: 4}\n"
    (here / "run.yaml").write_text(run, "utf-8")
    (here / "empty").mkdir()
    ended, out, err = plan(*arguments)
    assert ended == (3 if code == "plan.no_training" else 2)
    assert f" {code}," in err
    assert out == ""


@pytest.mark.parametrize("more", [(), ("--method", "full"), ("--seq-len", "2048")])
def test_without_a_model_and_a_run_file_a_model_is_asked_for(more: tuple[str, ...]) -> None:
    code, _, err = plan("--hardware", "910b", *more)
    assert (code, " plan.needs_model," in err, "--model Qwen" in err) == (2, True, True)


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--seq-len", "-5"),
        ("--tokens", "abc"),
        ("--disk", "1,5TB"),
        ("--method", "qlora"),
        ("--tensor", "2.5"),
    ],
)
def test_a_value_that_is_not_taken_is_repeated(option: str, value: str, lang: str) -> None:
    code, _, err = plan(*ASKED, option, value, lang=lang)
    assert code == 2
    assert value in err.splitlines()[0]


def test_without_hardware_it_is_this_machines_cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Path(__file__).resolve().parents[1] / "fixtures/npu-smi/info_910B4-1_25.2.2_2card_procs.txt"
    tool = tmp_path / "npu-smi"
    tool.write_text(f"#!/bin/sh\ncat {table}\n", "utf-8")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    answer = data("--model", "Qwen-7B")
    assert (answer["hardware"], answer["strategy"]["cards"]) == ("910B4-1", 2)
    assert answer["card"]["nominal"] == 64 << 30
    assert answer["host"]["there"] > 10**9


def test_no_framework_and_no_pydantic_are_loaded() -> None:
    code = (
        "import sys\nfrom tengtune.cli.main import _guarded\n"
        f"_guarded(['plan', '--quiet', *{list(ASKED)!r}])\n"
        "print(sorted({'torch', 'mindspore', 'numpy', 'pydantic', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


# Time.

FITS = ("--model", "Qwen/Qwen-7B-Chat", "--hardware", "8x910b3", "--seq-len", "2048", "--recompute", "full")


def test_tokens_a_second_and_hours_of_so_many() -> None:
    found = data(*FITS, "--tokens", "1e9")["time"]
    assert found["tokens"] == 3e9  # three epochs, as in a run file that does not say
    speed, hours = found["tokens_per_s"], found["hours"]
    assert 0 < speed["low"] < speed["expected"] < speed["high"]
    for one, other in (("low", "high"), ("expected", "expected"), ("high", "low")):
        assert hours[one] * 3600 * 8 * speed[other] == pytest.approx(3e9)
    code, out, _ = plan(*FITS, "--tokens", "1e9", "--explain")
    assert code == 0
    # 29.5 GFLOP a token by hand, and half as much again with recompute
    assert all(text in out for text in ("tokens/s a card", " h (", "44.2 GFLOP a token", "GB/s"))


def test_without_tokens_there_are_no_hours() -> None:
    answer = data(*FITS)
    assert answer["time"]["hours"] is None
    _, out, _ = plan(*FITS)
    assert "tokens/s a card" in out
    assert "\ntime " not in out


def test_the_data_steps_rows_are_the_work(here: Path) -> None:
    (here / "run.yaml").write_text("model: Qwen/Qwen-7B-Chat\ndata: d.json\ntrain: {epochs: 2}\n", "utf-8")
    asked = ("run.yaml", "--hardware", "910b3")
    assert data(*asked)["time"]["hours"] is None
    store = {"format": "tengtune store", "version": 1, "rows": 1000, "seq_len": 1024}
    store |= {"tokens": 900_000, "trained_tokens": 300_000}
    from tengtune import recipe as recipes

    folder = recipes.load(here / "run.yaml", (), 1).folder / "data" / "train"
    folder.mkdir(parents=True)
    (folder / "store.json").write_text(json.dumps(store), "utf-8")
    assert data(*asked)["time"]["tokens"] == 2 * 1000 * 1024
    _, out, _ = plan(*asked)
    assert "1,000 rows with 900,000 tokens, 300,000 of them trained, x 2" in out
    # ten steps of eight rows are 80 rows; rows of another length are not these
    assert data(*asked, "-s", "train.max_steps=10")["time"]["tokens"] == 80 * 1024
    assert data(*asked, "-s", "data.seq_len=2048")["time"]["hours"] is None
    broken = [{"rows": rows} for rows in (10**400, 10**16, 1.5, True, -1, float("inf"), float("nan"), "9")]
    broken += [{"tokens": -7}, {"tokens": []}, {"trained_tokens": None}]
    texts = [json.dumps({**store, **each}) for each in broken]
    for text in ("{", "[]", "", json.dumps(store).replace("1000,", "1e400,"), *texts):
        (folder / "store.json").write_text(text, "utf-8")
        assert data(*asked)["time"]["hours"] is None


def test_no_time_where_no_peak_is_known() -> None:
    answer = data("--model", "Qwen2.5-0.5B", "--hardware", "cpu", "--tokens", "1e6")
    assert answer["time"] is None
    assert any("No time" in note for note in answer["notes"])


def test_a_derived_peak_is_said() -> None:
    notes = data("--model", "Qwen2.5-7B", "--hardware", "1x atlas-300t-a2")["notes"]
    assert any("No official figure of how much Atlas 300T A2 computes" in note for note in notes)


def test_what_does_not_fit_has_no_speed_on_the_screen() -> None:
    _, out, _ = plan(*ASKED, "--tokens", "1e9")
    assert "tokens/s a card" not in out
