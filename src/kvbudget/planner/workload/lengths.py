"""Decides what lengths requests have: percentiles as people write them, `p50=800,p95=4000,p99=8000`, or one length that
all have; and the whole distribution that is drawn through them."""

from collections.abc import Sequence
from math import erf, exp, log, sqrt
from typing import NamedTuple

from kvbudget.errors import BadValueError
from kvbudget.units import Tokens, parse_length

_NAMES = ("p50", "p95", "p99")
SHARES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
# Beyond any window there is; keeps a steep pair of percentiles from running away above p99.
_LONGEST = 2**31
_FARTHEST_DEVIATION = 8.0


class Lengths(NamedTuple):
    """Tokens at the percentiles that were given; None where one was not."""

    p50: Tokens | None
    p95: Tokens | None
    p99: Tokens | None

    def at(self, name: str) -> Tokens | None:
        """Tokens at percentile `p50`, `p95` or `p99`."""
        return {"p50": self.p50, "p95": self.p95, "p99": self.p99}[name]


def parse_lengths(text: str, flag: str) -> Lengths:
    """Read `p50=800,p95=4k`, or one length that all requests have: `4000`. Raises BadValueError for unknown names,
    doubles, or percentiles that fall."""
    if text.strip()[:1].isdigit() and not any(mark in text for mark in "=,"):
        constant = parse_length(text, flag)
        return Lengths(constant, constant, constant)
    found: dict[str, Tokens] = {}
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        if not equals or name not in _NAMES or name in found:
            raise BadValueError(
                f"{flag}: {part.strip()[:40]!r} is not one of {', '.join(_NAMES)}, each at most once",
                fix=f"write {flag} p50=800,p95=4000,p99=8000, or one length for all: {flag} 800",
            )
        found[name] = parse_length(value, f"{flag} {name}")
    given = [found[name] for name in _NAMES if name in found]
    if given != sorted(given):
        raise BadValueError(f"{flag}: a higher percentile is shorter than a lower one", fix="p50 <= p95 <= p99")
    return Lengths(found.get("p50"), found.get("p95"), found.get("p99"))


def drawn_through(lengths: Lengths, count: int) -> tuple[Tokens, ...]:
    """`count` equally likely lengths, ascending, whose percentiles are the given ones.

    Between two given percentiles the logarithm of the length is linear in the deviation of the normal distribution
    (p50: 0, p95: 1.645, p99: 2.326), that is, log-normal by pieces: lengths of real traces are nearer to that than to
    any straight line. Below the lowest and above the highest the nearest piece goes on. One percentile alone is a
    constant. Every length is at least 1.
    """
    points = [(deviation(SHARES[name]), log(max(1, at))) for name in _NAMES if (at := lengths.at(name)) is not None]
    if len(points) < 2:
        return (Tokens(round(exp(points[0][1]))) if points else Tokens(1),) * count
    drawn = []
    for index in range(count):
        where = deviation((index + 0.5) / count)
        last = next((index for index in range(1, len(points)) if where <= points[index][0]), len(points) - 1)
        left, right = points[last - 1], points[last]
        slope = (right[1] - left[1]) / (right[0] - left[0])
        drawn.append(Tokens(max(1, round(exp(min(log(_LONGEST), left[1] + slope * (where - left[0])))))))
    return tuple(drawn)


def at_share(ascending: Sequence[int], share: float) -> int:
    """The smallest length that at least `share` of all do not exceed (nearest rank); 0 where there is none."""
    if not ascending:
        return 0
    rank = -(-round(share * len(ascending) * 10**9) // 10**9)
    return ascending[min(len(ascending), max(1, rank)) - 1]


def normal_share(deviations: float) -> float:
    """Share of a normal distribution below so many standard deviations from its mean."""
    return (1 + erf(deviations / sqrt(2))) / 2


def deviation(share: float) -> float:
    """The inverse of `normal_share`, by halving; 0 < share < 1."""
    low, high = -_FARTHEST_DEVIATION, _FARTHEST_DEVIATION
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if normal_share(middle) < share else (low, middle)
    return (low + high) / 2
