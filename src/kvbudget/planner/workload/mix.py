"""Decides how many of one's own requests fit: at percentile lengths, on average, and how many at once with 95 or 99 %.

`workload_of` is the entry; stability.py, sharing.py and splits.py answer the questions beside it, and the caller puts
what it asked for together. Nothing here draws random numbers: all chances are exact sums (chance.py).
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from kvbudget.errors import BadValueError
from kvbudget.planner.nested import document
from kvbudget.planner.request import Plan
from kvbudget.planner.workload.chance import Sums
from kvbudget.planner.workload.lengths import SHARES, Lengths, at_share, drawn_through
from kvbudget.planner.workload.percentiles import derived_names
from kvbudget.planner.workload.sharing import Sharing
from kvbudget.planner.workload.splits import Split
from kvbudget.planner.workload.stability import Stability
from kvbudget.pool.groups import Layout
from kvbudget.units import Blocks, Tokens

_DRAWN = 1000
# Mooncake's traces name one hash for every 512 tokens of a prompt.
HASH_TOKENS = 512


class Workload(NamedTuple):
    """Requests as (prompt, output) tokens, each at least 1 and equally likely.

    `source`: trace, percentiles or histogram. From a trace, in the order of arrival: `arrivals_s` (seconds from the
    first one) and `hash_ids` (one for each `hash_tokens` of the prompt), both empty where it has none.
    """

    requests: tuple[tuple[Tokens, Tokens], ...]
    source: str
    name: str = ""
    arrivals_s: tuple[float, ...] = ()
    hash_ids: tuple[tuple[int, ...], ...] = ()
    hash_tokens: int = HASH_TOKENS

    @property
    def arrivals_per_s(self) -> float:
        """Mean rate over the trace; 0 where no arrivals are known or all are at one moment."""
        arrivals = self.arrivals_s
        return (len(arrivals) - 1) / (arrivals[-1] - arrivals[0]) if arrivals and arrivals[-1] > arrivals[0] else 0.0


def workload_from_percentiles(prompt: Lengths, output: Lengths) -> Workload:
    """A thousand requests drawn through the percentiles; long prompts have long outputs, which is the careful case."""
    return Workload(
        tuple(zip(drawn_through(prompt, _DRAWN), drawn_through(output, _DRAWN), strict=True)),
        "percentiles",
        "--prompt-lengths, --output-lengths",
    )


def workload_of_lengths(plan: Plan) -> Workload | None:
    """Requests of the lengths that the plan was asked with; None where they were not given for prompts and answers."""
    prompt, output = plan.request.prompt_lengths, plan.request.output_lengths
    return None if prompt is None or output is None else workload_from_percentiles(prompt, output)


class Point(NamedTuple):
    """Requests of one length (prompt and output together, at the end): how many are held at once."""

    tokens: Tokens
    blocks: Blocks
    ceiling: int


class LeftOut(NamedTuple):
    """Requests of the workload that the engine refuses (the prompt alone is max_model_len or more), and such that it
    ends at max_model_len: `cut`."""

    refused: int
    cut: int


class Tail(NamedTuple):
    """Slots of last blocks that stay empty, on average over the requests, in groups that keep all tokens."""

    slots_per_request: float
    fraction: float


class WorkloadPlan(NamedTuple):
    """How a pool carries a workload. Blocks are of one rank; lengths are prompt + output, cut to max_model_len.

    `mean`, `p50`, `p95`, `p99`: ceilings as if all requests had that length. `fits_95`, `fits_99`: so many requests,
    each drawn from the workload and each at its end, fit together with that probability: the honest ceilings.
    `fits_95_in_service`: the same, but drawn as they are met at any moment: requests with long outputs stay longer and
    are met more often, in proportion to their output tokens.
    `overflow_at_mean_ceiling`: the chance that the ceiling of the mean length overflows the pool.
    Every number but `requests`, `longest`, `beyond` and `left_out` is of the requests as the engine serves them: those
    whose prompt alone is too long are refused, the others end at max_model_len. `beyond`: share of requests longer than
    it. `cell_blocks`: 1 when the sums are exact, else the width to which blocks were counted. `limited_by` says what
    ends `fits_95`: pool, max_num_seqs or state. `derived`: percentiles that were not given.
    """

    source: str
    name: str
    requests: int
    max_model_len: Tokens
    usable_blocks: Blocks
    margin_blocks: Blocks
    max_num_seqs: int
    mean_prompt: float
    mean_output: float
    longest: Tokens
    mean: Point
    p50: Point
    p95: Point
    p99: Point
    fits_95: int
    fits_99: int
    fits_95_in_service: int
    limited_by: str
    overflow_at_mean_ceiling: float
    overflow_at_target: float | None
    cell_blocks: int
    beyond: float
    tail: Tail
    stability: Stability | None = None
    sharing: Sharing | None = None
    splits: tuple[Split, ...] = ()
    left_out: LeftOut = LeftOut(0, 0)
    derived: tuple[str, ...] = ()


def workload_of(
    plan: Plan, workload: Workload, margin_blocks: int = 0, target_concurrency: int | None = None
) -> WorkloadPlan:
    """Ceilings and chances of `workload` in the plan's pool, `margin_blocks` kept back. Raises BadValueError when the
    workload is empty. The parts from `stability` on are for the caller to add with `_replace`."""
    if not workload.requests:
        raise BadValueError("the workload has no requests", fix="give a trace with requests, or percentiles")
    layout, longest = plan.stage.layout, plan.pool.max_model_len
    usable = max(0, plan.pool.usable_blocks - margin_blocks)
    seqs = plan.settings.max_num_seqs
    most = min(seqs, plan.pool.most_requests or seqs)
    requests = within(workload.requests, longest)
    if not requests:
        raise BadValueError(
            f"all {len(workload.requests)} prompts of the workload are longer than max_model_len {longest}",
            fix="raise --max-model-len: the engine would refuse every one of them",
        )
    totals = sorted(prompt + output for prompt, output in requests)
    count = len(totals)
    blocks = blocks_asked(layout, totals)
    mean_blocks = sum(size * often for size, often in blocks.items()) / count
    mean_tokens = Tokens(round(sum(totals) / count))
    mean = Point(mean_tokens, Blocks(round(mean_blocks)), min(most, int(usable / mean_blocks)))
    p50, p95, p99 = (_point(layout, tokens, usable, most) for tokens in _lengths(plan, workload, totals))
    sums = Sums(blocks, usable, max(most, target_concurrency or 0))
    fits = min(most, sums.largest_count(0.95))
    longer = sum(prompt + output > longest for prompt, output in workload.requests)
    refused = len(workload.requests) - count
    return WorkloadPlan(
        source=workload.source,
        name=workload.name,
        requests=len(workload.requests),
        max_model_len=longest,
        usable_blocks=plan.pool.usable_blocks,
        margin_blocks=Blocks(margin_blocks),
        max_num_seqs=seqs,
        mean_prompt=sum(prompt for prompt, _ in requests) / count,
        mean_output=sum(output for _, output in requests) / count,
        longest=Tokens(max(prompt + output for prompt, output in workload.requests)),
        mean=mean,
        p50=p50,
        p95=p95,
        p99=p99,
        fits_95=fits,
        fits_99=min(most, sums.largest_count(0.99)),
        fits_95_in_service=fits_in_service(layout, requests, usable, most),
        limited_by="pool" if fits < most else "max_num_seqs" if most == seqs else "state",
        overflow_at_mean_ceiling=1 - sums.chance(mean.ceiling),
        overflow_at_target=None if target_concurrency is None else 1 - sums.chance(target_concurrency),
        cell_blocks=sums.cell_blocks,
        beyond=longer / len(workload.requests),
        tail=_tail(layout, totals),
        left_out=LeftOut(refused, max(0, longer - refused)),
        derived=derived_names(plan.request) if workload.source == "percentiles" else (),
    )


def _lengths(plan: Plan, workload: Workload, totals: Sequence[int]) -> Sequence[int]:
    """The plan's own at p50, p95 and p99 where the workload is drawn through them: a draw only comes near them."""
    if workload.source == "percentiles" and plan.request.knows_lengths:
        return plan.ceilings.lengths
    return [at_share(totals, share) for share in SHARES.values()]


def within(requests: Sequence[tuple[int, int]], longest: int) -> list[tuple[Tokens, Tokens]]:
    """Requests as an engine with that max_model_len serves them: too long prompts refused, outputs ended at it."""
    return [(Tokens(prompt), Tokens(min(output, longest - prompt))) for prompt, output in requests if prompt < longest]


def fits_in_service(layout: Layout, requests: Sequence[tuple[int, int]], usable: int, most: int) -> int:
    """Requests at once with 95 %, at most `most`, drawn in proportion to the time that they stay (their output)."""
    stay: dict[int, int] = {}  # by length: far fewer than there are requests
    for prompt, output in requests:
        stay[prompt + output] = stay.get(prompt + output, 0) + output
    asked: Counter[int] = Counter()
    for tokens, time in stay.items():
        asked[layout.blocks_for(tokens)] += time
    return min(most, Sums(asked, usable, most).largest_count(0.95)) if asked else 0


def blocks_asked(layout: Layout, totals: list[int]) -> Counter[int]:
    """Blocks of one rank that requests hold at their end -> how many requests do. `totals` in tokens."""
    counted: Counter[int] = Counter()
    for tokens, often in Counter(totals).items():
        counted[layout.blocks_for(tokens)] += often
    return counted


def _point(layout: Layout, tokens: int, usable: int, seqs: int) -> Point:
    blocks = layout.blocks_for(tokens)
    return Point(Tokens(tokens), blocks, min(seqs, usable // blocks))


def _tail(layout: Layout, totals: list[int]) -> Tail:
    empty = sum(layout.tail_waste(tokens) * often for tokens, often in Counter(totals).items())
    filled = sum(totals) * len(layout.growing)
    return Tail(empty / len(totals), empty / (empty + filled) if filled else 0.0)


def workload_json(plan: WorkloadPlan) -> dict[str, object]:
    """Under the key "workload" of kvbudget.plan/1."""
    return document(plan)


def workload_lines(plan: WorkloadPlan) -> list[str]:
    """For people: average beside tail first, then what was asked for beside it."""
    mean, p95, p99 = plan.mean, plan.p95, plan.p99
    lines = [
        f"{plan.requests:,} requests from {plan.source}{_left_out(plan)}: prompt {plan.mean_prompt:,.0f} and output "
        f"{plan.mean_output:,.0f} tokens on average, "
        f"{'the longest asked for' if any(plan.left_out) else 'longest'} {plan.longest:,}",
        f"as if all were average ({mean.tokens:,} tokens): {mean.ceiling:,} at once, and then "
        f"{plan.overflow_at_mean_ceiling:.0%} of such batches would overflow the pool",
        f"as if all were p50 ({plan.p50.tokens:,}): {plan.p50.ceiling:,}; p95 ({p95.tokens:,}): {p95.ceiling:,}; "
        f"p99 ({p99.tokens:,}): {p99.ceiling:,}{_derived(plan.derived)}",
        f"of your mix, with 95 %: {plan.fits_95:,} at once; with 99 %: {plan.fits_99:,} (limited by "
        f"{plan.limited_by}); long answers run longer and are met more often: with that, {plan.fits_95_in_service:,}",
    ]
    if plan.overflow_at_target is not None:
        lines.append(f"at the target concurrency, {plan.overflow_at_target:.1%} of batches would overflow the pool")
    if plan.margin_blocks:
        lines.append(f"margin: {plan.margin_blocks:,} of {plan.usable_blocks:,} usable blocks are kept back")
    lines.append(
        f"empty slots in last blocks: {plan.tail.slots_per_request:,.1f} a request, {plan.tail.fraction:.2%} of them"
    )
    if plan.sharing is not None:
        lines += plan.sharing.lines()
    if plan.stability is not None:
        lines += plan.stability.lines()
    for split in plan.splits:
        lines.append(split.line())
    return lines


def _left_out(plan: WorkloadPlan) -> str:
    """`, 3 refused (prompts of max_model_len 16,384 or more), 2 cut at it; the others`."""
    refused, cut = plan.left_out
    if not refused and not cut:
        return ""
    said = [f"{refused:,} refused (prompts of max_model_len {plan.max_model_len:,} or more)"] if refused else []
    said += [f"{cut:,} cut at {'it' if refused else f'max_model_len {plan.max_model_len:,}'}"] if cut else []
    return f", {', '.join(said)}; {'the others' if refused else 'with that'}"


def _derived(names: Sequence[str]) -> str:
    """`; p99 was not given: derived from the others, log-normal`."""
    if not names:
        return ""
    how = "derived from the others, log-normal" if len(names) < len(SHARES) - 1 else "taken from the one that was"
    return f"; {' and '.join(names)} {'was' if len(names) == 1 else 'were'} not given: {how}"
