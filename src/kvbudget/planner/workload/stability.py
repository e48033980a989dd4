"""Decides whether requests arrive faster than the pool lets them go: arrival rate x residence against its blocks.

Little's law: what is held on average is the rate times what one request holds over its stay. Around that mean, as if
arrivals were random (Poisson) and nobody waited, the held blocks scatter with the variance rate x (blocks^2 x stay);
that is the compound Poisson law of a system without a queue, and needs no draw. A recorded trace shows its own bursts.
"""

from collections.abc import Sequence
from math import sqrt
from typing import NamedTuple

from kvbudget.planner.workload.lengths import deviation, normal_share
from kvbudget.pool.groups import Layout


class Service(NamedTuple):
    """How fast an engine serves at the concurrency that is planned. `source`: given, measured or estimated."""

    seconds_per_token: float
    prefill_tokens_per_s: float
    source: str

    def residence_s(self, prompt: int, output: int) -> float:
        """Seconds from the start of the prefill to the last token, waiting aside."""
        return prompt / self.prefill_tokens_per_s + output * self.seconds_per_token


class Recorded(NamedTuple):
    """The trace as it came, with nobody waiting: the most at once, and the share of time above the pool."""

    most_requests: int
    most_blocks: int
    share_above_pool: float


class Stability(NamedTuple):
    """Demand against the pool. `reserved`: every request at its end blocks for its whole stay, as a careful gate
    promises; `held`: what grows token by token, as the engine holds it.

    `verdict`: "stable": even reservations fit on average; "tight": only what is held does, so a gate that reserves the
    worst case makes requests wait without end; "unstable": not even that, the queue grows for ever. `largest_rate` and
    `largest_rate_held`: requests/s at which those means reach the pool or max_num_seqs; `comfortable_rate`:
    reservations fit at 95 % of moments. `full`: share of moments at which reservations exceed the pool, at this rate.
    """

    verdict: str
    arrivals_per_s: float
    arrivals_source: str
    service: Service
    mean_residence_s: float
    requests_at_once: float
    reserved_blocks: float
    held_blocks: float
    usable_blocks: int
    max_num_seqs: int
    largest_rate: float
    largest_rate_held: float
    comfortable_rate: float
    limited_by: str
    full: float
    recorded: Recorded | None = None

    def lines(self) -> list[str]:
        """For people."""
        lines = [
            f"{self.verdict}: {self.arrivals_per_s:,.2f} requests/s ({self.arrivals_source}) x "
            f"{self.mean_residence_s:,.1f} s ({self.service.source} speed) = {self.requests_at_once:,.1f} at once; "
            f"they reserve {self.reserved_blocks:,.0f} and hold {self.held_blocks:,.0f} of "
            f"{self.usable_blocks:,} blocks",
            f"largest sustainable rate: {self.largest_rate:,.2f}/s (limited by {self.limited_by}); with room at 95 % "
            f"of moments: {self.comfortable_rate:,.2f}/s; pool full at {self.full:.1%} of moments",
        ]
        if self.recorded is not None:
            lines.append(
                f"as recorded: at most {self.recorded.most_requests:,} at once with {self.recorded.most_blocks:,} "
                f"blocks; more than the pool for {self.recorded.share_above_pool:.1%} of the time"
            )
        return lines


def stability_of(
    layout: Layout,
    requests: Sequence[tuple[int, int]],
    service: Service,
    *,
    usable_blocks: int,
    max_num_seqs: int,
    arrivals_per_s: float,
    arrivals_source: str,
    arrivals_s: Sequence[float] = (),
    most_tokens: int = 0,
) -> Stability:
    """`arrivals_s` of the same requests, where recorded. `most_tokens`: longer requests are cut (0: none)."""
    stay = reserved = held = reserved_square = 0.0
    for prompt, output in requests:
        blocks, seconds = _peak(layout, prompt + output, most_tokens), service.residence_s(prompt, output)
        stay += seconds
        reserved += blocks * seconds
        reserved_square += blocks * blocks * seconds
        held += _held_block_seconds(layout, prompt, output, service, most_tokens)
    count = len(requests)
    stay, reserved, held, reserved_square = (x / count for x in (stay, reserved, held, reserved_square))
    rate, usable = arrivals_per_s, max(0, usable_blocks)
    by_seqs = max_num_seqs / stay
    by_pool, by_pool_held = usable / reserved, usable / held
    largest, largest_held = min(by_pool, by_seqs), min(by_pool_held, by_seqs)
    spread = sqrt(rate * reserved_square)
    return Stability(
        verdict="stable" if rate < largest else "tight" if rate < largest_held else "unstable",
        arrivals_per_s=rate,
        arrivals_source=arrivals_source,
        service=service,
        mean_residence_s=stay,
        requests_at_once=rate * stay,
        reserved_blocks=rate * reserved,
        held_blocks=rate * held,
        usable_blocks=usable,
        max_num_seqs=max_num_seqs,
        largest_rate=largest,
        largest_rate_held=largest_held,
        comfortable_rate=min(_rate_within(usable, reserved, reserved_square), _rate_within(max_num_seqs, stay, stay)),
        limited_by="pool" if by_pool <= by_seqs else "max_num_seqs",
        full=1 - normal_share((usable + 0.5 - rate * reserved) / spread) if spread else 0.0,
        recorded=_recorded(layout, requests, service, arrivals_s, usable, most_tokens) if arrivals_s else None,
    )


def _peak(layout: Layout, tokens: int, most_tokens: int) -> int:
    return layout.blocks_for(min(tokens, most_tokens) if most_tokens else tokens)


def _held_block_seconds(layout: Layout, prompt: int, output: int, service: Service, most_tokens: int) -> float:
    """Blocks x seconds of one stay: all prompt blocks through the prefill, then growth (Simpson's rule over three
    points, exact for straight growth)."""
    first, middle, last = (
        _peak(layout, tokens, most_tokens) for tokens in (prompt, prompt + output // 2, prompt + output)
    )
    decode = (first + 4 * middle + last) / 6 * output * service.seconds_per_token
    return first * prompt / service.prefill_tokens_per_s + decode


def _rate_within(limit: float, mean: float, square: float) -> float:
    """The rate at which mean + 1.645 deviations reach the limit: a quadratic equation in the root of the rate."""
    spread = deviation(0.95) * sqrt(square)
    root = (sqrt(spread * spread + 4 * mean * limit) - spread) / (2 * mean)
    return root * root


def _recorded(
    layout: Layout,
    requests: Sequence[tuple[int, int]],
    service: Service,
    arrivals_s: Sequence[float],
    usable: int,
    most_tokens: int,
) -> Recorded:
    moments: list[tuple[float, int, int]] = []
    for (prompt, output), arrival_s in zip(requests, arrivals_s, strict=True):
        blocks = _peak(layout, prompt + output, most_tokens)
        moments.append((arrival_s, 1, blocks))
        moments.append((arrival_s + service.residence_s(prompt, output), -1, -blocks))
    moments.sort()  # at one moment leavings first
    running = blocks = most_running = most_blocks = 0
    above, since = 0.0, moments[0][0]
    for moment, change, more in moments:
        above += moment - since if blocks > usable else 0.0
        running, blocks, since = running + change, blocks + more, moment
        most_running, most_blocks = max(most_running, running), max(most_blocks, blocks)
    whole = moments[-1][0] - moments[0][0]
    return Recorded(most_running, most_blocks, above / whole if whole else 0.0)
