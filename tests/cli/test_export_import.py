"""`tengtune export mindformers` and `tengtune import`, as commands."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file
from tests.tiny import tiny_model, tiny_tokenizer

from tengtune.recipe import load

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "mindformers"


def tengtune(folder: Path, *arguments: str, lang: str = "en") -> tuple[int, str, str]:
    environment = {**os.environ, "TENGTUNE_LANG": lang, "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-m", "tengtune", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=60, check=False)
    return done.returncode, done.stdout.decode("utf-8"), done.stderr.decode("utf-8")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    tiny_model(tmp_path / "model")
    (tmp_path / "a.json").write_text('[{"instruction": "a", "output": "b"}]', encoding="utf-8")
    (tmp_path / "run.yaml").write_text("model: model\ndata: a.json\n", encoding="utf-8")
    return tmp_path


def test_a_run_there_and_back(run: Path) -> None:
    code, out, err = tengtune(
        run, "export", "mindformers", "run.yaml", "--hardware", "8x 910b", "--out", "theirs"
    )
    assert code == 0, err
    assert {path.name for path in (run / "theirs").iterdir()} == {
        "finetune_qwen2.yaml",
        "predict_qwen2.yaml",
        "commands.sh",
    }
    script = (run / "theirs" / "commands.sh").read_text(encoding="utf-8")
    assert script in out
    assert f"tengtune data convert {run / 'a.json'}" in script
    assert "--columns target_ids" in script
    text = (run / "theirs" / "finetune_qwen2.yaml").read_text(encoding="utf-8")
    assert "# [no counterpart] data.pack: " in text
    assert "[no counterpart] data.pack: " in err
    tree = yaml.safe_load(text)
    assert tree["parallel_config"]["data_parallel"] == 8
    assert tree["load_checkpoint"] == str(run / "theirs" / "start")

    arguments = ["theirs/finetune_qwen2.yaml", "--model", "model", "--data", "a.json", "-o", "sub/back.yaml"]
    (run / "sub").mkdir()
    code, out, err = tengtune(run, "import", *arguments)
    assert code == 0, err
    assert out.splitlines()[-1] == "sub/back.yaml"
    back = load(run / "sub" / "back.yaml")
    assert (back.model_folder, back.resolve(back.data.files[0])) == (run / "model", run / "a.json")
    assert (back.train.lr, back.train.global_batch, back.parallel.ranks) == (3e-4, 8, 8)
    assert "path/to" not in err
    assert "config.json" not in err  # nothing of the shape differs


def test_the_commands_make_what_the_file_names_and_merge_what_a_run_leaves(run: Path) -> None:
    """All of tengtune's own but the MindRecord, which takes MindSpore; a split model stands in for a run."""
    tiny_tokenizer(run / "model")
    arguments = ["run.yaml", "-s", "train.method=full", "--hardware", "2x 910b", "--out", "theirs"]
    code, _, err = tengtune(run, "export", "mindformers", *arguments)
    assert code == 0, err
    folder = run / "theirs"
    sections = (folder / "commands.sh").read_text(encoding="utf-8").split("\n\n")
    head = next(each for each in sections if "HERE=" in each)
    weights, merging = (next(e for e in sections if word in e) for word in ("mkdir -p", "tengtune merge"))
    bash(run, f"{head}\n{weights}")
    tree = yaml.safe_load((folder / "finetune_qwen2.yaml").read_text(encoding="utf-8"))
    assert (Path(tree["load_checkpoint"]) / "rank_0" / "model.ckpt").is_file()
    assert Path(tree["processor"]["tokenizer"]["vocab_file"]).is_file()
    assert Path(tree["processor"]["tokenizer"]["merges_file"]).is_file()
    bash(run, f"{head}\ntengtune merge --split theirs/ms --ranks 2 --out split; mkdir theirs/output")
    (run / "split" / "strategy").rename(folder / "output" / "strategy")
    (run / "split").rename(folder / "output" / "checkpoint_network")
    bash(run, "\n".join([*(line for line in head.splitlines() if not line.startswith("test ")), merging]))
    code, out, _ = tengtune(run, "weights", "diff", "theirs/tuned", "theirs/tuned-ms")
    assert code == 0, out
    tuned = load_file(folder / "tuned" / "model.safetensors")
    base = load_file(run / "model" / "model.safetensors")
    assert all(np.array_equal(tuned[name], array.astype(tuned[name].dtype)) for name, array in base.items())


def bash(folder: Path, script: str) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-e"],
        input=script,
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_export_into_a_folder_that_is_in_use(run: Path) -> None:
    (run / "theirs").mkdir()
    (run / "theirs" / "file").write_text("x", encoding="utf-8")
    code, _, err = tengtune(run, "export", "mindformers", "run.yaml", "--out", "theirs")
    assert (code, "mindformers.out_exists" in err) == (2, True)
    assert [path.name for path in (run / "theirs").iterdir()] == ["file"]
    code, _, err = tengtune(run, "export", "mindformers", "run.yaml", "--form", "r1.0", "--out", "other")
    assert (code, "mindformers.too_old" in err) == (2, True)
    assert not (run / "other").exists()


def test_settings_hold_for_an_export(run: Path) -> None:
    arguments = ["run.yaml", "-s", "train.lr=2e-5", "--out", "theirs", "--json"]
    code, out, _ = tengtune(run, "export", "mindformers", *arguments)
    events = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert events[-1]["event"] == "result"
    assert [Path(file).name for file in events[-1]["files"]][-1] == "commands.sh"
    assert {"key": "data.pack", "code": "mindformers.line"}.items() <= events[1].items()
    tree = yaml.safe_load((run / "theirs" / "finetune_qwen2.yaml").read_text(encoding="utf-8"))
    assert tree["lr_schedule"]["learning_rate"] == tree["optimizer"]["learning_rate"] == 2e-5


def test_an_import_tells_key_by_key(run: Path) -> None:
    arguments = [str(FIXTURES / "run_qwen_7b_lora.yaml"), "-o", "new.yaml", "--keys"]
    code, out, err = tengtune(run, "import", *arguments, lang="zh")
    assert code == 0, err
    assert re.search(r"runner_config\.epochs +\S 5 +\S train\.epochs: 5", out)
    assert "context.*" in out
    assert "lora_dropout" in err
    assert re.search(r"[\u4e00-\u9fff]", err)
    assert "lora_dropout" in (run / "new.yaml").read_text(encoding="utf-8")


def test_an_import_tells_by_itself_what_matters(run: Path) -> None:
    """The fixture has about 100 keys; what differs here is a handful of lines."""
    file = FIXTURES / "run_qwen_7b_lora.yaml"
    code, out, err = tengtune(run, "import", str(file), "-o", "new.yaml", "--data", "a.json")
    assert (code, out) == (0, "new.yaml\n")
    lines = err.splitlines()
    assert len(lines) < 10
    keys = re.match(r"(\d+) keys of run_qwen_7b_lora.yaml taken over; (\d+) without", lines[0])
    assert keys
    code, shown, _ = tengtune(run, "import", str(file), "-o", "all.yaml", "--json")
    kinds = [json.loads(line)["event"] for line in shown.splitlines()]
    assert [int(number) for number in keys.groups()] == [kinds.count("taken"), kinds.count("left")]
    assert any("lora_dropout" in line for line in lines)
    assert lines[-1].startswith("[changed] model.path: path/to/... stands")


def test_an_import_does_not_overwrite(run: Path) -> None:
    before = (run / "run.yaml").read_bytes()
    code, _, err = tengtune(run, "import", str(FIXTURES / "run_qwen_7b.yaml"))
    assert (code, "run.exists" in err) == (2, True)
    assert (run / "run.yaml").read_bytes() == before


def test_an_import_as_json(run: Path) -> None:
    arguments = [str(FIXTURES / "run_qwen_7b.yaml"), "-o", "new.yaml", "--json"]
    code, out, _ = tengtune(run, "import", *arguments)
    events = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    taken = {each["key"]: (each["ours"], each["own"]) for each in events if each["event"] == "taken"}
    left = {each["key"]: each["why"] for each in events if each["event"] == "left"}
    assert taken["lr_schedule.learning_rate"] == ("train.lr", 1e-5)
    assert left["context.max_device_memory"] == "graph"
    assert events[-1] == {"event": "result", "file": "new.yaml"}


def test_a_model_of_another_shape_is_told(run: Path) -> None:
    arguments = [str(FIXTURES / "finetune_qwen2_5_7b.yaml"), "--model", "model", "-o", "new.yaml"]
    code, _, err = tengtune(run, "import", *arguments)
    assert code == 0
    assert "model.model_config.hidden_size: 3584 in the file, 64 in config.json" in err
    code, _, err = tengtune(
        run, "import", str(FIXTURES / "run_qwen_7b.yaml"), "--model", "model", "-o", "n2.yaml"
    )
    assert (code, "the folder holds a qwen2, the file is for a qwen1" in err) == (0, True)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("mindformers.not_utf8", "# 学习率\nseed: 0\n".encode("gbk")),
        ("io.not_found", None),
    ],
)
def test_a_file_that_is_none_is_one_screen(code: str, text: bytes | None, run: Path) -> None:
    if text is not None:
        (run / "theirs.yaml").write_bytes(text)
    exit_code, out, err = tengtune(run, "import", "theirs.yaml", "-o", "new.yaml", lang="zh")
    assert (exit_code, out) == (2, "")
    assert code in err
    assert "Traceback" not in err
    assert not (run / "new.yaml").exists()


def test_a_value_beyond_ours_leaves_no_file(run: Path) -> None:
    text = (FIXTURES / "run_qwen_7b.yaml").read_text(encoding="utf-8").replace("beta1: 0.9", "beta1: 1.5")
    (run / "theirs.yaml").write_text(text, encoding="utf-8")
    code, _, err = tengtune(run, "import", "theirs.yaml", "-o", "new.yaml")
    assert (code, "train.beta1" in err, "mindformers.not_ours" in err) == (2, True, True)
    assert not list(run.glob("new.yaml*"))
