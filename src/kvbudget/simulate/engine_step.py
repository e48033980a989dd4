"""Decides what one step of an engine is: what it works on, and what it brought.

Words as in vLLM 0.32 `v1/core/sched/output.py`.
"""

from dataclasses import dataclass
from typing import NamedTuple

from kvbudget.simulate.engine_request import EngineRequest, FinishReason


class Work(NamedTuple):
    """What a step does for one request: `new_tokens` after `computed_tokens` (what the prefix cache gave counts as
    computed). `samples`: a token comes out of it. A tuple: one is made for each sequence in each step."""

    request: EngineRequest
    computed_tokens: int
    new_tokens: int
    samples: bool


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """What one step works on.

    `num_scheduled_tokens`: tokens per request id, in scheduling order; `admitted`: ids that went from waiting to
    running (for the first time or again); `preempted`: ids that lost their blocks, in order; `work`: the same as
    `num_scheduled_tokens` with all that `update_from_output` needs.
    """

    num_scheduled_tokens: dict[str, int]
    total_num_scheduled_tokens: int
    admitted: tuple[str, ...]
    preempted: tuple[str, ...]
    work: tuple[Work, ...]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step brought: `produced` ids got one token each, `finished` ended with it and hold nothing any more."""

    produced: tuple[str, ...]
    finished: tuple[tuple[str, FinishReason], ...]
    preempted: tuple[str, ...]
    scheduled_tokens: int


class StepInMaking:
    """A step while it is being put together: what is left of its budget, and its work by request id."""

    __slots__ = ("admitted", "budget", "chunk_limit", "preempted", "work")

    def __init__(self, budget: int, chunk_limit: int) -> None:
        self.budget = budget
        self.chunk_limit = chunk_limit
        self.work: dict[str, Work] = {}
        self.admitted: list[str] = []
        self.preempted: list[str] = []

    def take_away(self, request: EngineRequest) -> None:
        """It is preempted after all: what it was given is to be had again."""
        work = self.work.pop(request.request_id, None)
        if work is not None:
            request.num_in_flight_tokens -= work.new_tokens
            self.budget += work.new_tokens
