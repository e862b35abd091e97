"""Converting model folders: there and back, casts, heads, configs, repairs, and what is refused."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from tests.mindformers_lab import MCORE, in_layout, qwen1_in_mindformers
from tests.mindspore_files import checkpoint_values
from tests.qwen1 import as_tensor, to_qwen1
from tests.tiny import tiny_model, tiny_tokenizer

from tengtune.steps.convert import Job, convert, open_job
from tengtune.ui.console import Console
from tengtune.ui.problems import Problem
from tengtune.weights import ckpt_io
from tengtune.weights.convert import Conversion
from tengtune.weights.stream import stream

Weights = dict[str, np.ndarray]
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 32}
MINDSPORE_LAYOUTS = ["mindformers", "qkv-concat", *MCORE]


def run(source: Path, out: Path, to: str, shard_bytes: int = 10**9, **options: Any) -> Path:
    convert(open_job(source, to, **options), out, Console("quiet"), shard_bytes)
    return out


def problem(code: str, source: Path, out: Path, to: str = "hf", **options: Any) -> Problem:
    with pytest.raises(Problem) as caught:
        run(source, out, to, **options)
    assert (caught.value.code, caught.value.exit_code) == (code, 2)
    assert not out.exists()
    assert caught.value.texts()
    return caught.value


def read(folder: Path) -> Weights:
    """A folder's safetensors, by the safetensors library."""
    return {name: array for file in folder.glob("*.safetensors") for name, array in load_file(file).items()}


def read_ckpt(path: Path) -> Weights:
    """A .ckpt, by MindSpore's protobuf classes."""
    return {
        tag: np.frombuffer(content, ckpt_io.TYPES[kind]).reshape(dims)
        for tag, kind, dims, content in checkpoint_values(path.read_bytes())
    }


def same(one: Weights, other: Weights) -> bool:
    return one.keys() == other.keys() and all(
        # By name: MindSpore, loaded beside, registers a bfloat16 of its own with NumPy.
        (a.shape, a.dtype.name, a.tobytes()) == (other[n].shape, other[n].dtype.name, other[n].tobytes())
        for n, a in one.items()
    )


@pytest.fixture
def qwen1(tmp_path: Path) -> Path:
    return to_qwen1(tiny_model(tmp_path / "shape", num_key_value_heads=4), tmp_path / "qwen1")


@pytest.fixture
def qwen2(tmp_path: Path) -> Path:
    return tiny_tokenizer(tiny_model(tmp_path / "qwen2", dtype="bfloat16"))


@pytest.mark.parametrize("layout", MINDSPORE_LAYOUTS)
@pytest.mark.parametrize("to", ["mindspore", "mindspore-safetensors"])
def test_qwen2_there_and_back(tmp_path: Path, qwen2: Path, layout: str, to: str) -> None:
    there = run(qwen2, tmp_path / "there", to, layout=layout, shard_bytes=60_000)
    config = json.loads((qwen2 / "config.json").read_text())
    written = read_ckpt(there / "model.ckpt") if to == "mindspore" else read(there)
    assert same(written, in_layout(read(qwen2), layout, config))
    if to == "mindspore-safetensors":
        index = json.loads((there / "param_name_map.json").read_text())["weight_map"]
        assert len(set(index.values())) > 3
        assert index.keys() == written.keys()
    back = run(there, tmp_path / "back", "hf")
    assert same(read(back), read(qwen2))
    assert (back / "config.json").read_bytes() == (qwen2 / "config.json").read_bytes()
    assert sorted(f.name for f in back.iterdir()) == sorted(f.name for f in qwen2.iterdir())


@pytest.mark.parametrize("files", [0, 1, 3], ids=["safetensors", "one .bin", "three .bin"])
def test_qwen1_there_and_back(tmp_path: Path, files: int) -> None:
    source = to_qwen1(
        tiny_model(tmp_path / "s", num_key_value_heads=4), tmp_path / "qwen1", torch_files=files
    )
    expected = read(to_qwen1(tmp_path / "s", tmp_path / "plain"))
    there = run(source, tmp_path / "there", "mindspore")
    assert same(read_ckpt(there / "model.ckpt"), qwen1_in_mindformers(expected))
    back = run(there, tmp_path / "back", "hf")
    assert same(read(back), expected)
    assert (back / "config.json").read_bytes() == (source / "config.json").read_bytes()
    assert (back / "modeling_qwen.py").exists()


@pytest.mark.parametrize(("one", "other"), [("mcore", "mindformers"), ("qkv-concat", "mcore-contiguous")])
def test_from_one_mindspore_layout_to_another(tmp_path: Path, qwen2: Path, one: str, other: str) -> None:
    first = run(qwen2, tmp_path / "first", "mindspore", layout=one)
    second = run(first, tmp_path / "second", "mindspore-safetensors", layout=other)
    assert same(read(second), in_layout(read(qwen2), other, json.loads((qwen2 / "config.json").read_text())))


def test_a_mindspore_layout_is_kept_when_only_the_file_format_changes(tmp_path: Path, qwen2: Path) -> None:
    first = run(qwen2, tmp_path / "first", "mindspore", layout="qkv-concat")
    second = run(first, tmp_path / "second", "mindspore-safetensors")
    assert same(read(second), read_ckpt(first / "model.ckpt"))


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
@pytest.mark.parametrize("copy", [False, True], ids=["no head", "a copy"])
def test_tied_heads(tmp_path: Path, family: str, copy: bool) -> None:
    source = tiny_model(tmp_path / "s", tie=True, **(QWEN3 if family == "qwen3" else {}))
    weights = read(source)
    config = json.loads((source / "config.json").read_text())
    layout = "mcore" if family == "qwen3" else "mindformers"
    stored = in_layout(weights, layout, config)
    there = run(source, tmp_path / "there", "mindspore")
    assert same(read_ckpt(there / "model.ckpt"), stored)  # mindformers keeps no head either
    if copy:  # upstream's converters of Qwen2, 2.5 and 3 write one
        head, embedding = (
            ("output_layer.weight", "embedding.word_embeddings.weight")
            if family == "qwen3"
            else ("lm_head.weight", "model.tok_embeddings.embedding_weight")
        )
        whole = {**stored, head: stored[embedding]}
        ckpt_io.write_file(there / "model.ckpt", [stream(n, a) for n, a in whole.items()])
    assert same(read(run(there, tmp_path / "back", "hf")), weights)
    if copy:
        whole[head] = whole[head] + 1
        ckpt_io.write_file(there / "model.ckpt", [stream(n, a) for n, a in whole.items()])
        problem("weights.tied_head", there, tmp_path / "other")


def test_an_untied_head_must_be_there(tmp_path: Path, qwen2: Path) -> None:
    there = run(qwen2, tmp_path / "there", "mindspore")
    kept = {n: a for n, a in read_ckpt(there / "model.ckpt").items() if n != "lm_head.weight"}
    ckpt_io.write_file(there / "model.ckpt", [stream(n, a) for n, a in kept.items()])
    assert "lm_head.weight" in str(problem("weights.no_head", there, tmp_path / "back"))


# Dtypes


def test_dtype_of_a_model(tmp_path: Path, qwen1: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = read(qwen1)
    weights["transformer.h.1.mlp.w1.weight"][3, 5] = 1e5
    save_file(weights, qwen1 / "model.safetensors", metadata={"format": "pt"})
    config = {**json.loads((qwen1 / "config.json").read_text()), "bf16": False, "fp16": False, "fp32": True}
    (qwen1 / "config.json").write_text(json.dumps(config))
    out = run(qwen1, tmp_path / "out", "hf", dtype="float16")
    weights["transformer.h.1.mlp.w1.weight"][3, 5] = 65504
    assert same(read(out), {n: a.astype(np.float16) for n, a in weights.items()})
    written = json.loads((out / "config.json").read_text())
    assert written == {**config, "torch_dtype": "float16", "fp16": True, "fp32": False}
    warning = capsys.readouterr().err
    assert "1 tensor: model.layers.1.mlp.up_proj.weight" in warning
    ms = run(qwen1, tmp_path / "ms", "mindspore", dtype="bfloat16")
    assert {a.dtype for a in read_ckpt(ms / "model.ckpt").values()} == {np.dtype(ml_dtypes.bfloat16)}
    assert "param_init_type: bfloat16" in (ms / "mindformers.yaml").read_text()


def test_unasked_every_tensor_keeps_its_own_dtype(tmp_path: Path, qwen2: Path) -> None:
    weights = read(qwen2)
    norms = {n: a.astype(np.float32) for n, a in weights.items() if "norm" in n}
    save_file({**weights, **norms}, qwen2 / "model.safetensors", metadata={"format": "pt"})
    there = run(qwen2, tmp_path / "there", "mindspore")
    assert {a.dtype.name for n, a in read_ckpt(there / "model.ckpt").items() if "norm" in n} == {"float32"}
    assert same(read(run(there, tmp_path / "back", "hf")), {**weights, **norms})


# What travels along


def test_what_mindformers_reads_is_there(tmp_path: Path, qwen1: Path, qwen2: Path) -> None:
    import yaml

    config = {**json.loads((qwen1 / "config.json").read_text()), "rotary_emb_base": 1e6, "eos_token_id": 7}
    (qwen1 / "config.json").write_text(json.dumps(config))
    (qwen1 / "qwen.tiktoken").write_text("AA== 0\n")
    section = yaml.safe_load((run(qwen1, tmp_path / "a", "mindspore") / "mindformers.yaml").read_text())
    model = section["model"]["model_config"]
    assert (model["type"], section["model"]["arch"]["type"]) == ("QwenConfig", "QwenForCausalLM")
    # half of intermediate_size; theta, as QwenConfig does not read rotary_emb_base
    assert (model["intermediate_size"], model["theta"], model["eos_token_id"]) == (96, 1e6, 7)
    assert section["processor"]["tokenizer"] == {"type": "QwenTokenizer", "vocab_file": "qwen.tiktoken"}
    out = run(qwen2, tmp_path / "b", "mindspore-safetensors", layout="qkv-concat")
    section = yaml.safe_load((out / "mindformers.yaml").read_text())
    model = section["model"]["model_config"]
    assert (section["load_ckpt_format"], model["qkv_concat"], model["n_kv_heads"]) == ("safetensors", True, 2)
    tokenizer = json.loads((qwen2 / "tokenizer.json").read_text())["model"]
    assert json.loads((out / "vocab.json").read_text()) == tokenizer["vocab"]
    merges = (out / "merges.txt").read_text().splitlines()
    assert merges[0].startswith("#version")
    assert [tuple(line.split(" ")) for line in merges[1:]] == [tuple(m) for m in tokenizer["merges"]]
    out = run(qwen2, tmp_path / "c", "mindspore", layout="mcore-contiguous-qkv")
    flags = yaml.safe_load((out / "mindformers.yaml").read_text())["model"]["model_config"]
    assert flags == {
        "use_contiguous_weight_layout_attention": True,
        "use_interleaved_weight_layout_mlp": True,
    }


@pytest.mark.parametrize(
    "change",
    [
        {"decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}]}},
        {"model": {"type": "Unigram"}},
    ],
)
def test_no_qwen_vocabulary_is_made_of_another_tokenizer(
    change: dict[str, object], tmp_path: Path, qwen2: Path
) -> None:
    path = qwen2 / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    err, out = io.StringIO(), tmp_path / "out"
    convert(open_job(qwen2, "mindspore"), out, Console(err=err))
    assert "not that of a Qwen model" in err.getvalue()
    assert not (out / "vocab.json").exists()
    assert not (out / "merges.txt").exists()


def test_a_checkpoint_alone_takes_config_and_tokenizer_from_another_folder(
    tmp_path: Path, qwen2: Path
) -> None:
    there = run(qwen2, tmp_path / "there", "mindspore")
    (tmp_path / "saved").mkdir()
    alone = (there / "model.ckpt").rename(tmp_path / "saved/qwen2_rank_0-2_10.ckpt")
    problem("convert.no_config", alone, tmp_path / "back")
    for config in (qwen2, qwen2 / "config.json"):
        back = run(alone, tmp_path / f"back-{config.name}", "hf", config=config)
        assert same(read(back), read(qwen2))
        assert (back / "tokenizer.json").exists()


def test_what_mindformers_saves_beside_the_weights_is_left_out(tmp_path: Path, qwen2: Path) -> None:
    there = run(qwen2, tmp_path / "there", "mindspore")
    extra = {
        "adam_m.model.layers.0.attention.wq.weight": np.ones((64, 64), "f4"),
        "epoch_num": np.array(3, "i4"),
        "loss_scale": np.array(1.0, "f4"),
    }
    whole = {**read_ckpt(there / "model.ckpt"), **extra}
    ckpt_io.write_file(there / "model.ckpt", [stream(n, a) for n, a in whole.items()])
    job = open_job(there, "hf")
    assert set(job.found.left_out) == set(extra)
    assert same(read(run(there, tmp_path / "back", "hf")), read(qwen2))


# Upstream's half conversion


def half_reversed(weights: Weights) -> Weights:
    """What convert_reversed.py of r1.2 and r1.3 leaves of Qwen1: only the biases are joined again."""
    result = {n: a for n, a in weights.items() if not n.endswith("c_attn.weight")}
    for name in [n for n in weights if n.endswith("c_attn.weight")]:
        for part, piece in zip(("wq", "wk", "wv"), np.array_split(weights[name], 3), strict=True):
            result[name.replace("attn.c_attn", f"attention.{part}")] = piece
    return result


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "qwen.ckpt"])
def test_half_converted_weights_are_repaired(
    tmp_path: Path, qwen1: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = read(qwen1)
    (qwen1 / "model.safetensors").unlink()
    if name == "model.safetensors":
        save_file(half_reversed(weights), qwen1 / name, metadata={"format": "pt"})
    else:  # torch.save, whatever the name: --torch_ckpt_path took any
        torch.save({n: as_tensor(a) for n, a in half_reversed(weights).items()}, qwen1 / name)
    out = run(qwen1, tmp_path / "out", "hf")
    assert same(read(out), weights)
    assert "leaves out attn.c_attn.weight" in capsys.readouterr().err


def test_half_converted_weights_are_explained_elsewhere(tmp_path: Path, qwen1: Path) -> None:
    from tengtune.models.spec import from_folder
    from tengtune.weights.source import open_source

    save_file(half_reversed(read(qwen1)), qwen1 / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(Problem) as caught:
        open_source(qwen1, from_folder(qwen1))
    assert caught.value.code == "weights.half_reversed"


# Mcore, whose variants cannot be told apart


def test_mcore_without_a_record_is_taken_for_the_default_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tiny_model(tmp_path / "s", **QWEN3)
    there = run(source, tmp_path / "there", "mindspore", layout="mcore-contiguous")
    job = open_job(there, "hf")
    assert isinstance(job, Conversion)
    assert (job.source, job.notes) == ("mcore-contiguous", [])  # the record tells
    (there / "weights.json").unlink()
    out = run(there, tmp_path / "guessed", "hf")
    assert "--layout" in capsys.readouterr().err
    assert not same(read(out), read(source))
    said = run(there, tmp_path / "said", "hf", layout="mcore-contiguous")
    assert same(read(said), read(source))
    assert "--layout" not in capsys.readouterr().err


# Refusals


def test_what_is_refused(tmp_path: Path, qwen1: Path, qwen2: Path) -> None:
    out, there = tmp_path / "out", run(qwen2, tmp_path / "there", "mindspore")
    problem("convert.other_family", there, out, config=qwen1)
    problem("convert.other_layout", there, out, layout="qkv-concat")
    problem("convert.no_such_layout", qwen1, out, "mindspore", layout="qkv-concat")
    problem(
        "convert.no_such_layout", tiny_model(tmp_path / "3", **QWEN3), out, "mindspore", layout="mindformers"
    )
    problem("model.no_config", there, out, config=tmp_path)
    problem("convert.no_adapter", there, out, part="adapter")
    (there / "second.ckpt").write_bytes((there / "model.ckpt").read_bytes())
    problem("convert.several", there, out)
    (tmp_path / "ranks" / "rank_0").mkdir(parents=True)
    problem("convert.rank_folders", tmp_path / "ranks", out)
    save_file({"bert.weight": np.ones(3, "f4")}, qwen2 / "model.safetensors", metadata={"format": "pt"})
    assert "bert.weight" in str(problem("convert.unknown_names", qwen2, out))
    (there / "second.ckpt").unlink()
    for layout, made in (("upside-down", []), ("mindformers", ["config.json"]), ("mindformers", [[]])):
        (there / "weights.json").write_text(json.dumps({"layout": layout, "made": made}))
        problem("convert.bad_record", there, out)


@pytest.mark.parametrize(("to", "layout"), [("mindspore", "qkv-concat"), ("mindspore", "mcore-contiguous")])
def test_dtypes_that_differ_in_one_fused_linear(tmp_path: Path, qwen2: Path, to: str, layout: str) -> None:
    weights = load_file(qwen2 / "model.safetensors")
    name = "model.layers.1.self_attn.q_proj.weight"
    save_file({**weights, name: weights[name].astype("f2")}, qwen2 / "model.safetensors")
    with pytest.raises(Problem, match=rf"{name}: float16\n.*k_proj.weight: bfloat16\n") as caught:
        open_job(qwen2, to, layout=layout)
    assert caught.value.code == "convert.mixed_dtypes"
    there = run(qwen2, tmp_path / "there", to, layout=layout, dtype="float32")
    back = load_file(run(there, tmp_path / "back", "hf") / "model.safetensors")
    assert np.array_equal(back[name], weights[name].astype("f2").astype("f4"))
    apart = run(qwen2, tmp_path / "apart", to, layout="mindformers")  # each in a tensor of its own
    assert load_file(run(apart, tmp_path / "again", "hf") / "model.safetensors")[name].dtype == np.float16


def test_an_output_that_holds_the_input(tmp_path: Path, qwen2: Path) -> None:
    job = open_job(qwen2, "mindspore")
    for out in (qwen2, tmp_path):
        with pytest.raises(Problem) as caught:
            convert(job, out, Console("quiet"))
        assert caught.value.code == "convert.out_is_input"
    assert (qwen2 / "model.safetensors").exists()


def test_a_value_changed_while_it_was_written_is_noticed(
    tmp_path: Path, qwen2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tengtune.weights import convert as module

    write = module.write_weights

    def faulty(folder: Path, *arguments: Any) -> None:
        write(folder, *arguments)
        data = bytearray((folder / "model.ckpt").read_bytes())
        data[-1] ^= 1
        (folder / "model.ckpt").write_bytes(data)

    monkeypatch.setattr(module, "write_weights", faulty)
    with pytest.raises(Problem) as caught:
        run(qwen2, tmp_path / "out", "mindspore")
    assert (caught.value.code, caught.value.exit_code) == ("convert.not_as_written", 4)
    assert not (tmp_path / "out").exists()


def test_hugging_face_to_hugging_face_reshards_and_leaves_pickles_behind(tmp_path: Path) -> None:
    source = to_qwen1(tiny_model(tmp_path / "s", num_key_value_heads=4), tmp_path / "bin", torch_files=2)
    out = run(source, tmp_path / "out", "hf", shard_bytes=100_000)
    assert not list(out.glob("*.bin"))
    assert len(list(out.glob("*.safetensors"))) > 3
    assert same(read(out), read(to_qwen1(tmp_path / "s", tmp_path / "plain")))


def test_jobs_tell_what_they_are(qwen2: Path) -> None:
    job: Job = open_job(qwen2, "mindspore")
    assert isinstance(job, Conversion)
    assert (job.source, job.target, job.found.kind) == ("hf", "mindformers", "safetensors")
    assert job.nbytes == sum(a.nbytes for a in read(qwen2).values())
