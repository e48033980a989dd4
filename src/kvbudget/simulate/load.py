"""Decides what one request of a load is: when it comes, how long its prompt is, and how long its answer will be."""

from dataclasses import dataclass

from kvbudget.units import Tokens

DEFAULT_TENANT = "default"


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request of a trace or a scenario.

    `max_new_tokens` is what the client declares (max_tokens), `output_tokens` what the answer really takes; the second
    is never larger. Both and the prompt are at least one token. Not `declared`: the client names no max_tokens, and
    `max_new_tokens` is only what the answer took. A smaller `priority` is more urgent (vLLM's sign).
    """

    arrival_ns: int
    prompt_tokens: Tokens
    max_new_tokens: Tokens
    output_tokens: Tokens
    tenant: str = DEFAULT_TENANT
    hash_ids: tuple[int, ...] = ()
    declared: bool = True
    priority: int = 0
