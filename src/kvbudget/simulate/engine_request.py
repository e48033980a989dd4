"""Decides what an engine knows of one request: its lengths, how far it is, and the key of each of its blocks."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from kvbudget.simulate.group_rules import BlockTable

# Blocks of one request are told apart by these many bits of a key; far beyond any model's window.
_INDEX_BITS: Final = 32


class FinishReason(StrEnum):
    """Why a request ended by itself; an abort is the caller's doing and is not reported back."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(slots=True, eq=False)
class EngineRequest:
    """One sequence inside the engine. Lengths in tokens; `max_new_tokens` is clipped to the model's window.

    `num_computed_tokens` counts what is scheduled, also where its output has not come back; of these,
    `num_in_flight_tokens` have not, and `num_stale_tokens` of them were scheduled before the last preemption.
    `num_output_placeholders`: output tokens that are on their way (asynchronous scheduling only).
    `shared_prefix_tokens`: where this prompt was seen to part from others while some group had nothing there; 0: never.
    `quiet_until`: the length up to which its blocks stay as they are.
    `cached_tokens`: found in the prefix cache when it was first admitted; None before that.
    `last_output`: it ends with so many output tokens; `left`: it has ended, or was aborted.
    """

    request_id: str
    serial: int
    prompt_tokens: int
    max_new_tokens: int
    stop_after: int | None
    priority: int
    arrival: int
    block_keys: tuple[int, ...]
    tables: tuple[BlockTable, ...] = ()
    num_computed_tokens: int = 0
    num_output_tokens: int = 0
    num_output_placeholders: int = 0
    num_in_flight_tokens: int = 0
    num_stale_tokens: int = 0
    shared_prefix_tokens: int = 0
    quiet_until: int = 0
    cached_tokens: int | None = None
    running: bool = False
    left: bool = False
    last_output: int = field(init=False)
    order: tuple[int, int, str] = field(init=False)

    def __post_init__(self) -> None:
        """`order`: who is served first under priority scheduling (vLLM 0.32 `v1/request.py: Request.__lt__`)."""
        self.last_output = min(self.max_new_tokens, self.stop_after or self.max_new_tokens)
        self.order = (self.priority, self.arrival, self.request_id)

    @property
    def num_tokens(self) -> int:
        """Prompt and output so far: what must be computed before the next token can be."""
        return self.prompt_tokens + self.num_output_tokens

    @property
    def prefill_end(self) -> int:
        """Where prefill ends: the prompt, or all but the last token of one that returns after a preemption."""
        return max(self.prompt_tokens, self.num_tokens - 1)

    def block_key(self, index: int) -> int:
        """Key of the block `index` of hashes. Where the caller gave none, the content is this request's alone."""
        if index < len(self.block_keys):
            return self.block_keys[index]
        return -1 - (self.serial << _INDEX_BITS | index)

    @property
    def finish_reason(self) -> FinishReason:
        """Why it ends with its last output; its own end counts before the limit."""
        return FinishReason.STOP if self.last_output == self.stop_after else FinishReason.LENGTH
