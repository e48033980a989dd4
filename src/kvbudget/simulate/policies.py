"""Decides which contenders there are: what stands before the engine, by the words of --policy.

`none`                   the engine alone: the same gate with rules that never bind
`oracle`                 the gate of `learned`, told every true output length
a policy of the gate     `worst-case`, `trajectory`, ...: whatever `gate.policies.Policy` knows
an engine flag           `max-num-queued-reqs=64`, `max-num-queued-tokens=20000`, `watermark=0.05` (vLLM 0.32's), alone
                         before the engine, or joined to any of the above by `+`
"""

import math
from typing import NamedTuple

from kvbudget.errors import BadValueError
from kvbudget.gate.policies import Policy
from kvbudget.units import decimal_number, is_digits

NONE = "none"
ORACLE = "oracle"
_COUNTS = {"max-num-queued-reqs": "max_num_queued_reqs", "max-num-queued-tokens": "max_num_queued_tokens"}


class EngineFlags(NamedTuple):
    """vLLM 0.32's own admission flags. `max_num_queued_reqs` bounds unfinished requests, running ones included;
    `max_num_queued_tokens` refuses while the prompts that are still in prefill hold as many tokens or more
    (`v1/engine/async_llm.py` check_admission); `watermark` is a share of the blocks that must stay free when a
    waiting request is let in."""

    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    watermark: float = 0.0


NO_FLAGS = EngineFlags()


class Contender(NamedTuple):
    """One way to run the engine. `policy` None: no gate."""

    name: str
    policy: Policy | None
    clairvoyant: bool = False
    flags: EngineFlags = NO_FLAGS


def contenders(text: str, default: EngineFlags = NO_FLAGS) -> tuple[Contender, ...]:
    """The comma-separated words of --policy, each once. `default`: engine flags that hold for all of them.

    Raises BadValueError for an unknown word.
    """
    found = {name.strip(): contender(name.strip(), default) for name in text.split(",")}
    return tuple(found.values())


def contender(text: str, default: EngineFlags = NO_FLAGS) -> Contender:
    """One contender by its name. Raises BadValueError."""
    policy: Policy | None = None
    clairvoyant, named = False, False
    flags = default
    for word in text.split("+"):
        name, equals, value = word.partition("=")
        if equals:
            flags = _with_flag(flags, name, value)
            continue
        if named:
            raise BadValueError(f"policy: {text[:80]!r} names two policies", fix="one policy, then +flag=value")
        named = True
        if name == ORACLE:
            policy, clairvoyant = Policy.LEARNED, True
        elif name != NONE:
            policy = _gate_policy(name)
    return Contender(text, policy, clairvoyant, flags)


def known_policies() -> tuple[str, ...]:
    """Words that name a policy."""
    return (NONE, *(policy.value for policy in Policy), ORACLE)


def _gate_policy(name: str) -> Policy:
    try:
        return Policy(name)
    except ValueError:
        if name in _COUNTS or name == "watermark":
            raise BadValueError(
                f"policy: {name} needs a value", fix=f"write {name}={'0.05' if name == 'watermark' else '64'}"
            ) from None
        raise BadValueError(
            f"policy: {name[:40]!r} is not known",
            fix=f"use {', '.join(known_policies())}, or an engine flag: max-num-queued-reqs=64, "
            "max-num-queued-tokens=20000, watermark=0.05",
        ) from None


def _with_flag(flags: EngineFlags, name: str, value: str) -> EngineFlags:
    if name == "watermark":
        return flags._replace(watermark=checked_watermark(value))
    if name not in _COUNTS:
        raise BadValueError(f"policy: {name[:40]!r} is no engine flag", fix=f"use {', '.join(_COUNTS)} or watermark")
    if not is_digits(value) or len(value) > 12:
        raise BadValueError(f"policy: {name}={value[:40]} is not a whole number", fix=f"write {name}=64")
    return flags._replace(**{_COUNTS[name]: int(value)})


def checked_watermark(value: str | float) -> float:
    """A share of the pool, 0 to below 1. Raises BadValueError."""
    try:
        share = decimal_number(value) if isinstance(value, str) else value
    except ValueError:
        share = math.nan
    if not 0 <= share < 1:
        raise BadValueError(f"watermark: {str(value)[:40]} is not a share from 0 to below 1", fix="write 0.05")
    return share
