"""Where a run stands: everything a checkpoint keeps beside the tensors.

Which rows a step takes and its learning rate are functions of the step's number (schedule.py), and nothing
draws at random while training goes on: no position in the data and no random state need keeping.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic import TypeAdapter, ValidationError

from tengtune.train.guard import Health
from tengtune.train.loss_scale import LossScale


@dataclass
class Interval:
    """Running sums since the last logged step. grad_norm: of the last good step in it."""

    loss_sum: float = 0.0
    tokens: int = 0
    grad_norm: float | None = None
    seconds: float = 0.0

    @property
    def loss(self) -> float | None:
        """Mean cross entropy per label; None when no step of the interval counted."""
        return self.loss_sum / self.tokens if self.tokens else None


@dataclass
class Best:
    """The best held-out loss so far. evaluated: the step of the last evaluation, worse: evaluations since
    the best one."""

    loss: float | None = None
    step: int | None = None
    evaluated: int = 0
    worse: int = 0

    def take(self, step: int, loss: float) -> bool:
        """Take note of an evaluation; whether it is the best."""
        self.evaluated = step
        if math.isfinite(loss) and (self.loss is None or loss < self.loss):
            self.loss, self.step, self.worse = loss, step, 0
            return True
        self.worse += 1
        return False


@dataclass
class State:
    """step: steps done; applied: those of them that moved the weights (a step with a gradient that is not
    finite does not); trained_tokens: labels of the steps that counted; seconds: time spent in steps."""

    scale: LossScale
    step: int = 0
    applied: int = 0
    trained_tokens: int = 0
    seconds: float = 0.0
    first_loss: float | None = None
    last_loss: float | None = None
    peak_memory_bytes: int = 0
    interval: Interval = field(default_factory=Interval)
    health: Health = field(default_factory=Health)
    best: Best = field(default_factory=Best)

    def as_json(self) -> dict[str, Any]:
        """JSON values, a copy."""
        return asdict(self)


def from_json(values: dict[str, Any]) -> State:
    """The state that `as_json` gave; TypeError, KeyError or ValueError when it is another version's, or holds
    what it cannot."""
    parts = {"scale": LossScale, "interval": Interval, "health": Health, "best": Best}
    state = State(**{**values, **{name: kind(**values[name]) for name, kind in parts.items()}})
    try:
        TypeAdapter(State).validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"state.{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    if not 0 <= state.applied <= state.step:
        raise ValueError(f"state.applied: {state.applied} of {state.step}")
    return state
