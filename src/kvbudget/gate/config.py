"""The limits of a gate."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kvbudget.gate.policies import Policy
from kvbudget.gate.tenants.settings import ClassLimits, TenantLimits
from kvbudget.pool.prefix import Sharing
from kvbudget.units import Tokens

# How many tokens of a stream may pass before a driver tells the gate of them, the first aside: reporting each would
# cost more than it tells. Far below GateConfig.lag_steps, which covers it.
PROGRESS_STRIDE: Final = 16


@dataclass(frozen=True, slots=True)
class GateConfig:
    """Limits of the gate; each is told in the refusal that it causes."""

    policy: Policy = Policy.LEARNED
    max_num_seqs: int = 256
    max_context: Tokens | None = None  # None: what the pool can hold
    margin_blocks: int = 0
    # Since when the engine is sure to let others use a prompt's blocks. vLLM 0.32 does at once (SCHEDULED), unless it
    # reads several prompts side by side (long_prefill_token_threshold); COMPUTED is right for any that has a cache.
    sharing: Sharing = Sharing.COMPUTED
    key_blocks: int = 1  # of a prompt that have one key together in `Arrived.prefix`
    queue_requests: int = 1024
    queue_tokens: Tokens | None = None  # None: twice what the pool holds
    queue_ns: int = 30 * 10**9
    # What bounds how far sequences get out of step, in engine steps (see pool.trajectory):
    prefill_tokens_per_step: int = 2048  # vLLM 0.32's smallest default of max_num_batched_tokens
    lag_steps: int = 32  # reports under way, asynchronous scheduling, events that are no token
    # After a request was cut off, the engine takes this long to notice: vLLM 0.32 freed after 46-238 ms.
    abort_tail_ns: int = 250_000_000
    # Of the learned policy. The chance that the running batch outgrows the pool before it has shrunk again (pool.risk):
    epsilon: float = 0.028
    # Answers that must have been seen to their end; before that, `trajectory` decides. Old ones count less, so 1 is
    # reached with the second. The fewer they are, the more is kept free for what they do not tell (gate.lengths).
    enough_answers: float = 1.0
    # The longest wait worth having, by default for a first token within 5 s (`worthwhile_wait_ns`): whoever is expected
    # to wait longer is refused on arrival, and who waits a tenth longer is given up. A deadline that the request brings
    # counts instead.
    worthwhile_wait_ns: int = 4 * 10**9
    # Whoever is not named has weight 1 and no limits of its own; classes are priorities. Not `fair`: all are one.
    tenants: Mapping[str, TenantLimits] = field(default_factory=dict)
    classes: Mapping[int, ClassLimits] = field(default_factory=dict)
    fair: bool = True


def worthwhile_wait_ns(slo_ttft_ns: int) -> int:
    """The wait after which a first token may still come in time: a fifth is left to read the prompt, and for error."""
    return slo_ttft_ns * 4 // 5
