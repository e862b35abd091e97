"""Published peaks and speeds, facts/measurements.csv, as plans of the programs that were run."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, replace

from tengtune import facts
from tengtune.models import known
from tengtune.models.spec import ModelSpec
from tengtune.plan import hardware, memory
from tengtune.plan.profiles import DEEPSPEED, HF_TRAINER, MINDFORMERS, MINDSPEED, MS_SWIFT
from tengtune.plan.strategy import Base, Profile, Strategy, exactly

GIB = 1 << 30
IDLE = 3.3e9
"""What npu-smi shows of an idle 910B3; rows of that kind are npu-smi's view."""
_ALIASES = {"qwen-1.8b": "Qwen-1_8B", "14b": "Qwen1.5-14B", "qwen1half-7b": "Qwen1.5-7B"}
_LLAMA = {
    # hidden, layers, heads, feed-forward width; as many heads of keys, 32,000 words
    "llama-7b": (4096, 32, 32, 11008),
    "llama2-7b": (4096, 32, 32, 11008),
    "llama2-13b": (5120, 40, 40, 13824),
}
_CARDS = {"910A": "910a", "910B": "910b3", "A100": "a100", "A800": "a800"}
"""What a row's device has in its name -> the card by the planner's name."""
_ATTENTION = ("q_proj", "k_proj", "v_proj")
_NUMBER = re.compile(r"[\d.]+")


@dataclass(frozen=True)
class Row:
    """What was run, and what was published of it.

    source: the repository or document; where: the place in it. peak_bytes: of one card, None where only the
    speed was published. idle_bytes: what is in the peak though no training holds it. tokens_per_s: of one
    card. exact: the rows' length is known, not only its limit.
    """

    source: str
    where: str
    model: str
    device: str
    spec: ModelSpec
    strategy: Strategy
    profile: Profile
    peak_bytes: float | None
    idle_bytes: float
    tokens_per_s: float | None
    exact: bool

    @functools.cached_property
    def card(self) -> hardware.Hardware | None:
        """The cards as the planner has them; None for those it does not know."""
        name = next((name for part, name in _CARDS.items() if part in self.device), None)
        return None if name is None else hardware.find(name)

    def predicted(self, profile: Profile | None = None) -> float:
        """The expected peak by the planner, in bytes."""
        context, link = exactly(0.44e9), 0.2e9
        if self.card is not None:
            context, link = self.card.context, self.card.link_bytes
        found = memory.card_bytes(self.spec, self.strategy, profile or self.profile, context, link)
        return found.total.expected + self.idle_bytes


def entries() -> tuple[dict[str, str], ...]:
    """All lines of the table."""
    return facts.rows("measurements.csv")


@functools.cache
def rows() -> tuple[Row, ...]:
    """The lines whose model is known and whose program and way of sharing the planner has."""
    return tuple(row for row in map(_row, entries()) if row)


def has_peak(entry: dict[str, str]) -> bool:
    """Whether a line has a peak of memory."""
    return bool(_NUMBER.fullmatch(entry["peak_mem_GB"]))


def _row(entry: dict[str, str]) -> Row | None:
    speed = entry["tokens_per_s_per_device"]
    if "ESTIMATE" in entry["notes"] or not (has_peak(entry) or _NUMBER.fullmatch(speed or "")):
        return None
    spec, strategy, profile = _spec(entry["model"]), _strategy(entry), _profile(entry)
    if spec is None or strategy is None or profile is None:
        return None
    unit = GIB if "GiB" in entry["stated"] or "GiB" in entry["notes"] else 1e9
    return Row(
        source=entry["source_repo_or_doc"],
        where=entry["path_or_url"],
        model=entry["model"],
        device=entry["device_type"],
        spec=spec,
        strategy=strategy,
        profile=profile,
        peak_bytes=float(entry["peak_mem_GB"]) * unit if has_peak(entry) else None,
        idle_bytes=IDLE if "npu-smi" in entry["notes"] else 0.0,
        tokens_per_s=float(speed) if speed else None,
        exact=entry["seq_len"].isdecimal(),
    )


def _spec(model: str) -> ModelSpec | None:
    name = re.sub(r"[_-](chat|instruct|int4|int8)\b.*|\s.*", "", model.lower().replace("_", "-"))
    name = name.replace("qwen-1-8b", "qwen-1.8b")
    if name in _LLAMA:
        return _llama(*_LLAMA[name])
    return known.spec(_ALIASES.get(name, name))


def _llama(hidden: int, layers: int, heads: int, ffn: int) -> ModelSpec:
    """A Llama's shape: that of a Qwen2 without biases."""
    return ModelSpec(
        family="qwen2", hidden=hidden, layers=layers, heads=heads, kv_heads=heads, head_dim=hidden // heads,
        ffn=ffn, vocab=32000, rope_theta=10000.0, rms_eps=1e-6, max_positions=4096, tie=False, qkv_bias=False,
        qk_norm=False,
    )  # fmt: skip


def _strategy(entry: dict[str, str]) -> Strategy | None:
    shared, split = _sharing(entry["strategy"])
    length = re.search(r"\d+", entry["seq_len"])
    if shared is None or not length or "liger" in entry["notes"] or "layer" in entry["model"]:
        return None
    if "variable-seq-lengths" in entry["notes"]:
        return None
    if "pp" in split and not entry["grad_accum"]:
        return None  # how long a pipeline's groups wait is not known
    method, swift = entry["method"], "ms-swift" in entry["source_repo_or_doc"]
    # QwenLM's full and GPTQ scripts run DeepSpeed on one card, too.
    script = entry["source_repo_or_doc"] == "QwenLM/Qwen" and (
        method.startswith("qlora") or (method == "full" and "8 B/param" not in entry["notes"])
    )
    base: Base = "int8" if "int8" in method else "int4" if method.startswith("qlora") else "compute"
    return replace(
        Strategy(),
        method="full" if method.startswith(("full", "pretrain")) else "lora",
        cards=int(entry["devices"]),
        nodes=max(int(entry["devices"]) // 8, 1),
        tensor=split.get("tp", split.get("mp", 1)),
        pipeline=split.get("pp", 1),
        rows=int(entry["micro_batch"]),
        row_tokens=int(length[0]),
        zero=shared or (2 if script else 0),
        recompute=entry["recompute"] != "none",
        rank=int(entry["lora_rank"] or 8),
        base=base,
        targets=_ATTENTION if swift else Strategy().targets,
        train_embeddings=method == "lora+emb",
        accumulate=int(entry["grad_accum"] or 1),
        flash=entry["flash_attn"] not in ("no", "false", "yaml: False"),
    )


def _sharing(text: str) -> tuple[int | None, dict[str, int]]:
    """Of a line's strategy: the level of ZeRO, None where the planner has no such way; and over how many
    cards each layer (tp, in mindformers mp) and the layers (pp) are spread."""
    split = {kind: int(count) for kind, count in re.findall(r"\b(tp|mp|pp|cp)(\d+)", text)}
    zero = re.match(r"zero(\d)(?! \+)", text)
    cut = "dist-opt" in text or "parallel_optimizer" in text
    plain = re.match(r"(single|dp)(?! \+)", text)
    if "cp" in split or not (zero or plain or split or cut):
        return None, split
    return int(zero[1]) if zero else int(cut), split


def _profile(entry: dict[str, str]) -> Profile | None:
    source, method, shared = entry["source_repo_or_doc"], entry["method"], entry["strategy"]
    if source == "QwenLM/Qwen":
        if "8 B/param" in entry["notes"] and method == "full":
            return replace(HF_TRAINER, full=MS_SWIFT.full)  # all in bfloat16
        if method.startswith("qlora"):  # in float16, where 8 bytes a logit are the count
            return replace(DEEPSPEED, logit_bytes=exactly(8), quantized_embedding_bytes=2)
        return HF_TRAINER if method.startswith("lora") and shared == "single" else DEEPSPEED
    if source.startswith("gist"):
        return DEEPSPEED
    if source.startswith("QwenLM/"):
        return HF_TRAINER
    if source == "modelscope/ms-swift" and re.match(r"single|dp|zero", shared):
        if "gptq" in method:
            return replace(MS_SWIFT, quantized_embedding_bytes=2)
        return DEEPSPEED if method == "full" and "zero" in shared else MS_SWIFT
    if source == "Ascend/MindSpeed-LLM":  # its peaks are PyTorch's, without what lies outside
        return replace(MINDSPEED, context=exactly(0.0))
    return MINDFORMERS if source == "mindspore-lab/mindformers" else None
