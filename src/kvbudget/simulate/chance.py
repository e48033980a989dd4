"""What of a seeded generator this floor draws from; `random.Random` of the caller is one."""

from typing import Protocol


class Chance(Protocol):
    """The same seed gives the same draws."""

    def random(self) -> float:
        """Uniform in [0, 1)."""

    def randint(self, least: int, most: int, /) -> int:
        """Uniform whole number, both ends included."""

    def expovariate(self, rate: float, /) -> float:
        """Exponential with mean 1 / rate."""

    def lognormvariate(self, mu: float, sigma: float, /) -> float:
        """Log-normal; exp(mu) is the median."""
