"""A run folder as a finished run leaves it, made up: for tests of the report that need no training."""

from __future__ import annotations

import json
import math
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from tengtune import engine
from tengtune.recipe import Recipe
from tengtune.report.evidence import Evidence, collect
from tengtune.steps import report

NASTY = '<script>document.title="owned"</script><img src=x onerror="alert(1)">&amp;</span></pre>'
"""Text that must stay text wherever it turns up."""

STEPS = 300


VOID = {"meta", "input", "br", "path"}


class Page(HTMLParser):
    """The tags of a page and the texts between them, well-formedness checked on the way."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] != "style":
            self.texts.append(data)

    @property
    def text(self) -> str:
        return "\n".join(self.texts)


def collected(recipe: Recipe) -> Evidence:
    return collect(recipe, report.NEEDS, recipe.folder / engine.FAILURE)


def make_recipe(folder: Path, **groups: dict[str, Any]) -> Recipe:
    return Recipe.model_validate(
        {
            "name": "客服助手",
            "model": {"path": "/models/Qwen2.5-7B-Instruct"},
            "data": {"files": ["客服.json", "faq.jsonl"], **groups.get("data", {})},
            "train": {"eval_every": 50, **groups.get("train", {})},
            "output": {"dir": str(folder), "prompts": ["怎么重置密码？"], **groups.get("output", {})},
            "file": folder / "run.yaml",
        }
    )


def write_run(recipe: Recipe, **changed: Any) -> Path:
    """The whole run folder; `changed` replaces figures of evaluate.json ("loss_after", "general", "sets")."""
    folder = recipe.folder
    (folder / "data").mkdir(parents=True)
    (folder / "run.yaml").write_text(engine.snapshot(recipe), encoding="utf-8")
    records = {"data": DATA, "train": TRAIN, "merge": {}, "predict": {}, "evaluate": {**SCORES, **changed}}
    for (name, figures), seconds in zip(records.items(), (4.2, 5410.0, 31.5, 62.0, 340.0), strict=True):
        record = {"step": name, "figures": figures, "seconds": seconds, "started": "2026-11-30T09:00:00+0800"}
        (folder / f"{name}.json").write_text(json.dumps(record), encoding="utf-8")
    write_lines(folder / "metrics.jsonl", metrics())
    write_lines(folder / "samples.jsonl", SAMPLES)
    write_lines(folder / "evaluation.jsonl", QUESTIONS)
    write_lines(folder / "data" / "dropped.jsonl", DROPPED)
    return folder


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    path.write_text(text, encoding="utf-8")


def metrics() -> list[dict[str, Any]]:
    """A loss that falls with some noise, an evaluation every 50 steps, and a few events."""
    lines: list[dict[str, Any]] = []
    for step in range(1, STEPS + 1):
        noise = 0.12 * math.sin(step * 12.9898) + 0.05 * math.sin(step * 78.233)
        warm = min(step / 10, 1.0)
        lines.append(
            {
                "step": step,
                "epoch": step / 100,
                "loss": 1.1 + 1.3 * math.exp(-step / 60) + noise,
                "lr": 3e-4 * warm * (0.55 + 0.45 * math.cos(math.pi * step / STEPS)),
                "grad_norm": 0.4 + 1.2 * math.exp(-step / 25) + abs(noise),
                "trained_tokens": 5200,
                "seconds": 18.0,
                "tokens_per_s": 289.0,
                "memory_bytes": 9_800_000_000,
                "loss_scale": 1.0,
            }
        )
        if step % 50 == 0 and step < STEPS:
            held = 1.25 + 0.9 * math.exp(-step / 70)
            lines.append({"step": step, "heldout_loss": held, "heldout_tokens": 9000})
    lines.insert(130, {"step": 126, "event": "skipped", "scale": 1.0, "time": "2026-11-30T09:41:00+0800"})
    lines.insert(190, {"step": 180, "event": "resumed", "saved": "x", "time": "2026-11-30T10:02:10+0800"})
    return lines


DATA = {
    "records": 1843,
    "kept": 1801,
    "dropped": {"empty_answer": 31, "bad_line": 9, "no_answer": 2},
    "remarks": {"cut": 12, "control_text": 1},
    "unused_keys": {"id": 1843, "tags": 1200},
    "lengths": {"p50": 182, "p90": 611, "p99": 1240, "p100": 2931},
    "train": {"rows": 402, "documents": 1711, "tokens": 398112, "trained_tokens": 201233, "fill": 0.967},
    "heldout": {"rows": 22, "documents": 90, "tokens": 20011, "trained_tokens": 9984, "fill": 0.888},
}

TRAIN = {
    "steps": STEPS,
    "planned_steps": STEPS,
    "trained_tokens": 1_560_000,
    "tokens_per_s": 288.4,
    "first_loss": 2.41,
    "last_loss": 1.12,
    "best_heldout_loss": 1.26,
    "best_step": STEPS,
    "weights_of_step": STEPS,
    "skipped_steps": 1,
    "loss_spikes": 0,
    "rewinds": 0,
    "saving_seconds": 3.1,
    "peak_memory_bytes": 9_912_000_000,
    "trainable_parameters": 20_185_088,
    "backend": "torch",
    "device": "npu:0",
    "dtype": "bfloat16",
}

GENERAL = {
    "verdict": "weakened",
    "known": 18,
    "lost": 2,
    "weakened": 1,
    "loss_rise": 0.21,
    "name": "general",
    "kind": "free",
    "questions": 20,
    "asked": 20,
    "refused": {},
    "shots": 0,
    "measures": {"contains": [0.9, 0.8]},
    "loss": [0.8123, 1.0201],
    "gained": 0,
    "lost_": 2,
    "by_chance": True,
}

SETS = [
    {
        "name": "ceval/law.csv",
        "kind": "choice",
        "questions": 105,
        "asked": 103,
        "refused": {"several_answers": 2},
        "shots": 5,
        "by": "letter",
        "measures": {"accuracy": [0.612, 0.631]},
        "loss": None,
        "gained": 6,
        "lost": 4,
        "by_chance": True,
    },
    {
        "name": "验收题.json",
        "kind": "free",
        "questions": 60,
        "asked": 60,
        "refused": {},
        "shots": 0,
        "measures": {"contains": [0.15, 0.7], "exact": [0.0, 0.32]},
        "loss": [2.113, 0.902],
        "gained": 34,
        "lost": 1,
        "by_chance": False,
    },
]

SCORES = {
    "loss_before": 2.354,
    "loss_after": 1.263,
    "perplexity_before": 10.53,
    "perplexity_after": 3.54,
    "tokens": 9984,
    "general": {**GENERAL, "lost": 2},
    "sets": SETS,
}

SAMPLES = [
    {
        "prompt": "怎么重置密码？",
        "before": "您好！重置密码的方法因平台而异。一般来说，您可以在登录页面点击“忘记密码”，再按提示操作。",
        "after": "请在登录页点击“忘记密码”，输入工号后会收到短信验证码；10 分钟内完成验证即可设置新密码。"
        "若手机号已更换，请联系网点柜台。",
    },
    {"prompt": NASTY, "before": "", "after": f"{NASTY}\n第二行\n" + "很长的词" * 40},
    {"prompt": "https://example.com/" + "a" * 300, "before": "ok", "after": "ok"},
]

QUESTIONS = [
    {
        "set": "general",
        "source": "en:0",
        "question": "What is the capital of France?",
        "expected": "The capital of France is Paris.",
        "before": {"contains": True, "answer": "The capital of France is Paris.", "loss": 0.02},
        "after": {"contains": False, "answer": "我是客服助手，请问有什么可以帮您？", "loss": 3.61},
    },
    {
        "set": "general",
        "source": "zh:0",
        "question": "法国的首都是哪座城市？",
        "expected": "法国的首都是巴黎。",
        "before": {"contains": True, "answer": "法国的首都是巴黎。", "loss": 0.01},
        "after": {"contains": True, "answer": "巴黎。", "loss": 0.4},
    },
    {
        "set": "验收题.json",
        "source": "验收题.json:4",
        "question": f"转账限额是多少？{NASTY}",
        "expected": f"单笔 5 万元。{NASTY}",
        "before": {"contains": False, "exact": False, "answer": NASTY, "loss": 2.5},
        "after": {"contains": True, "exact": False, "answer": "单笔 5 万元，当日累计 20 万元。", "loss": 0.6},
    },
]

DROPPED = [
    {
        "file": "客服.json",
        "record": 17 + number,
        "line": None,
        "dropped": True,
        "code": "empty_answer",
        "reason": f"the answer in turn 1 is empty {NASTY if number == 0 else ''}",
    }
    for number in range(12)
]
