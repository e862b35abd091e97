"""The sum beside the cards: what one machine's memory and disk must hold."""

from __future__ import annotations

from tengtune.models.spec import ModelSpec
from tengtune.plan.memory import counts, frozen_bytes, state_bytes, trained_parameters
from tengtune.plan.strategy import NOTHING, Profile, Range, Strategy, exactly


def host_bytes(spec: ModelSpec, strategy: Strategy, profile: Profile) -> Range:
    """One machine's memory: what is offloaded (optimizer and gradients, with `all` the weights as well) x the
    program's factor, and loading: a copy of the weights for each card unless they are mapped or made in parts
    (ZeRO-3). The frameworks' own memory, a few GB a process, is not in it."""
    trained = state_bytes(spec, strategy, profile)
    moved = NOTHING
    if strategy.offload != "none":
        copy = 2.0 * trained_parameters(spec, strategy)  # in 16 bits, on the way to the card
        kept = trained.optimizer + trained.gradients.low + copy
        if strategy.offload == "all":
            kept += trained.weights
            kept += frozen_bytes(spec, strategy, profile) if strategy.method == "lora" else 0.0
        moved = profile.offload_factor * (kept / strategy.nodes)
    parts = strategy.zero == 3 and not profile.shards  # a profile that shards ignores `zero`
    copies = 1 if parts else strategy.cards / strategy.nodes
    whole = 2.0 * counts(spec).total
    loading = exactly(4.0 * counts(spec).embedding * copies)
    if not profile.maps_weights:
        loading = Range(whole, whole * copies, whole * copies)
    return moved.largest(loading)


def disk_bytes(spec: ModelSpec, strategy: Strategy, profile: Profile) -> Range:
    """The model, the merged or tuned model, and checkpoints: the newest that are kept and one more, which is
    the best one or one being written; low: one in all; high: with both, and the tuned model twice, as full/
    and merged/ share their files only where there are hard links. The data is small beside them.
    (train/saver.py, weights/merge.py)"""
    models = 2 * 2.0 * counts(spec).total
    one = profile.checkpoint_bytes * trained_parameters(spec, strategy)
    kept, again = strategy.checkpoints, models / 2 if strategy.method == "full" else 0.0
    return Range(models + one, models + (kept + 1) * one, models + (kept + 2) * one + again)
