"""What if the cache lay elsewhere, or kept less? Tiers of memory and compression, apart from the admission budget.

Nothing here changes a ceiling: an engine that runs without these features holds what the plan says. Eviction and
compression decide what is kept of a request that runs; admission decides how many may begin. Figures are computed from
the plan's bytes; what it costs in quality must be measured on one's own tasks.
"""

from collections.abc import Sequence
from typing import NamedTuple

from kvbudget.errors import BadValueError
from kvbudget.planner.advice.heads import HeadBudgets, heads_lines, heads_of
from kvbudget.planner.advice.roofline import Range, prefill_s
from kvbudget.planner.nested import document
from kvbudget.planner.request import Plan
from kvbudget.units import GIB, Bytes, Tokens, format_size, parse_size


class Medium(NamedTuple):
    """Somewhere to put blocks: `capacity_bytes` for each rank, `bytes_per_s` each way between it and the card."""

    name: str
    capacity_bytes: int
    bytes_per_s: float
    source: str = "given"


_MOST_MEDIA = 8
# Effective rates of common links: PCIe 4.0 x16 pinned copies reach about 25 GB/s, a PCIe 4.0 NVMe disk reads about 6.
USUAL_MEDIA = (
    Medium("cpu", 64 * GIB, 25e9, "estimated"),
    Medium("disk", 1024 * GIB, 6e9, "estimated"),
)


class Tier(NamedTuple):
    """`requests` of `tokens` tokens that the medium keeps; `move_s`: seconds to bring one back, `recompute_s` to
    prefill it again instead; `worth_it`: moving is quicker even in the best case of recomputing; None: not known."""

    medium: str
    capacity_bytes: int
    requests: int
    move_s: float
    recompute_s: Range | None
    worth_it: bool | None
    source: str


class Compressed(NamedTuple):
    """A cache that keeps less. Bytes of one more token on one rank, and the tokens and requests (of max_model_len) that
    the same pool bytes would hold; `times`: against today."""

    name: str
    bytes_per_token: float
    tokens: int
    requests: int
    times: float
    quality: str


class Offload(NamedTuple):
    """What-ifs beside the plan, never added to it. `heads`: where the needs of heads were given."""

    tokens: Tokens
    tiers: tuple[Tier, ...]
    compressed: tuple[Compressed, ...]
    heads: HeadBudgets | None = None


def parse_media(text: str) -> tuple[Medium, ...]:
    """`cpu=256GiB,disk=2TiB@7GB`: each rank's capacity, and bytes a second where a usual rate is not meant;
    or `usual`. Raises BadValueError.
    """
    if text == "usual":
        return USUAL_MEDIA
    found: list[Medium] = []
    parts = text.split(",")
    if len(parts) > _MOST_MEDIA:
        raise BadValueError(f"--offload: {len(parts)} tiers", fix=f"give at most {_MOST_MEDIA}")
    for part in parts:
        name, equals, size = part.strip().partition("=")
        capacity, at, rate = size.partition("@")
        usual = {medium.name: medium.bytes_per_s for medium in USUAL_MEDIA}.get(name, 0.0)
        if not equals or not name.isidentifier() or not (at or usual):
            raise BadValueError(
                f"--offload: {part[:40]!r} is no tier",
                fix="write cpu=256GiB, disk=2TiB or NAME=SIZE@RATE, as s3=10TiB@1GB",
            )
        speed = float(parse_size(rate, f"--offload {name}")) if at else usual
        tier = Medium(name, parse_size(capacity, f"--offload {name}"), speed)
        if not (tier.capacity_bytes and speed):
            raise BadValueError(f"--offload: {part.strip()[:40]!r} keeps nothing", fix="leave a tier of 0 out")
        if any(other.name == name for other in found):
            raise BadValueError(f"--offload: {name[:40]} is given twice", fix="add its sizes up, or name them apart")
        found.append(tier)
    return tuple(found)


def offload_of(
    plan: Plan, tokens: int | None = None, media: Sequence[Medium] = USUAL_MEDIA, needs: Sequence[float] = ()
) -> Offload:
    """`tokens`: of one request, max_model_len where not given. `needs`: of each KV head. Raises BadValueError."""
    length = tokens or plan.pool.max_model_len
    size = plan.stage.layout.bytes_for(length)
    again = prefill_s(plan, length)
    tiers = [Tier("gpu", plan.pool.bytes, plan.pool.usable_blocks // plan.stage.layout.blocks_for(length), 0.0, again,
                  True if again else None, plan.memory.kv.source)]  # fmt: skip
    for medium in media:
        if not medium.bytes_per_s > 0:
            raise BadValueError(f"{medium.name}: {medium.bytes_per_s} bytes/s is not a rate", fix="give more than 0")
        move = size / medium.bytes_per_s
        tiers.append(
            Tier(
                medium.name,
                medium.capacity_bytes,
                medium.capacity_bytes // size,
                move,
                again,
                None if again is None else move < again.low,
                medium.source,
            )
        )
    return Offload(Tokens(length), tuple(tiers), compressions_of(plan), heads_of(plan, needs) if needs else None)


def compressions_of(plan: Plan) -> tuple[Compressed, ...]:
    """Precision, folding of layers, and eviction, each alone."""
    bits = 8 * plan.settings.kv_element_bytes
    found = [_compressed(plan, f"as planned ({bits} bits)", 1.0, "none")]
    for narrow in (8, 4, 2):
        if narrow < bits:
            kept = quantised_element_bytes(narrow, 64) / plan.settings.kv_element_bytes
            harm = {8: "small", 4: "measure it", 2: "large without a method made for it"}[narrow]
            found.append(_compressed(plan, f"int{narrow}, a 16-bit scale and zero for 64 values", kept, harm))
    found += [
        _compressed(plan, f"{folded} layers share one cache", 1 / folded, "the model must be trained so")
        for folded in (2, 4)
    ]
    found += [
        _compressed(plan, f"eviction keeps {kept:.0%} of the tokens", kept, "loses what was evicted")
        for kept in (0.5, 0.25)
    ]
    return tuple(found)


def quantised_element_bytes(bits: int, group: int, scale_bits: int = 16, zero_bits: int = 16) -> float:
    """Bytes of one stored value with `bits` bits, and a scale and a zero for every `group` values."""
    return (bits + (scale_bits + zero_bits) / group) / 8


def _compressed(plan: Plan, name: str, kept: float, quality: str) -> Compressed:
    """States that do not grow with the length stay as they are: only what grows is compressed."""
    layout, pool = plan.stage.layout, plan.pool
    length = pool.max_model_len
    constant = sum(content.constant_bytes for content in layout.stored)
    growing = layout.bytes_for(length) - constant
    request = constant + growing * kept
    today = layout.bytes_for(length)
    times = today / request if request else 1.0
    return Compressed(
        name,
        layout.bytes_per_token * kept,
        int(pool.tokens * times),
        int(pool.usable_blocks * times) // pool.blocks_per_request if pool.blocks_per_request else 0,
        times,
        quality,
    )


def offload_json(offload: Offload) -> dict[str, object]:
    """Under the key "offload" of kvbudget.plan/1."""
    return document(offload) | {"in_admission_budget": False}


def offload_lines(offload: Offload) -> list[str]:
    """For people."""
    lines = ["what if, not in the ceilings above:"]
    for tier in offload.tiers:
        line = (
            f"{tier.medium}: {format_size(Bytes(tier.capacity_bytes))} ({tier.source}) keep {tier.requests:,} "
            f"{'request' if tier.requests == 1 else 'requests'} of {offload.tokens:,} tokens"
        )
        if tier.move_s:
            line += f", back in {tier.move_s:.2f} s"
            if tier.recompute_s is not None:
                again = tier.recompute_s
                line += f" against {again.low:.1f} to {again.high:.1f} s of prefill of all of it (estimated)"
        lines.append(line)
    lines += [
        f"{one.name}: {one.bytes_per_token:,.0f} B a token, {one.tokens:,} tokens, {one.times:.2f} times; quality: "
        f"{one.quality}"
        for one in offload.compressed
    ]
    return lines + (heads_lines(offload.heads) if offload.heads else [])
