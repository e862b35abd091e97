"""Several kinds of hardware and methods side by side: the least that is enough, and what is best there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from tengtune.models.spec import ModelSpec
from tengtune.plan import can, memory
from tengtune.plan.hardware import Hardware
from tengtune.plan.judge import TIGHT
from tengtune.plan.profiles import TORCH
from tengtune.plan.search import Question, Way, search
from tengtune.plan.strategy import Range, Strategy, exactly

Use = Literal["lora", "full", "answers"]
MOST_CARDS = 64
CARDS_A_MACHINE = 8
TEXTS = 8
"""Answers under way at a time. (backends/torch/generate.py, ROWS)"""


@dataclass(frozen=True)
class Side:
    """One use of one kind of card. least: the way with the fewest cards of that kind, at most 64, counted
    beyond those there are; None if that is not enough. best: on the cards there are; None if none fits."""

    hardware: Hardware
    method: Use
    least: Way | None
    best: Way | None


@dataclass(frozen=True)
class Answering:
    """Answering on one card: what it, the host and the disk must hold."""

    hardware: Hardware
    card: Range
    host: Range
    disk: Range

    @property
    def fits(self) -> bool:
        there = self.hardware.usable_bytes or self.hardware.memory_bytes or self.hardware.host_bytes
        return there is not None and self.card.expected <= TIGHT * there


def side(question: Question) -> Side:
    """The least and the best for a question."""
    ways = search(question)
    best = ways[0] if ways and ways[0].plan.verdict == "fits" else None
    method = question.strategy.method
    return Side(question.hardware, method, least(question), best)


def least(question: Question) -> Way | None:
    """The way with the fewest cards, of those the one that leaves most memory; cards beyond those of one
    machine come in whole machines."""
    there = question.hardware
    each = there.most_together((there.count or CARDS_A_MACHINE) // there.nodes)
    count = 1
    while count <= MOST_CARDS:
        nodes = max(count // each, 1)
        unit = count * (question.strategy.rows if "rows" in question.fixed else 1)
        batch = max(question.global_batch, unit)
        narrowed = replace(
            question,
            hardware=replace(there, count=count, nodes=nodes),
            cards=count,
            global_batch=-(-batch // unit) * unit,
            strategy=replace(question.strategy, cards=count, nodes=nodes),
            fixed=question.fixed | {"cards"},
        )
        fitting = [way for way in search(narrowed) if way.plan.verdict == "fits"]
        if fitting:
            return max(fitting, key=lambda way: way.margin)
        if there.is_cpu:
            return None
        count *= 2
    return None


def answering(spec: ModelSpec, there: Hardware, tokens: int) -> Answering:
    """Answering on PyTorch, where each card has the whole model: weights, a cache of keys and values of eight
    texts of so many tokens (2 x layers x kv x w bytes a token), one layer's activations of a prompt and the
    logits of eight tokens in float32; slack and context as in training. (backends/torch/generate.py)"""
    width = 4 if can.kind_of(there) == "cpu" else 2
    strategy = replace(Strategy(), row_tokens=tokens, width_bytes=width)
    weights = width * memory.counts(spec).total
    cache = TEXTS * tokens * spec.kv_bytes_per_token(width)
    passing = memory.layer_bytes(spec, strategy, TORCH) + 4.0 * TEXTS * spec.vocab
    slack = TORCH.fragmentation
    tensors = weights + cache + passing
    held = Range(tensors * slack.low, tensors * slack.expected, tensors * slack.high)
    whole = 2.0 * memory.counts(spec).total
    host = exactly(4.0 * memory.counts(spec).embedding)
    card = held + (TORCH.context or there.context)
    return Answering(there, card, card if there.is_cpu else host, exactly(whole))
