"""Decides whether the cards that are there would hold more if they were used, or split, otherwise: it costs nothing.

Latent caches (MLA) and few KV heads are copied to every tensor-parallel rank. Splitting the context
(decode context parallel), the layers (pipeline) or the requests (data parallel) over the same cards ends the copies.
"""

from collections.abc import Iterator
from typing import NamedTuple

from kvbudget.errors import InputError
from kvbudget.planner.advice.counting import Counting, Numbers, held
from kvbudget.planner.advice.solve import WISHES, planned
from kvbudget.planner.request import Plan, PlanRequest

_MOST_PLANS = 64
_HARDLY_LESS = 0.95  # as much, for people who have to change more flags for it


class Split(NamedTuple):
    """Fields of the flags that change, all cards together then used, and the plan's numbers with them."""

    changes: dict[str, int]
    plan: Plan
    numbers: Numbers


def cards_of(plan: Plan) -> int:
    """How many there are, and the engines use or leave idle."""
    return max(plan.request.gpus or 0, ranks_of(plan.request))


def ranks_of(request: PlanRequest) -> int:
    """Cards that the flags use."""
    flags = request.flags
    return flags.tensor_parallel_size * flags.pipeline_parallel_size * flags.data_parallel_size


def one_card_only(plan: Plan) -> str:
    """Why an engine cannot span several of the plan's cards, "" where it can."""
    gpu = plan.request.gpu
    if gpu is not None and gpu.mig_profile:
        return "a process sees one MIG slice only: take a larger slice, or more replicas"
    return ""


def better_splits(plan: Plan, counting: Counting) -> tuple[Split, ...]:
    """Ways to use all cards that carry more than the plan does, best first: of those that carry about as much as the
    best, the least trouble. Where none of them starts at the plan's
    length, those with which a shorter one would."""
    cards = cards_of(plan)
    if cards < 2 or one_card_only(plan) or not plan.memory.usable.bytes:
        return ()
    now, longest = counting.numbers(plan), longest_of(plan)
    found = []
    for fields in list(_fields(plan, cards))[:_MOST_PLANS]:
        changes = {name: value for name, value in fields.items() if getattr(plan.request.flags, name) != value}
        if not changes:
            continue
        try:
            other = planned(plan.request._replace(flags=plan.request.flags._replace(**changes)))  # type: ignore[arg-type]
        except InputError:
            continue
        found.append(Split(changes, other, counting.numbers(other)))
    started = [split for split in found if split.numbers.starts]
    if started:
        better = [split for split in started if not now.starts or _most(split) > (held(now), now.p95)]
        most = max((_most(split) for split in better), default=(0, 0))
        near = [split for split in better if _most(split)[0] >= _HARDLY_LESS * most[0]]
        far = [split for split in better if split not in near]
        far.sort(key=lambda split: tuple(-n for n in _most(split)))
        return (*sorted(near, key=_trouble), *far)
    if now.starts:
        return ()
    longer = [split for split in found if longest_of(split.plan) > longest and lacks_length_only(split.plan)]
    return tuple(sorted(longer, key=lambda split: (-longest_of(split.plan), *_trouble(split))))


def _fields(plan: Plan, cards: int) -> Iterator[dict[str, int]]:
    """Products of ranks, stages and engines that use all cards, with each context split of the ranks."""
    divisors = [number for number in range(1, cards + 1) if cards % number == 0]
    copies = plan.engine_name in ("vllm", "sglang")
    for engines in divisors if copies else divisors[:1]:
        for stages in (number for number in divisors if cards // engines % number == 0):
            ranks = cards // engines // stages
            for contexts in (number for number in range(1, ranks + 1) if ranks % number == 0) if copies else (1,):
                yield {
                    "tensor_parallel_size": ranks,
                    "pipeline_parallel_size": stages,
                    "decode_context_parallel_size": contexts,
                    "data_parallel_size": engines,
                }


def _most(split: Split) -> tuple[int, int]:
    return held(split.numbers), split.numbers.p95


def longest_of(plan: Plan) -> int:
    """What starts for certain: at the low end of an estimate, where there is one."""
    low = plan.low_end.largest_max_model_len if plan.low_end else 0
    return low or plan.pool.largest_max_model_len


def lacks_length_only(plan: Plan) -> bool:
    """Whether it does not start, and a shorter max_model_len alone would make it."""
    errors = {finding.code for finding in plan.findings if finding.severity == "error"} - WISHES
    return errors == {"max_model_len_too_large"} and longest_of(plan) > 0


def _trouble(split: Split) -> tuple[int, ...]:
    """What is less to change and to run comes first: stages and engines are more to run than ranks. Then what carries
    most."""
    flags = split.plan.request.flags
    return len(split.changes), flags.pipeline_parallel_size, flags.data_parallel_size, *(-n for n in _most(split))
