"""Decides which decode step the engine has come to, how long steps take, and how long prompts take to be read.

Sequences that are watched tell by their tokens how many steps have passed; where nobody is watched, the learned pace
does.
"""

from typing import Final

_START_NS_PER_STEP: Final = 20_000_000.0
_PACE_STEPS: Final = 64.0  # the pace is a mean over so many steps
_PREFILL_MEMORY: Final = 64.0  # requests
# A clock that stands still while tokens are seen, or leaps, must leave a pace that can be divided by and saved.
LEAST_NS_PER_STEP: Final = 1.0
MOST_NS_PER_STEP: Final = 1e12
LEAST_PREFILL_TOKENS: Final = 1.0


class Pace:
    """The pace of one engine. `prefill_ns`, `prefill_tokens`: decaying sums of times to the first token, and of the
    prompt tokens that were before it."""

    def __init__(self) -> None:
        self.step = 0
        self.ns_per_step = _START_NS_PER_STEP
        self.prefill_ns = 0.0
        self.prefill_tokens = 1.0
        self._stepped_ns = 0  # when the last step was seen

    def begin(self, now_ns: int) -> None:
        """Somebody comes where nobody was: no step was made until now."""
        self._stepped_ns = now_ns

    def advance(self, steps: int, now_ns: int) -> None:
        """So many more steps were seen."""
        self.step += steps
        took = (now_ns - self._stepped_ns) / steps
        self._stepped_ns = now_ns
        pace_ns = self.ns_per_step + min(1.0, steps / _PACE_STEPS) * (took - self.ns_per_step)
        self.ns_per_step = min(MOST_NS_PER_STEP, max(LEAST_NS_PER_STEP, pace_ns))

    def go_on(self, now_ns: int) -> None:
        """Nobody is watched: as many steps as the time allows."""
        passed = int((now_ns - self._stepped_ns) / self.ns_per_step)
        self.step += passed
        self._stepped_ns += int(passed * self.ns_per_step)

    def prefilled(self, backlog_tokens: int, took_ns: int) -> None:
        """A first token came, after so many prompt tokens were read, its own included."""
        self.prefill_ns += took_ns - self.prefill_ns / _PREFILL_MEMORY
        tokens = self.prefill_tokens + backlog_tokens - self.prefill_tokens / _PREFILL_MEMORY
        self.prefill_tokens = max(LEAST_PREFILL_TOKENS, tokens)

    def prefill_takes_ns(self, prompt_tokens: int) -> int:
        """Expected time until so many prompt tokens are read."""
        return int(self.prefill_ns / self.prefill_tokens * prompt_tokens)
