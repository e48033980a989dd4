"""Decides which words a replayed request can end with, and what is known of it then."""

from dataclasses import dataclass
from enum import StrEnum

# Statuses with which a gate or an engine says no on purpose; anything else that is not 200 is a failure.
REFUSAL_STATUSES = frozenset({400, 413, 429, 503})


class Ending(StrEnum):
    """How one request ended."""

    FINISHED = "finished"
    REFUSED = "refused"
    TIMED_OUT = "timed_out"  # the client's own patience ran out
    FAILED = "failed"  # transport error, other status, or an answer that broke off
    NOT_SENT = "not_sent"  # the generator's own concurrency limit was reached
    INTERRUPTED = "interrupted"  # the replay was stopped while it ran


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request of the trace and its end.

    Seconds count from the first sending; `ttft_s` and `gaps_s` are None and empty for plain answers, which show no
    first token. `prompt_tokens` is the trace's, `usage_prompt_tokens` the endpoint's word (None when it gave none).
    `output_tokens` is the endpoint's usage, or else the token events that came. `late_s` is how much after its due
    time the request was sent.
    """

    ending: Ending
    stream: bool
    prompt_tokens: int
    output_tokens: int = 0
    usage_prompt_tokens: int | None = None
    status: int | None = None
    ttft_s: float | None = None
    gaps_s: tuple[float, ...] = ()
    total_s: float = 0.0
    late_s: float = 0.0
    tries: int = 1
    error: str = ""
