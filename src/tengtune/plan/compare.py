"""Several kinds of hardware and methods side by side: the least that is enough, and what is best there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from tengtune.models.spec import ModelSpec
from tengtune.plan import can, judge, memory
from tengtune.plan.hardware import Hardware
from tengtune.plan.judge import Verdict
from tengtune.plan.profiles import TORCH
from tengtune.plan.search import ORDER, Question, Way, search
from tengtune.plan.strategy import Range, Strategy, exactly

Use = Literal["lora", "full", "answers"]
MOST_CARDS = 64
CARDS_A_MACHINE = 8
TEXTS = 8
"""Answers under way at a time. (backends/torch/generate.py, ROWS)"""


@dataclass(frozen=True)
class Side:
    """One use of one kind of card. least: the way with the fewest cards of that kind, at most 64, counted
    beyond those there are; None if that is not enough. best: on the cards there are, as `plan` has it; None
    where the cards are not enough. Either is tight, or short of the host's memory or the disk, where no way
    is better."""

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
    def host_verdict(self) -> Verdict:
        return judge.judged(self.host, self.hardware.host_bytes)

    @property
    def disk_verdict(self) -> Verdict:
        return judge.judged(self.disk, self.hardware.disk_bytes)

    @property
    def card_verdict(self) -> Verdict:
        """Of the card; a CPU has the host's memory."""
        return self.host_verdict if self.hardware.is_cpu else judge.judged_card(self.card, self.hardware)

    @property
    def verdict(self) -> Verdict:
        return judge.worst(self.card_verdict, self.host_verdict, self.disk_verdict)

    @property
    def short(self) -> tuple[str, ...]:
        """What beside the card is not enough."""
        return judge.short(self.host_verdict, self.disk_verdict)


def side(question: Question) -> Side:
    """The least and the best for a question."""
    ways = search(question)
    return Side(question.hardware, question.strategy.method, least(question), ways[0] if ways else None)


def least(question: Question) -> Way | None:
    """The way with the fewest cards, of those the one that leaves most memory; where nothing fits on any
    number, the fewest on which something is tight, then the fewest whose own memory is enough. Cards beyond
    those of one machine come in whole machines."""
    there = question.hardware
    each = there.most_together((there.count or CARDS_A_MACHINE) // there.nodes)
    found: dict[Verdict, Way] = {}
    for nodes, count in [(1, 1)] if there.is_cpu else _machines(each, there.nodes):
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
        for way in sorted(search(narrowed), key=lambda way: -way.margin):
            found.setdefault(way.plan.verdict, way)
        if "fits" in found:
            break
    return next((found[verdict] for verdict in ORDER if verdict in found), None)


def _machines(each: int, nodes: int) -> list[tuple[int, int]]:
    """(machines, cards in all): 1, 2, 4 ... and all of one that holds `each`, then 2, 4 ... of them, and as
    many as there are."""
    powers = [1 << power for power in range(MOST_CARDS.bit_length())]
    some = [(1, cards) for cards in {*(count for count in powers if count < each), each}]
    more = [(count, count * each) for count in {*powers, nodes} if count > 1]
    return sorted(pair for pair in (*some, *more) if pair[1] <= max(MOST_CARDS, nodes * each))


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
