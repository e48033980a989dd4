"""Decides which kind of instance stands for an engine: one that leaps, where that can be exact, or one that steps."""

from kvbudget.errors import BadValueError
from kvbudget.gate.policies import Policy
from kvbudget.simulate.engine_start import start_refusal
from kvbudget.simulate.instance import Instance, Owner
from kvbudget.simulate.jumping import JumpingInstance
from kvbudget.simulate.outcome import Result
from kvbudget.simulate.policies import Contender
from kvbudget.simulate.settings import Settings
from kvbudget.simulate.shared_pool import SharedPool
from kvbudget.simulate.stepping import SteppingInstance


def instances_of(
    settings: Settings, contender: Contender, result: Result, owner: Owner, *, every_step: bool
) -> list[Instance]:
    """All of them, empty. `every_step`: walk through the steps even where a leap gives the same.

    Raises BadValueError where vLLM would refuse to start.
    """
    sizes = settings.engine
    refusal = start_refusal(sizes.layout, sizes.num_blocks, sizes.window)
    if refusal:
        raise BadValueError(refusal, fix="add blocks or lower max_model_len")
    if settings.shared is not None and contender.policy is not None:
        return [SharedPool(settings, contender, result, owner) for _ in range(settings.instances)]
    # What several learn is shared, in the order in which it happens at all of them: leaps would tell it one by one.
    together = settings.instances > 1 and contender.policy is Policy.LEARNED
    kind = SteppingInstance if every_step or together or not can_jump(settings) else JumpingInstance
    return [kind(settings, contender, result, owner) for _ in range(settings.instances)]


def can_jump(settings: Settings) -> bool:
    """Whether leaps are exact: one group that keeps all, and a token for every running sequence in every step."""
    sizes = settings.engine
    groups = sizes.layout.groups
    if sizes.async_scheduling or len(groups) != 1 or sizes.max_num_batched_tokens < sizes.max_num_seqs:
        return False
    (group,) = groups
    bounded = group.window or group.most_tokens or group.fixed_blocks or group.extra_blocks
    return not bounded and (not sizes.prefix_caching or sizes.prefix_id_tokens % group.block_size == 0)
