"""Demand as tests need it: one value a minute, made from a seed, with a day's season, noise and bursts."""

import random
from math import exp, pi, sin


def made_demand(
    seed: int, days: float, *, level: float = 1e6, season: float = 0.5, bursts_a_day: float = 2.0
) -> list[float]:
    """Tokens, minute by minute."""
    generator = random.Random(seed)
    minutes, drift, burst, left = int(days * 1440), 0.0, 0.0, 0
    found = []
    for minute in range(minutes):
        drift = 0.995 * drift + generator.gauss(0, 0.02)
        if not left and generator.random() < bursts_a_day / 1440:
            left, burst = generator.randint(10, 40), generator.uniform(0.2, 0.9)
        left = max(0, left - 1)
        shape = season * sin(2 * pi * minute / 1440) + drift + (burst if left else 0.0)
        found.append(level * exp(shape) * max(0.0, generator.gauss(1, 0.03)))
    return found
