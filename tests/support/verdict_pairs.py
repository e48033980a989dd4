"""Pairs of scrapes by verdict: the same trouble in other magnitudes, names, versions and numbers of engines."""

from typing import Any, NamedTuple

from snapshots import vllm

Figures = dict[str, Any]


class Pair(NamedTuple):
    """`a` before, `b` after; figures that are not named are those of `snapshots.BASE`. `how`: arguments of `vllm`."""

    name: str
    verdict: str
    a: Figures
    b: Figures
    how: Figures = {}  # noqa: RUF012 # never changed

    def texts(self) -> tuple[str, str]:
        """Both scrapes."""
        return vllm(self.a, **self.how), vllm({**self.a, **self.b}, **self.how)


UNDER = {"underscores": True}
OLD = {"old_names": True}
SHUFFLED = {"labels": (("model_name", 'org/a model, \\"big\\"'), ("engine", "3"), ("pod", "x-1"))}
MOVING = {"prompt": 110_000, "queries": 110_000, "hits": 88_000, "generated": 560_000, "stop": 930}

PAIRS = (
    # the engine's blocks are used up
    Pair("thrash", "pool_full", {"usage": 0.99, "running": 40, "waiting": 25, "preemptions": 1200},
         {"waiting": 27, "preemptions": 1290}),
    Pair("few preemptions", "pool_full", {"usage": 0.97, "running": 72, "waiting": 184, "preemptions": 3},
         {"preemptions": 6, "usage": 1.0, **MOVING}, UNDER),
    Pair("no preemption yet", "pool_full", {"usage": 0.96, "running": 31, "waiting": 4}, {"usage": 0.98, "waiting": 9},
         SHUFFLED),
    Pair("gauge after a preemption", "pool_full", {"usage": 0.93, "running": 12, "waiting": 3, "preemptions": 40},
         {"usage": 0.88, "preemptions": 55, **MOVING}),
    Pair("preempts, nobody in the queue", "pool_full", {"usage": 0.98, "running": 120, "preemptions": 9},
         {"preemptions": 31, **MOVING}),
    Pair("by the old name", "pool_full", {"usage": 0.99, "running": 18, "waiting": 6, "preemptions": 70},
         {"preemptions": 99}, OLD),
    Pair("falling number running", "pool_full", {"usage": 0.975, "running": 38, "waiting": 60},
         {"running": 26, "usage": 0.991, "waiting": 75}),
    Pair("256 run and preempt", "pool_full", {"usage": 0.99, "running": 256, "waiting": 70, "preemptions": 10},
         {"preemptions": 60, "waiting": 90}),
    Pair("two of them fill it, many wait", "pool_full", {"usage": 0.74, "running": 2, "waiting": 98},
         {"usage": 0.86}),
    Pair("full with a part deferred", "pool_full",
         {"usage": 0.99, "running": 40, "waiting": 25, "deferred": 5, "preemptions": 1}, {"preemptions": 20}),
    # as many as may run
    Pair("256 of 256", "seqs_full", {"usage": 0.35, "running": 256, "waiting": 60, "hits": 10, "deferred": 0},
         {"waiting": 70, "queries": 110_000, "prompt": 110_000}),
    Pair("128, half used", "seqs_full", {"usage": 0.52, "running": 128, "waiting": 12}, {"waiting": 15, **MOVING},
         UNDER),
    Pair("64, nearly empty", "seqs_full", {"usage": 0.08, "running": 64, "waiting": 200}, {"waiting": 260}, SHUFFLED),
    Pair("1024 of 1024", "seqs_full", {"usage": 0.7, "running": 1024, "waiting": 5}, {"waiting": 8, **MOVING}),
    Pair("no usual number, but pinned", "seqs_full", {"usage": 0.41, "running": 100, "waiting": 33},
         {"usage": 0.44, "waiting": 30, **MOVING}),
    Pair("one short of the limit", "seqs_full", {"usage": 0.3, "running": 256, "waiting": 40},
         {"running": 254, "waiting": 44, **MOVING}),
    Pair("16 of 16 by the old name", "seqs_full", {"usage": 0.6, "running": 16, "waiting": 9}, {"waiting": 11}, OLD),
    Pair("32, with old preemptions", "seqs_full", {"usage": 0.5, "running": 32, "waiting": 20, "preemptions": 400},
         {"waiting": 21, **MOVING}),
    # nothing moves
    Pair("for minutes", "stuck", {"usage": 0.0, "running": 0, "waiting": 6}, {}),
    Pair("labelled capacity", "stuck", {"usage": 0.0, "running": 0, "waiting": 6, "deferred": 0}, {"waiting": 8}),
    Pair("one waits", "stuck", {"usage": 0.0, "running": 0, "waiting": 1}, {"waiting": 5}, UNDER),
    Pair("many wait, old preemptions", "stuck", {"usage": 0.0, "running": 0, "waiting": 143, "preemptions": 77},
         {"waiting": 150}, SHUFFLED),
    Pair("blocks were left behind", "stuck", {"usage": 0.02, "running": 0, "waiting": 12}, {"waiting": 12}, OLD),
    Pair("part of them deferred", "stuck", {"usage": 0.0, "running": 0, "waiting": 6, "deferred": 2}, {}),
    # prefill
    Pair("6,000 in and 2 out", "compute_bound", {"usage": 0.32, "running": 14, "waiting": 80},
         {"running": 12, "waiting": 110, "prompt": 1_300_000, "queries": 1_300_000, "generated": 500_400,
         "stop": 1100}),
    Pair("few run, pinned", "compute_bound", {"usage": 0.15, "running": 6, "waiting": 90},
         {"waiting": 130, "prompt": 900_000, "generated": 500_300}, UNDER),
    Pair("a usual number by chance", "compute_bound", {"usage": 0.28, "running": 16, "waiting": 50},
         {"waiting": 70, "prompt": 2_100_000, "generated": 502_000}, SHUFFLED),
    Pair("full steps", "compute_bound",
         {"usage": 0.45, "running": 40, "waiting": 30, "steps": {"sum": 8_000_000, "count": 1_000}},
         {"running": 44, "waiting": 38, "prompt": 500_000, "generated": 520_000,
          "steps": {"sum": 16_000_000, "count": 2_000}}),
    Pair("by elimination", "compute_bound", {"usage": 0.5, "running": 30, "waiting": 20},
         {"running": 37, "waiting": 26, "usage": 0.55, **MOVING}),
    Pair("low by the old name", "compute_bound", {"usage": 0.2, "running": 9, "waiting": 44},
         {"running": 11, "waiting": 60, "prompt": 700_000, "generated": 501_000}, OLD),
    # constraints
    Pair("LoRA slots", "deferred", {"usage": 0.4, "running": 8, "waiting": 12, "deferred": 12}, {}),
    Pair("most of them", "deferred", {"usage": 0.3, "running": 20, "waiting": 40, "deferred": 36}, {**MOVING}, UNDER),
    Pair("grammar, few", "deferred", {"usage": 0.1, "running": 3, "waiting": 3, "deferred": 3}, {**MOVING}),
    Pair("64 run", "deferred", {"usage": 0.55, "running": 64, "waiting": 31, "deferred": 31}, {**MOVING}, SHUFFLED),
    Pair("nothing runs yet", "deferred", {"usage": 0.0, "running": 0, "waiting": 9, "deferred": 9}, {}),
    Pair("a full pool is not why", "deferred", {"usage": 0.93, "running": 20, "waiting": 15, "deferred": 15},
         {**MOVING}),
    # few that go on
    Pair("two at the top", "runaway_output", {"usage": 1.0, "running": 2}, {"generated": 508_000}),
    Pair("two, growing", "runaway_output", {"usage": 0.9, "running": 2}, {"usage": 0.96, "generated": 504_000}, UNDER),
    Pair("one alone", "runaway_output", {"usage": 0.97, "running": 1}, {"usage": 0.985, "generated": 501_000},
         SHUFFLED),
    Pair("four of a large pool", "runaway_output", {"usage": 0.95, "running": 4, "blocks": 40_000},
         {"usage": 0.97, "generated": 512_000}),
    Pair("six, growing", "runaway_output", {"usage": 0.88, "running": 6, "blocks": 20_000},
         {"usage": 0.93, "generated": 516_000}),
    Pair("three by the old name", "runaway_output", {"usage": 0.96, "running": 3}, {"usage": 0.99,
         "generated": 503_000},
         OLD),
    # far too large
    Pair("four places", "over_provisioned",
         {"usage": 0.2, "running": 4, "blocks": 11_469, "cache": {"kv_cache_max_concurrency": "11.2"}},
         {"stop": 940, "generated": 560_000}),
    Pair("four of full length fit almost three times", "over_provisioned",
         {"usage": 0.34, "running": 4, "blocks": 11_469, "cache": {"kv_cache_max_concurrency": "11.2"}},
         {"generated": 505_000, "stop": 905}),
    Pair("hardly used", "over_provisioned", {"usage": 0.04, "running": 6, "blocks": 90_000}, {"generated": 530_000}),
    Pair("64 take 3 %", "over_provisioned", {"usage": 0.03, "running": 64, "blocks": 400_000}, {**MOVING}, UNDER),
    Pair("16 take 1 %", "over_provisioned", {"usage": 0.01, "running": 16, "blocks": 500_000}, {**MOVING}, SHUFFLED),
    Pair("by the old name", "over_provisioned", {"usage": 0.05, "running": 8, "blocks": 80_000}, {**MOVING}, OLD),
    # prefix cache
    Pair("a block of a hybrid", "prefix_cache_below_block",
         {"usage": 0.3, "hits": 0, "queries": 300_000, "prompt": 300_000, "block": 784, "blocks": 900},
         {"queries": 360_000, "prompt": 360_000}),
    Pair("1,600 tokens a block", "prefix_cache_below_block",
         {"usage": 0.5, "hits": 0, "queries": 700_000, "prompt": 700_000, "block": 1600, "blocks": 400},
         {"queries": 801_405, "prompt": 801_405}, UNDER),
    Pair("max_model_len under a block", "prefix_cache_below_block",
         {"usage": 0.2, "hits": 0, "queries": 4_000, "prompt": 4_000, "block": 8320, "blocks": 300, "stop": 3,
          "length": 0, "cache": {"kv_cache_max_concurrency": "299", "kv_cache_size_tokens": "1224704"}},
         {"queries": 10_608, "prompt": 10_608, "stop": 6}),
    Pair("prompts under a block", "prefix_cache_below_block",
         {"usage": 0.3, "hits": 0, "queries": 9_000, "prompt": 9_000},
         {"queries": 18_000, "prompt": 18_000, "stop": 1_800}, SHUFFLED),
    Pair("1,056 tokens, long prompts", "prefix_cache_below_block",
         {"usage": 0.4, "hits": 0, "queries": 1_000_000, "prompt": 1_000_000, "block": 1056, "blocks": 700},
         {"queries": 1_400_000, "prompt": 1_400_000, "stop": 1_200}),
    Pair("short prompts of a chat", "prefix_cache_no_sharing", {"usage": 0.3, "hits": 0},
         {"queries": 110_000, "prompt": 110_000}),
    Pair("long prompts, all different", "prefix_cache_no_sharing",
         {"usage": 0.45, "hits": 0, "queries": 4_000_000, "prompt": 4_000_000},
         {"queries": 5_000_000, "prompt": 5_000_000, "stop": 1_150}, UNDER),
    Pair("hardly a hit", "prefix_cache_no_sharing",
         {"usage": 0.2, "running": 5, "hits": 100, "queries": 900_000, "prompt": 900_000},
         {"hits": 132, "queries": 960_000, "prompt": 960_000, "stop": 960}, SHUFFLED),
    Pair("blocks of 32", "prefix_cache_no_sharing", {"usage": 0.1, "running": 3, "hits": 0, "block": 32},
         {"queries": 150_000, "prompt": 150_000, "stop": 950}),
    Pair("by the old name", "prefix_cache_no_sharing", {"usage": 0.3, "hits": 0},
         {"queries": 110_000, "prompt": 110_000, "stop": 990}, OLD),
    Pair("hits fell under pressure", "prefix_cache_too_small", {"usage": 0.9, "running": 30},
         {"hits": 81_000, "queries": 120_000, "prompt": 120_000, "generated": 540_000, "stop": 950}),
    Pair("few of many", "prefix_cache_too_small",
         {"usage": 0.86, "running": 24, "hits": 240_000, "queries": 800_000, "prompt": 800_000},
         {"hits": 244_000, "queries": 900_000, "prompt": 900_000, "stop": 950}, UNDER),
    Pair("hardly any left", "prefix_cache_too_small",
         {"usage": 0.94, "running": 50, "hits": 300_000, "queries": 1_000_000, "prompt": 1_000_000},
         {"hits": 301_000, "queries": 1_200_000, "prompt": 1_200_000, "stop": 1000}, SHUFFLED),
    Pair("half of the pool held", "prefix_cache_too_small", {"usage": 0.7, "running": 30, "hits": 80_000},
         {"hits": 82_000, "queries": 140_000, "prompt": 140_000, "stop": 960}),
    Pair("by the old name", "prefix_cache_too_small", {"usage": 0.88, "running": 22, "hits": 50_000},
         {"hits": 51_000, "queries": 130_000, "prompt": 130_000, "stop": 940}, OLD),
    Pair("a small pool turned over", "prefix_cache_too_small",
         {"usage": 0.5, "running": 6, "hits": 300_000, "queries": 1_000_000, "prompt": 1_000_000, "blocks": 300},
         {"hits": 330_000, "queries": 1_200_000, "prompt": 1_200_000, "generated": 540_000, "stop": 990}),
    Pair("a tenth hits, now as ever", "healthy",
         {"usage": 0.86, "running": 24, "hits": 80_000, "queries": 800_000, "prompt": 800_000, "blocks": 2_500},
         {"hits": 90_000, "queries": 900_000, "prompt": 900_000, "stop": 950}),
    Pair("a quarter hits, now as ever", "healthy",
         {"usage": 0.6, "running": 24, "hits": 200_000, "queries": 800_000, "prompt": 800_000, "blocks": 2_500},
         {"hits": 225_000, "queries": 900_000, "prompt": 900_000, "stop": 950}),
    # refused by the engine
    Pair("a full queue", "engine_rejecting",
         {"usage": 0.6, "running": 20, "waiting": 0, "rejected": {"max_num_queued_reqs": 10,
         "max_num_queued_tokens": 0}},
         {"rejected": {"max_num_queued_reqs": 70, "max_num_queued_tokens": 0}, **MOVING}),
    Pair("with a queue", "engine_rejecting",
         {"usage": 0.5, "running": 30, "waiting": 50, "rejected": {"max_num_queued_reqs": 0}},
         {"running": 33, "rejected": {"max_num_queued_reqs": 25}, **MOVING}, UNDER),
    Pair("64 run, 50 wait", "engine_rejecting",
         {"usage": 0.5, "running": 64, "waiting": 50, "rejected": {"max_num_queued_tokens": 5}},
         {"rejected": {"max_num_queued_tokens": 45}, **MOVING}, SHUFFLED),
    Pair("one reason appears", "engine_rejecting", {"usage": 0.3, "running": 5},
         {"rejected": {"queue_full": 9}, **MOVING}),
    Pair("errors", "engine_rejecting", {"usage": 0.4, "running": 10, "error": 0}, {"error": 40, **MOVING}),
    # nothing wrong
    Pair("old preemptions", "healthy", {"usage": 0.82, "running": 3, "preemptions": 7}, {}),
    Pair("busy", "healthy", {"usage": 0.6, "running": 40}, {"running": 44, "usage": 0.65, **MOVING}, UNDER),
    Pair("idle", "healthy", {"usage": 0.0, "running": 0}, {}, SHUFFLED),
    Pair("a moment's queue", "healthy", {"usage": 0.5, "running": 20, "waiting": 0},
         {"running": 26, "waiting": 1, "usage": 0.55, **MOVING}),
    Pair("high and falling", "healthy", {"usage": 0.93, "running": 30}, {"usage": 0.88, "running": 28, **MOVING}),
    Pair("storm of last week", "healthy", {"usage": 0.3, "running": 6, "preemptions": 88_000, "abort": 4_000},
         {**MOVING}, OLD),
    Pair("refusals of last week", "healthy", {"usage": 0.3, "running": 6, "rejected": {"max_num_queued_reqs": 900}},
         {**MOVING}),
    Pair("hardly anybody", "healthy", {"usage": 0.02, "running": 1}, {**MOVING}),
    # not enough to say
    Pair("no usage", "insufficient_data", {"usage": None, "running": 40, "waiting": 25}, {**MOVING}),
    Pair("no gauges at all", "insufficient_data", {"usage": None, "running": None, "waiting": None}, {**MOVING}, UNDER),
    Pair("no usage, nobody waits", "insufficient_data", {"usage": None, "running": 4}, {**MOVING}),
    Pair("NaN", "insufficient_data", {"usage": "NaN", "running": 12, "waiting": 9}, {**MOVING}),
    Pair("no running", "insufficient_data", {"usage": 0.4, "running": None, "waiting": 12}, {**MOVING}),
)  # fmt: skip
