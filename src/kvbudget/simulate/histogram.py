"""Decides how many of a run's times are kept: counts in 2,048 steps to each doubling, whatever the run's length."""

from typing import Final

_BITS: Final = 11  # of a value that are kept: the step between two buckets is at most 1/1024 of the value


class Histogram:
    """Counts of nanoseconds. A percentile is exact to 0.1 %, and never above the true one."""

    __slots__ = ("_counts", "total")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.total = 0

    def add(self, value_ns: int, count: int = 1) -> None:
        """`count` more times of `value_ns` (at least 0)."""
        shift = value_ns.bit_length() - _BITS
        if shift > 0:
            value_ns = value_ns >> shift << shift
        self._counts[value_ns] = self._counts.get(value_ns, 0) + count
        self.total += count

    def add_ramp(self, first_ns: int, slope_ns: int, values: int, count: int) -> None:
        """`count` times each of `first_ns` + k * `slope_ns`, k from 0 to `values` - 1; none of the figures below 0."""
        counts = self._counts
        self.total += values * count
        while values > 0:
            shift = first_ns.bit_length() - _BITS
            bucket, beyond = (first_ns >> shift << shift, (first_ns >> shift) + 1 << shift) if shift > 0 else (
                first_ns, first_ns + 1)  # fmt: skip
            alike = min(values, -((first_ns - beyond) // slope_ns)) if slope_ns else values
            counts[bucket] = counts.get(bucket, 0) + alike * count
            values -= alike
            first_ns += alike * slope_ns

    def add_all(self, other: "Histogram") -> None:
        """Everything that another one counted."""
        self.total += other.total
        for bucket, count in other._counts.items():
            self._counts[bucket] = self._counts.get(bucket, 0) + count

    def percentile(self, share: float) -> int | None:
        """Nearest rank, in nanoseconds; None when nothing was counted."""
        return self.percentiles((share,))[0]

    def percentiles(self, shares: tuple[float, ...]) -> list[int | None]:
        """Nearest ranks of ascending `shares`, in one pass."""
        if not self.total:
            return [None] * len(shares)
        ranks = [min(self.total - 1, int(share * self.total)) for share in shares]
        found: list[int | None] = []
        seen = 0
        for value_ns in sorted(self._counts):
            seen += self._counts[value_ns]
            while len(found) < len(ranks) and ranks[len(found)] < seen:
                found.append(value_ns)
        return found
