"""The same trouble in any magnitude: figures are drawn, the verdict stays. A failure names the seed that repeats it."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from kvbudget.diagnose.verdict import diagnose
from kvbudget.engines.metrics.observation import observation_of
from snapshots import vllm

Figures = dict[str, Any]
Drawn = tuple[Figures, Figures]


def pool_full(r: Random) -> Drawn:
    a = {"usage": r.uniform(0.95, 1), "running": r.randint(10, 300), "waiting": r.randint(3, 300)}
    return a, {"preemptions": 900 + r.choice([0, 1, 30, 400]), "waiting": a["waiting"] + r.randint(-2, 40)}


def seqs_full(r: Random) -> Drawn:
    running = r.choice([20, 32, 48, 64, 100, 128, 200, 256, 512, 1024])
    a = {"usage": r.uniform(0.05, 0.8), "running": running, "waiting": r.randint(4, 300)}
    return a, {"waiting": a["waiting"] + r.randint(-2, 40), "queries": 110_000, "prompt": 110_000}


def stuck(r: Random) -> Drawn:
    waiting = r.randint(1, 200)
    return {"usage": 0, "running": 0, "waiting": waiting}, {"waiting": waiting + r.randint(0, 5)}


def compute_bound(r: Random) -> Drawn:
    a = {"usage": r.uniform(0.05, 0.6), "running": r.randint(3, 40), "waiting": r.randint(10, 200)}
    prompts = r.randint(300_000, 3_000_000)
    return a, {
        "running": max(1, a["running"] + r.choice([-2, -1, 1, 2])), "waiting": a["waiting"] + r.randint(0, 50),
        "prompt": 100_000 + prompts, "queries": 100_000 + prompts, "generated": 500_000 + r.randint(50, prompts // 50),
    }  # fmt: skip


def deferred(r: Random) -> Drawn:
    waiting = r.randint(3, 80)
    a = {"usage": r.uniform(0.05, 0.8), "running": r.randint(1, 64), "waiting": waiting, "deferred": waiting}
    return a, {"generated": 500_000 + r.choice([0, 9_000])}


def runaway_output(r: Random) -> Drawn:
    a = {"usage": r.uniform(0.95, 1), "running": r.randint(1, 4), "blocks": r.choice([2_500, 20_000])}
    return a, {"generated": 500_000 + r.randint(1_000, 9_000)}


def over_provisioned(r: Random) -> Drawn:
    a = {"usage": r.uniform(0.005, 0.08), "running": r.choice([4, 8, 16, 32, 64]), "blocks": 60_000}
    return a, {"generated": 500_000 + r.randint(1_000, 9_000)}


def prefix_cache_no_sharing(r: Random) -> Drawn:
    asked = 100_000 + r.randint(8_000, 90_000)
    a = {"usage": r.uniform(0.15, 0.6), "running": r.randint(2, 30), "hits": r.choice([0, 3])}
    return a, {"queries": asked, "prompt": asked}


def prefix_cache_below_block(r: Random) -> Drawn:
    asked, block = 100_000 + r.randint(8_000, 90_000), r.choice([784, 1_056, 1_600, 2_096, 8_320])
    a = {"usage": r.uniform(0.15, 0.6), "running": r.randint(8, 30), "hits": 0, "block": block, "blocks": 900}
    return a, {"queries": asked, "prompt": asked}


def prefix_cache_too_small(r: Random) -> Drawn:
    asked, hits = r.randint(8_000, 90_000), r.randint(20_000, 80_000)
    a = {"usage": r.uniform(0.82, 0.94), "running": r.randint(10, 60), "hits": hits}
    found = int(asked * r.uniform(0, 0.5) * hits / 100_000)  # at most half of the rate before
    return a, {"queries": 100_000 + asked, "prompt": 100_000 + asked, "hits": hits + found}


def engine_rejecting(r: Random) -> Drawn:
    before = r.choice([0, 10])
    a = {"usage": r.uniform(0.1, 0.8), "running": r.randint(5, 64), "waiting": r.choice([0, 2])}
    return a | {"rejected": {"queue": before}}, {"rejected": {"queue": before + r.randint(3, 90)}}


def healthy(r: Random) -> Drawn:
    running = r.randint(2, 40)
    a = {"usage": r.uniform(0.12, 0.85), "running": running, "hits": 80_000}
    return a, {"running": running + r.choice([-1, 0, 1]), "hits": 88_000, "queries": 110_000, "prompt": 110_000}


def insufficient_data(r: Random) -> Drawn:
    return {"usage": None, "running": r.randint(1, 40), "waiting": r.randint(0, 40)}, {}


KINDS: tuple[Callable[[Random], Drawn], ...] = (
    pool_full, seqs_full, stuck, compute_bound, deferred, runaway_output, over_provisioned, prefix_cache_no_sharing,
    prefix_cache_below_block, prefix_cache_too_small, engine_rejecting, healthy, insufficient_data,
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=[kind.__name__ for kind in KINDS])
def test_the_verdict_does_not_hang_on_the_magnitude(kind: Callable[[Random], Drawn]) -> None:
    for seed in range(60):
        r = Random(seed)
        a, b = kind(r)
        a.setdefault("preemptions", 900)
        how = {"underscores": r.random() < 0.3, "old_names": r.random() < 0.3}
        labels = r.choice([(("engine", "0"), ("model_name", "m")), (("model_name", "other/m"), ("engine", "0"))])
        texts = [vllm(figures, labels=labels, **how) for figures in (a, {**a, **b})]
        found = diagnose(observation_of(texts[0], texts[1], r.choice([None, 15.0, 60.0, 300.0])))
        assert found.verdict == kind.__name__, f"seed {seed}: {a} {b}: {found.first.message}"
