"""Decides which demand a forecast is learned from and tried on: series from a seed, as unlike one another as can be.

None of them is fitted to a real trace. A series is a sum of clients with heavy-tailed shares, each with a season of a
day and a week, slow drift and perhaps on and off stretches; then bursts, jobs at fixed times, level shifts, outages;
and counts that are burstier than a Poisson process. Its unit means nothing.
"""

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.signal import lfilter

DAY = 1440
Series = NDArray[np.float64]


def demand(seed: int, days: int = 14, *, ramps: bool = True) -> Series:
    """One value a minute. The same seed gives the same series. Without `ramps`: many clients only, and bursts that
    go as they came."""
    rng = np.random.default_rng(seed)
    minutes = days * DAY
    if ramps and rng.random() < 0.35:
        return _plain(rng, minutes, days)
    total = _clients(rng, minutes)
    mean = float(total.mean())
    _bursts(rng, total, mean, days)
    if ramps:
        _ramps(rng, total, mean, days)
    _jobs(rng, total, mean, days)
    _shifts(rng, total)
    requests = np.exp(rng.uniform(np.log(50), np.log(2e4)))  # a minute
    spread = rng.uniform(1, 4) ** 2  # variance of a count over its mean
    wanted = np.maximum(total / mean * requests, 1e-6)
    rough = np.exp(_drift(rng, minutes, 2, 1.0) * rng.uniform(0, 0.04))
    counted: Series = rng.gamma(np.maximum(wanted / spread, 1e-4)) * spread * rough
    return counted / requests * 1e6


def _plain(rng: Generator, minutes: int, days: int) -> Series:
    """One season, one drift, one noise: what is left where many clients average out."""
    time = np.arange(minutes)
    height = rng.uniform(0, 0.9) * np.sin(2 * np.pi * time / DAY + rng.uniform(0, 6))
    height += _drift(rng, minutes, np.exp(rng.uniform(np.log(20), np.log(2000))), rng.uniform(0.02, 0.45))
    for _ in range(rng.poisson(rng.choice([0, 0.5, 2, 4]) * days)):
        start = int(rng.integers(0, minutes))
        height[start : start + int(rng.integers(5, 90))] += rng.uniform(0.1, 0.9)
    total = np.exp(height)
    _ramps(rng, total, float(total.mean()), days)
    _shifts(rng, total)
    noise: Series = np.maximum(0.0, rng.normal(1, np.exp(rng.uniform(np.log(0.003), np.log(0.08))), minutes))
    return total * noise * 1e6


def _clients(rng: Generator, minutes: int) -> Series:
    time = np.arange(minutes)
    count = int(rng.choice([5, 15, 40, 100]))
    shares = rng.pareto(rng.uniform(0.8, 2.0), count) + 0.05
    shares = np.sort(shares / shares.sum())[::-1]
    if count > 25:  # the small ones move as one
        shares = np.append(shares[:24], shares[24:].sum())
    knot = int(rng.choice([1, 1, 5, 10, 15, 30]))
    day, first_phase = rng.uniform(0, 1.2), rng.uniform(0, 2 * np.pi)
    weekend = rng.uniform(0, 0.8) * (rng.random() < 0.6) * ((time // DAY + rng.integers(0, 7)) % 7 >= 5)
    total = np.zeros(minutes)
    for share in shares:
        phase, height = first_phase + rng.normal(0, 0.5), day * rng.uniform(0.5, 1.3)
        rate = height * np.sin(2 * np.pi * time / DAY + phase) - weekend
        rate += 0.3 * height * np.sin(4 * np.pi * time / DAY + phase * 1.7)
        rate += _drift(rng, minutes, np.exp(rng.uniform(np.log(30), np.log(1500))), rng.uniform(0.05, 0.8))
        rate += _drift(rng, minutes, 3000, rng.uniform(0, 0.6))
        rate = np.exp(rate)
        if rng.random() < 0.35:
            rate *= _stretches(rng, minutes)
        rate = _knotted(rng, rate, knot)
        total += share * rate / max(float(rate.mean()), 1e-9)
    return total


def _drift(rng: Generator, minutes: int, memory: float, deviation: float) -> Series:
    """A process that comes back to 0 within about `memory` minutes."""
    keep = np.exp(-1 / memory)
    steps = rng.standard_normal(minutes) * deviation * np.sqrt(1 - keep * keep)
    steps[0] = rng.standard_normal() * deviation
    found: Series = lfilter([1.0], [1.0, -keep], steps)
    return found


def _stretches(rng: Generator, minutes: int) -> Series:
    found, at, now = np.ones(minutes), 0, 1.0
    while at < minutes:
        long = int(rng.exponential(rng.choice([120, 600, 2500]))) + 10
        found[at : at + long] = now
        at += long
        now = rng.choice([0.0, 0.1, 1.0, 1.0, 2.5]) if rng.random() < 0.7 else 1.0
    return found


def _knotted(rng: Generator, rate: Series, every: int) -> Series:
    """Straight between every so many minutes: published traces often are."""
    if every <= 1:
        return rate
    knots = np.arange(-int(rng.integers(0, every)), len(rate) + every, every)
    return np.interp(np.arange(len(rate)), knots, rate[np.clip(knots, 0, len(rate) - 1)])


def _bursts(rng: Generator, total: Series, mean: float, days: int) -> None:
    often = rng.choice([0.0, 0.3, 1.0, 3.0]) * rng.random()
    for _ in range(rng.poisson(often * days)):
        start = int(rng.integers(0, len(total)))
        long = int(rng.choice([6, 10, 20, 40, 90]) * rng.uniform(0.6, 1.4))
        height = mean * rng.pareto(2) * rng.uniform(0.3, 1.5)
        peaked = np.interp(np.arange(long), [0, long * rng.uniform(0.05, 0.6), long], [0, 1, 0])
        shape = peaked if rng.random() < 0.7 else np.ones(long)
        part = total[start : start + long]
        part += height * shape[: len(part)]


def _ramps(rng: Generator, total: Series, mean: float, days: int) -> None:
    """Demand that goes up in a straight line, stays and goes again: a launch, a failover, a batch that fans out."""
    for _ in range(rng.poisson(rng.choice([0.0, 0.2, 0.6]) * days)):
        start, up = int(rng.integers(0, len(total))), int(rng.integers(15, 150))
        stay, down = int(rng.integers(0, 180)), int(rng.integers(5, 120))
        part = total[start : start + up + stay + down]
        shape = np.interp(np.arange(len(part)), [0, up, up + stay, up + stay + down], [0, 1, 1, 0])
        part += mean * rng.uniform(0.3, 2.5) * shape


def _jobs(rng: Generator, total: Series, mean: float, days: int) -> None:
    if rng.random() >= 0.4:
        return
    for _ in range(int(rng.integers(1, 4))):
        when, long, height = int(rng.integers(0, DAY)), int(rng.choice([10, 20, 45])), mean * rng.uniform(0.2, 1.5)
        for day in range(days):
            if rng.random() < 0.75:
                start = max(0, day * DAY + when + int(rng.normal(0, 3)))
                part = total[start : start + long]
                part += (
                    height
                    * rng.uniform(0.5, 1.5)
                    * np.interp(np.arange(long), [0, long / 2, long], [0.2, 1, 0.2])[: len(part)]
                )


def _shifts(rng: Generator, total: Series) -> None:
    if rng.random() < 0.4:  # growth, migration, another release
        for _ in range(int(rng.integers(1, 4))):
            total[int(rng.integers(0, len(total))) :] *= rng.uniform(0.6, 1.7)
    if rng.random() < 0.3:  # outages
        for _ in range(int(rng.integers(1, 6))):
            start, long = int(rng.integers(0, len(total))), int(rng.exponential(40)) + 3
            total[start : start + long] *= rng.choice([0.0, 0.1])
    if rng.random() < 0.25:  # a holiday
        start = int(rng.integers(0, max(1, len(total) // DAY))) * DAY
        total[start : start + DAY] *= rng.uniform(0.2, 0.7)
