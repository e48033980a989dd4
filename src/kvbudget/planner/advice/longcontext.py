"""Decides what a very long request costs, how instances are best divided by length, and which time-outs it needs."""

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

from kvbudget.planner.advice.roofline import (
    Range,
    active_parameters,
    attention_flops,
    card_of,
    decode_step_s,
    prefill_s,
)
from kvbudget.planner.nested import document
from kvbudget.planner.request import Plan
from kvbudget.planner.workload.mix import Workload, fits_in_service, within
from kvbudget.pool.groups import Layout
from kvbudget.units import Blocks, Bytes, Tokens, format_size

ONE_MILLION = Tokens(1024 * 1024)
_SHORT = Tokens(8 * 1024)
# Neighbours of a long prefill get no token while one of its chunks runs; readers feel gaps of more than this.
_LONGEST_GAP_S = 0.25
_SMALLEST_CHUNK, _LARGEST_CHUNK = 512, 16384
_PATIENCE = 1.5  # on top of the slow end of an estimate
_LEAST_TIMEOUT_S = 30
# Requests that are only quick to refuse; a shorter tier than this is not worth an instance.
_TIER_SHARES = (0.50, 0.80, 0.90, 0.95, 0.99)
_MOST_REQUESTS = 100_000


class LongRequest(NamedTuple):
    """One request of `tokens` tokens. `bytes` are logical, of one rank; `pool_bytes`: of its `blocks`, which groups
    that keep little in each of them take whole. `times_short`: against 8k.

    `engine_takes`: max_model_len of the plan allows it; `ceiling`: so many fit the pool at once, 0 when not one does.
    """

    tokens: Tokens
    bytes: Bytes
    blocks: Blocks
    times_short: float
    pool_share: float
    ceiling: int
    engine_takes: bool
    prefill_s: Range | None
    decode_s_per_token: Range | None
    attention_share: float
    parameters: str
    pool_bytes: Bytes = Bytes(0)
    prompt_tokens: Tokens = Tokens(0)


class Chunk(NamedTuple):
    """--max-num-batched-tokens with which no step is longer than `gap_s` at the end of the prompt, or the least that
    makes sense. `source` estimated; 0: unknown."""

    max_num_batched_tokens: int
    gap_s: float
    prefill_steps: int


class Timeouts(NamedTuple):
    """Seconds to set, from the slow end of the estimates. `first_token_s`: client's and proxy's wait for the first
    byte; `total_s`: whole answer of `output_tokens`; `readiness_probe_s`: for a probe that itself sends a request (one
    that asks /health needs no more than before)."""

    first_token_s: int
    total_s: int
    output_tokens: int
    readiness_probe_s: int


class Tier(NamedTuple):
    """Requests of at most `up_to` tokens on instances of their own with max_model_len `up_to`; the rest on others.

    `share`: of the requests; `block_share`: of block-seconds, where a request stays as long as its output is.
    `short_fits` and `long_fits`: so many requests of each kind fit one instance at once with 95 %; `mixed_fits` of all
    together. `instances_saved`: share of instances
    that the division saves (negative: costs) for the same number of requests at once.
    """

    up_to: Tokens
    share: float
    block_share: float
    short_fits: int
    long_fits: int
    mixed_fits: int
    instances_saved: float


class LongContext(NamedTuple):
    """The plan for long requests; times are None or 0 where the card is not known. All times are estimated."""

    request: LongRequest
    chunk: Chunk | None
    timeouts: Timeouts | None
    tiers: tuple[Tier, ...]
    notes: tuple[str, ...]


def long_context_of(
    plan: Plan,
    tokens: int = ONE_MILLION,
    output_tokens: int = 1024,
    workload: Workload | None = None,
    margin_blocks: int = 0,
) -> LongContext:
    """`tokens` counts prompt and output together."""
    layout, usable = plan.stage.layout, max(0, plan.pool.usable_blocks - margin_blocks)
    prompt = max(1, tokens - output_tokens)
    prefill, step = prefill_s(plan, prompt), decode_step_s(plan, 1, tokens)
    active, source = active_parameters(plan)
    attention = attention_flops(plan, prompt)
    blocks, size = layout.blocks_for(tokens), layout.bytes_for(tokens)
    request = LongRequest(
        tokens=Tokens(tokens),
        bytes=size,
        blocks=blocks,
        times_short=size / layout.bytes_for(_SHORT),
        pool_share=blocks / usable if usable else 0.0,
        ceiling=min(plan.settings.max_num_seqs, usable // blocks),
        engine_takes=tokens <= plan.pool.max_model_len,
        prefill_s=prefill,
        decode_s_per_token=step,
        attention_share=attention / (attention + 2 * active * prompt) if attention or active else 0.0,
        parameters=source,
        pool_bytes=Bytes(blocks * layout.bytes_per_block),
        prompt_tokens=Tokens(prompt),
    )
    return LongContext(
        request=request,
        chunk=_chunk(plan, prompt),
        timeouts=_timeouts(prefill, step, output_tokens) if prefill and step else None,
        tiers=tiers_of(layout, workload, usable, plan.settings.max_num_seqs, plan.pool.max_model_len)
        if workload
        else (),
        notes=_notes(plan, request),
    )


def tiers_of(layout: Layout, workload: Workload, usable: int, max_num_seqs: int, most_tokens: int) -> tuple[Tier, ...]:
    """Divisions at lengths that 50, 80, 90, 95 and 99 % of the requests do not exceed, each once, rounded to 1k."""
    requests = sorted(within(workload.requests[:_MOST_REQUESTS], most_tokens), key=sum)
    if not requests:
        return ()
    mixed = fits_in_service(layout, requests, usable, max_num_seqs)
    stays, held = _demand(layout, requests)
    tiers = []
    for up_to in sorted({ceil(sum(requests[int(s * (len(requests) - 1))]) / 1024) * 1024 for s in _TIER_SHARES}):
        short, long = [one for one in requests if sum(one) <= up_to], [one for one in requests if sum(one) > up_to]
        if not short or not long:
            continue
        short_fits, long_fits = (fits_in_service(layout, part, usable, max_num_seqs) for part in (short, long))
        short_stays, short_held = _demand(layout, short)
        at_once = short_stays / stays  # of the requests that are met at any moment
        saved = 0.0
        if mixed and short_fits and long_fits:
            saved = 1 - mixed * (at_once / short_fits + (1 - at_once) / long_fits)
        tiers.append(
            Tier(Tokens(up_to), len(short) / len(requests), short_held / held, short_fits, long_fits, mixed, saved)
        )
    return tuple(tiers)


def _demand(layout: Layout, requests: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """(Output tokens, blocks x output tokens): the stays of all, and what they hold over them."""
    return (
        sum(output for _, output in requests),
        sum(output * layout.blocks_for(prompt + output) for prompt, output in requests),
    )


def _chunk(plan: Plan, prompt: int) -> Chunk | None:
    """The last chunk is the slowest: each of its tokens looks at the whole prompt."""
    card, (active, _) = card_of(plan), active_parameters(plan)
    if not (card.known and active):
        return None
    peak = card.flops * plan.settings.tensor_parallel_size * 0.5  # between the two ends of the range
    chunk = _LARGEST_CHUNK
    while chunk > _SMALLEST_CHUNK and _chunk_s(plan, active, chunk, prompt, peak) > _LONGEST_GAP_S:
        chunk //= 2
    while chunk < plan.settings.max_num_seqs:  # a step must hold one token of each running request
        chunk *= 2
    return Chunk(chunk, _chunk_s(plan, active, chunk, prompt, peak), -(-prompt // chunk))


def _chunk_s(plan: Plan, active: int, chunk: int, prompt: int, peak: float) -> float:
    return (2 * active * chunk + attention_flops(plan, chunk, max(0, prompt - chunk))) / peak


def _timeouts(prefill: Range, step: Range, output_tokens: int) -> Timeouts:
    first = max(_LEAST_TIMEOUT_S, ceil(prefill.high * _PATIENCE))
    return Timeouts(
        first_token_s=first,
        total_s=first + ceil(output_tokens * step.high * _PATIENCE),
        output_tokens=output_tokens,
        readiness_probe_s=first,
    )


def _notes(plan: Plan, request: LongRequest) -> tuple[str, ...]:
    notes = []
    if not request.engine_takes:
        notes.append(
            f"max_model_len is {plan.pool.max_model_len:,}: such a request is refused; the engine would start with "
            f"up to {plan.pool.largest_max_model_len:,}"
        )
    if not request.ceiling:
        notes.append("not one such request fits the pool: no setting of time-outs or chunks helps, only memory does")
    notes.append("a long request holds its blocks for the whole of its stay: give it instances of its own (tiers)")
    return tuple(notes)


def long_context_json(plan: LongContext) -> dict[str, object]:
    """Under the key "long_context" of kvbudget.plan/1; every time is estimated."""
    return document(plan) | {"source": "estimated"}


def long_context_lines(plan: LongContext) -> list[str]:
    """For people."""
    request = plan.request
    lines = [
        f"one request of {request.tokens:,} tokens: {format_size(request.bytes)} of cache on each GPU, "
        f"in {request.blocks:,} {'block' if request.blocks == 1 else 'blocks'} of the pool "
        f"({format_size(request.pool_bytes)}), {request.pool_share:.0%} of it, {request.times_short:,.0f} times one "
        "of 8k; "
        f"at once: {request.ceiling:,}"
    ]
    if request.prefill_s and request.decode_s_per_token:
        lines.append(
            f"prefill of its {request.prompt_tokens:,} prompt tokens {_span(request.prefill_s, 1)} s "
            f"({request.attention_share:.0%} of it attention, which grows with "
            f"the square), then {_span(request.decode_s_per_token, 1000)} ms a token alone (estimated, "
            f"{request.parameters})"
        )
    else:
        lines.append(
            "prefill and decode times are unknown: give --gpu NAME of a card whose flops and bandwidth are known"
        )
    if plan.chunk is not None:
        lines.append(
            f"--max-num-batched-tokens {plan.chunk.max_num_batched_tokens:,}: {plan.chunk.prefill_steps:,} steps, the "
            f"last of them {plan.chunk.gap_s:.2f} s, in which other requests wait (estimated)"
        )
    if plan.timeouts is not None:
        times = plan.timeouts
        lines.append(
            f"time-outs: first token {times.first_token_s:,} s, whole answer of {times.output_tokens:,} tokens "
            f"{times.total_s:,} s, a readiness probe that sends a request {times.readiness_probe_s:,} s (estimated)"
        )
    lines += [
        f"instances for up to {tier.up_to:,} tokens take {tier.share:.0%} of requests ({tier.block_share:.0%} of "
        f"the demand): {tier.short_fits:,} at once each, the others {tier.long_fits:,}, mixed {tier.mixed_fits:,}; "
        f"instances saved {tier.instances_saved:+.0%}"
        for tier in plan.tiers
    ]
    return [*lines, *plan.notes]


def _span(times: Range, factor: int) -> str:
    return f"{times.low * factor:,.1f} to {times.high * factor:,.1f}"
