"""Decides what differs when the same tokens come as few long or as many short requests."""

from collections import Counter
from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

from kvbudget.planner.workload.lengths import at_share
from kvbudget.planner.workload.stability import Service
from kvbudget.pool.groups import Layout

# A gate promises no longer wait than this in Retry-After.
LONGEST_RETRY_AFTER_S = 120
_FULL = 0.9


class Split(NamedTuple):
    """One row: the workload's requests, each `length_factor` times as long and that much rarer.

    `blocks`: of all of them at their ends; `tokens` is the same in every row but for rounding. `drain_s`: seconds until
    99 % of requests that start now have given their blocks back. `wait_s`: mean seconds between two that end, when
    their starts are spread evenly. `retry_after_s`: the most that a refusal can have to promise: until the p99 request
    ends, at most 120. `refusal_at_90`: chance that the next request does not fit while the pool is 90 % full.
    `beyond`: share longer than max_model_len, refused whatever is free. `unfit`: why such a row cannot be, in words, ""
    where it can: so many would need more blocks than the pool has, or more than max_num_seqs, or are longer than one
    request may be.
    """

    length_factor: float
    requests: float
    tokens: float
    mean_tokens: float
    blocks: float
    drain_s: float
    wait_s: float
    retry_after_s: int
    refusal_at_90: float
    beyond: float
    unfit: str = ""

    def line(self) -> str:
        """For people."""
        row = f"the same {self.tokens:,.0f} tokens as {_whole(self.requests)} of {self.mean_tokens:,.0f}"
        if self.unfit:
            return f"{row}: not here, {self.unfit}"
        return (
            f"{row}: {self.blocks:,.0f} blocks, 99 % of them done after {self.drain_s:,.1f} s, one ends every "
            f"{self.wait_s:.3g} s, Retry-After up to {self.retry_after_s} s; when the pool is 90 % full, "
            f"{self.refusal_at_90:.1%} of further ones are refused"
        )


def _whole(requests: float) -> str:
    """`5 requests`, `1 request`; a part of one is told as such: the row asks for more tokens than one request has."""
    if 0 < requests < 1:
        return "a part of 1 request"
    number = round(requests)
    return f"{number:,} {'request' if number == 1 else 'requests'}"


def splits_of(
    layout: Layout,
    requests: Sequence[tuple[int, int]],
    service: Service,
    *,
    usable_blocks: int,
    concurrency: int,
    max_model_len: int,
    max_num_seqs: int = 0,
    factors: Sequence[float] = (16, 4, 1, 1 / 4, 1 / 16),
) -> tuple[Split, ...]:
    """Rows from few long to many short. `concurrency`: requests at once in the row of factor 1. `max_num_seqs`: 0 for
    no such limit."""
    free = max(0, usable_blocks) - int(_FULL * max(0, usable_blocks))
    rows = []
    for factor in factors:
        sizes: Counter[tuple[int, int]] = Counter()
        for prompt, output in requests:
            sizes[max(1, round(prompt * factor)), max(1, round(output * factor))] += 1
        count = len(requests)
        blocks = refused = beyond = tokens = 0
        stays: list[float] = []
        for (prompt, output), often in sizes.items():
            asked = layout.blocks_for(prompt + output)
            tokens += (prompt + output) * often
            blocks += asked * often
            too_long = prompt + output > max_model_len
            beyond += often if too_long else 0
            refused += often if too_long or asked > free else 0
            stays += [service.residence_s(prompt, output)] * often
        at_once = concurrency / factor
        # at_share works on whole numbers: milliseconds
        drain_s = at_share(sorted(round(stay * 1000) for stay in stays), 0.99) / 1000
        rows.append(
            Split(
                length_factor=factor,
                requests=at_once,
                tokens=tokens / count * at_once,
                mean_tokens=tokens / count,
                blocks=blocks / count * at_once,
                drain_s=drain_s,
                wait_s=sum(stays) / count / at_once if at_once else 0.0,
                retry_after_s=min(LONGEST_RETRY_AFTER_S, ceil(drain_s)),
                refusal_at_90=refused / count,
                beyond=beyond / count,
                unfit=_unfit(
                    tokens / count, blocks / count * at_once, at_once, max_model_len, usable_blocks, max_num_seqs
                ),
            )
        )
    return tuple(rows)


def _unfit(
    mean_tokens: float, blocks: float, at_once: float, max_model_len: int, usable_blocks: int, max_num_seqs: int
) -> str:
    if mean_tokens > max_model_len:
        return f"max_model_len is {max_model_len:,}"
    if blocks > usable_blocks:
        held = int(at_once * usable_blocks / blocks)
        return f"they need {blocks:,.0f} blocks and there are {usable_blocks:,}, enough for {held:,}"
    if max_num_seqs and at_once > max_num_seqs:
        return f"--max-num-seqs lets {max_num_seqs:,} run at once"
    return ""
