"""Decides how long one engine step takes: a linear model in whole nanoseconds, without rounding.

    step = base + prefill * P + decode * D + context * C

P: tokens of sequences that got more than one token in the step; D: sequences that got exactly one; C: over all of
them, the tokens whose keys and values are read (computed before, and computed now).

The default is an assumption, not a measurement: Llama-3.1-8B in bf16 on a card of the H100's class. 5.5 ms to launch a
step and read 16 GB of weights at 3 TB/s; 20,000 prompt tokens a second; 20 microseconds of sampling and bookkeeping
for each decoding sequence; 131,072 bytes of KV per token of context, at 3 TB/s 44 ns. Calibrate it with two runs of an
engine's own benchmark before absolute times are believed; comparisons of policies move little with it.
"""

from typing import NamedTuple

from kvbudget.errors import BadValueError
from kvbudget.units import is_digits

_NAMES = {"base": "base_ns", "prefill": "prefill_ns", "decode": "decode_ns", "context": "context_ns"}
_MOST_NS = 3_600 * 10**9


class StepCost(NamedTuple):
    """Nanoseconds of a step, for each prefilled token, each decoding sequence, and each token of context."""

    base_ns: int = 5_500_000
    prefill_ns: int = 50_000
    decode_ns: int = 20_000
    context_ns: int = 44

    def step_ns(self, prefill_tokens: int, decodes: int, context_tokens: int) -> int:
        """How long the step lasts; at least one nanosecond, or time would stand still."""
        return Clock(self).step_ns(prefill_tokens, decodes, context_tokens)


class Clock:
    """The same of a cost that is asked very often: a compiled class finds its own members in no time."""

    __slots__ = ("_base_ns", "_decode_ns", "_prefill_ns", "context_ns")

    def __init__(self, cost: StepCost) -> None:
        self._base_ns, self._prefill_ns, self._decode_ns, self.context_ns = cost

    def step_ns(self, prefill_tokens: int, decodes: int, context_tokens: int) -> int:
        """As `StepCost.step_ns`."""
        spent = self._prefill_ns * prefill_tokens + self._decode_ns * decodes + self.context_ns * context_tokens
        return max(1, self._base_ns + spent)


DEFAULT_COST = StepCost()


def parse_step_cost(text: str) -> StepCost:
    """`base:5500000,prefill:50000,decode:20000,context:44`; what is not named keeps its default.

    Raises BadValueError for anything else.
    """
    given: dict[str, int] = {}
    for item in text.split(","):
        name, _, digits = item.strip().partition(":")
        if name not in _NAMES or not is_digits(digits) or len(digits) > 13:
            raise BadValueError(
                f"step-cost: {item[:40]!r} is not one of {', '.join(_NAMES)} with whole nanoseconds",
                fix="write base:5500000,prefill:50000,decode:20000,context:44",
            )
        given[_NAMES[name]] = int(digits)
    cost = StepCost(**given)
    if not any(cost) or max(cost) > _MOST_NS:
        raise BadValueError(f"step-cost: {text[:80]!r} is nothing at all or over an hour", fix="give nanoseconds")
    return cost
