"""Decides what lengths requests have: percentiles as people write them, `p50=800,p95=4000,p99=8000`."""

from typing import NamedTuple

from kvbudget.errors import BadValueError
from kvbudget.units import Tokens, parse_length

_NAMES = ("p50", "p95", "p99")


class Lengths(NamedTuple):
    """Tokens at the percentiles that were given; None where one was not."""

    p50: Tokens | None
    p95: Tokens | None
    p99: Tokens | None

    def at(self, name: str) -> Tokens | None:
        """Tokens at percentile `p50`, `p95` or `p99`."""
        return {"p50": self.p50, "p95": self.p95, "p99": self.p99}[name]


def parse_lengths(text: str, flag: str) -> Lengths:
    """Read `p50=800,p95=4k`. Raises BadValueError for unknown names, doubles, or percentiles that fall."""
    found: dict[str, Tokens] = {}
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        if not equals or name not in _NAMES or name in found:
            raise BadValueError(
                f"{flag}: {part.strip()[:40]!r} is not one of {', '.join(_NAMES)}, each at most once",
                fix=f"write {flag} p50=800,p95=4000,p99=8000",
            )
        found[name] = parse_length(value, f"{flag} {name}")
    given = [found[name] for name in _NAMES if name in found]
    if given != sorted(given):
        raise BadValueError(f"{flag}: a higher percentile is shorter than a lower one", fix="p50 <= p95 <= p99")
    return Lengths(found.get("p50"), found.get("p95"), found.get("p99"))
