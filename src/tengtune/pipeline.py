"""The ordered list of steps. The command line, `run` and the docs are made from it.

A step that is not in this list does not exist; one that is listed works.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["work", "if needed", "advice", "on request"]


@dataclass(frozen=True)
class Step:
    """One step of the pipeline; its code is `tengtune.steps.<name>`.

    kind: `work` makes files, `if needed` too where its needed(recipe) says so, `advice` judges, `on request`
    is left out by `run`.
    needs: the steps whose products it reads; makes: what it leaves in the run folder. resumes: it can go on
    where it was stopped.
    """

    name: str
    kind: Kind
    needs: tuple[str, ...]
    makes: tuple[str, ...]
    zh: str
    en: str
    resumes: bool = False

    @property
    def module(self) -> str:
        return f"tengtune.steps.{self.name}"


STEPS: tuple[Step, ...] = (
    Step("download", "if needed", (), (), "下载模型", "bring a model from a hub"),
    Step("data", "work", ("download",), ("data/",), "把数据变成训练行", "turn the data into rows of tokens"),
    Step("train", "work", ("data",), ("adapter/", "metrics.jsonl"), "微调", "fine-tune", resumes=True),
    Step("merge", "work", ("train",), ("merged/",), "合并成完整模型", "merge into a whole model"),
    Step(
        "convert",
        "on request",
        ("merge",),
        ("mindspore/",),
        "转换权重的布局和格式",
        "convert weights to another layout",
    ),
    Step(
        "predict", "work", ("merge",), ("samples.jsonl",), "提问，对比训练前后的回答", "ask, before and after"
    ),
    Step(
        "evaluate",
        "work",
        ("merge", "data"),
        ("evaluation.jsonl",),
        "给训练前后的模型打分",
        "score the model before and after",
    ),
    Step("report", "work", (), ("report.html", "loss.png"), "生成报告", "make the report"),
)


def step(name: str) -> Step:
    """The step called `name`."""
    return next(s for s in STEPS if s.name == name)
