"""Decides what engines that do not run here tell in known states, after signatures that were seen in public.

Names and labels are those that each engine exports; numbers are others than in the source, and follow from one another
(used blocks and shares, counters and rates). A pair is the metrics that both scrapes hold and those that differ.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

Values = Mapping[str, float]

INF = float("inf")
QUEUE_S = (0.3, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, INF)
LENGTHS = (1, 10, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, INF)
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, INF)


class Pair(NamedTuple):
    """`both`: in both scrapes with these values. `older` and `newer` come on top. `after`: the public source."""

    name: str
    engine: str
    seconds: float
    doing: str
    after: str
    both: Values
    older: Values
    newer: Values


def labelled(labels: str, values: Values) -> dict[str, float]:
    """The same values with `labels` put into each name."""
    named = {}
    for name, value in values.items():
        bare, _, own = name.partition("{")
        own = own.rstrip("}")
        named[f"{bare}{{{','.join(filter(None, (labels, own)))}}}"] = value
    return named


def histogram(name: str, bounds: tuple[float, ...], counts: Mapping[float, float], total: float) -> dict[str, float]:
    """Cumulative buckets; `counts`: of each bucket alone, by its upper bound."""
    rows, seen = {}, 0.0
    for bound in bounds:
        seen += counts.get(bound, 0)
        rows[f'{name}_bucket{{le="{"+Inf" if bound == INF else float(bound)}"}}'] = seen
    return rows | {f"{name}_sum": total, f"{name}_count": seen}


# Tables of prose and figures: as they are easiest to read, not as a formatter breaks them.
# fmt: off
# --- vLLM -------------------------------------------------------------------------------------------------------------


def v1(**values: float) -> dict[str, float]:
    """vLLM's gauges and counters by short names; a queue is there by reason unless `reasons=0`."""
    short = {
        "usage": "kv_cache_usage_perc", "running": "num_requests_running", "waiting": "num_requests_waiting",
        "preempted": "num_preemptions_total", "queries": "prefix_cache_queries_total", "hits": "prefix_cache_hits_total",
        "prompt": "prompt_tokens_total", "generation": "generation_tokens_total",
        "stop": 'request_success_total{finished_reason="stop"}', "length": 'request_success_total{finished_reason="length"}',
        "abort": 'request_success_total{finished_reason="abort"}',
        "old_usage": "gpu_cache_usage_perc", "swapped": "num_requests_swapped", "hit_rate": "gpu_prefix_cache_hit_rate",
    }
    deferred = values.pop("deferred", 0.0)
    rows = {f"vllm:{short[name]}": value for name, value in values.items()}
    if "waiting" in values and "old_usage" not in values:
        rows['vllm:num_requests_waiting_by_reason{reason="capacity"}'] = values["waiting"] - deferred
        rows['vllm:num_requests_waiting_by_reason{reason="deferred"}'] = deferred
    return rows


def config(block: int, blocks: int, tokens: int = 0, concurrency: float = 0.0, caching: str = "True") -> dict[str, float]:
    """vLLM's description of its pool."""
    extra = f',kv_cache_size_tokens="{tokens}",kv_cache_max_concurrency="{concurrency}"' if tokens else ""
    labels = f'block_size="{block}",cache_dtype="auto",enable_prefix_caching="{caching}",num_gpu_blocks="{blocks}"{extra}'
    return {f"vllm:cache_config_info{{{labels}}}": 1.0}


def queue(fast: float, seconds: float = 0.0, slow: float = 0.0, total: float | None = None) -> dict[str, float]:
    """How long requests queued: so many under 0.3 s, 2 to 5 s, 10 to 30 s."""
    told = 0.05 * fast + 3.5 * seconds + 20 * slow if total is None else total
    return histogram("vllm:request_queue_time_seconds", QUEUE_S, {0.3: fast, 5.0: seconds, 30.0: slow}, told)


def lengths(of: str, counts: Mapping[float, float], mean: float) -> dict[str, float]:
    """Prompt or generation lengths of finished requests."""
    return histogram(f"vllm:request_{of}_tokens", LENGTHS, counts, mean * sum(counts.values()))


def vllm(name: str, seconds: float, doing: str, after: str, both: Values, older: Values, newer: Values, engine: str = "0") -> Pair:
    """A pair of vLLM's with its usual labels."""
    told = [labelled(f'engine="{engine}",model_name="acme/chat"', part) for part in (both, older, newer)]
    return Pair(name, "vllm", seconds, doing, after, *told)


def of_vllm() -> Iterator[Pair]:
    """States that the CPU engine does not reach."""
    big = config(16, 18240, 291824, 8.9)
    yield vllm("vllm-too-many-clients", 30, "256 closed-loop clients where about 70 fit",
        "github.com/Tandemn-Labs/tandemn-system/issues/11", big | queue(40, 20, 200),
        v1(usage=0.997, running=71, waiting=181, preempted=2110, queries=911000, hits=402000, prompt=880000, generation=1400000, stop=600, length=210, abort=0),
        v1(usage=1.0, running=68, waiting=186, preempted=2391, queries=943000, hits=415000, prompt=912000, generation=1421000, stop=622, length=219, abort=0))
    yield vllm("vllm-self-sustaining", 60, "long answers at full pool; fewer and fewer run, and no prompt gets in",
        "github.com/vllm-project/vllm/issues/27073", big | queue(900, 10, 40),
        v1(usage=0.981, running=38, waiting=11, preempted=410, queries=512000, hits=250000, prompt=500000, generation=2100000, stop=840, length=100, abort=0),
        v1(usage=0.977, running=27, waiting=24, preempted=466, queries=512000, hits=250000, prompt=500000, generation=2148000, stop=841, length=100, abort=0))
    yield vllm("vllm-high-but-well", 60, "pool at 93 %, nobody waits, nothing was ever preempted",
        "a rule in the wild alerts on use above 0.9 alone", big | queue(4100),
        v1(usage=0.931, running=31, waiting=0, preempted=0, queries=2000000, hits=1320000, prompt=2000000, generation=900000, stop=4000, length=70, abort=3),
        v1(usage=0.917, running=30, waiting=0, preempted=0, queries=2061000, hits=1361000, prompt=2061000, generation=934000, stop=4110, length=72, abort=3))
    yield vllm("vllm-blip", 60, "two waited for a moment, nobody does now", "a rule in the wild alerts on any waiting request",
        big, v1(usage=0.41, running=22, waiting=2, preempted=0, queries=800000, hits=500000, prompt=800000, generation=300000, stop=1500, length=20, abort=0) | queue(1490, 2),
        v1(usage=0.39, running=21, waiting=0, preempted=0, queries=832000, hits=521000, prompt=832000, generation=318000, stop=1560, length=21, abort=0) | queue(1552, 2))
    yield vllm("vllm-old-preemptions", 30, "11 preemptions in a storm last week; 5 requests run now",
        "field report: an alert on the counter alone stays on for ever", big | queue(9000, 40, 12),
        v1(usage=0.74, running=5, waiting=0, preempted=11, queries=400000, hits=310000, prompt=400000, generation=90000, stop=8000, length=400, abort=2),
        v1(usage=0.76, running=5, waiting=0, preempted=11, queries=404000, hits=313000, prompt=404000, generation=91500, stop=8005, length=400, abort=2))
    yield vllm("vllm-stuck", 90, "the scheduler admits nobody although the pool is empty",
        "github.com/vllm-project/vllm/issues/45414", big | queue(700),
        v1(usage=0.0, running=0, waiting=4, preempted=0, queries=90000, hits=30000, prompt=90000, generation=41000, stop=690, length=6, abort=0),
        v1(usage=0.0, running=0, waiting=7, preempted=0, queries=90000, hits=30000, prompt=90000, generation=41000, stop=690, length=6, abort=0))
    yield vllm("vllm-stuck-small-window", 600, "nothing has moved for ten minutes, the reason label says capacity",
        "github.com/vllm-project/vllm-metal/issues/479", config(16, 118, 90000, 1.0) | queue(120),
        v1(usage=0.0, running=0, waiting=9, preempted=3, queries=200000, hits=0, prompt=200000, generation=20000, stop=110, length=6, abort=0),
        v1(usage=0.0, running=0, waiting=9, preempted=3, queries=200000, hits=0, prompt=200000, generation=20000, stop=110, length=6, abort=0))
    yield vllm("vllm-fixed-footprint", 30, "three requests of a dozen tokens fill the pool: a block holds 7,808 tokens, 23 groups",
        "github.com/vllm-project/vllm/issues/54458", config(7808, 70, 457880, 1.7) | lengths("prompt", {50: 400}, 14) | lengths("generation", {100: 400}, 60) | queue(10, 90, 300),
        v1(usage=0.987, running=3, waiting=4, preempted=0, queries=6000, hits=0, prompt=6000, generation=24000, stop=400, length=0, abort=0),
        v1(usage=0.987, running=3, waiting=5, preempted=0, queries=6112, hits=0, prompt=6112, generation=24480, stop=408, length=0, abort=0))
    yield vllm("vllm-two-fill-it", 60, "two long reasoning answers fill the pool of 40,000 tokens that weights have left, 6 wait",
        "github.com/vllm-project/vllm/issues/14412", config(16, 2500, 39984, 1.25) | queue(20, 10, 30),
        v1(usage=0.994, running=2, waiting=6, preempted=14, queries=11000, hits=3000, prompt=11000, generation=410000, stop=40, length=1, abort=0),
        v1(usage=1.0, running=2, waiting=6, preempted=15, queries=11000, hits=3000, prompt=11000, generation=412500, stop=40, length=1, abort=0))
    yield vllm("vllm-window-under-block", 60, "max_model_len 4,096 and blocks of 8,320 tokens; the same prompts come again and again",
        "github.com/vllm-project/vllm/issues/48401", config(8320, 96, 398000, 97.0) | queue(2000),
        v1(usage=0.18, running=9, waiting=0, preempted=0, queries=3100000, hits=0, prompt=3100000, generation=600000, stop=1990, length=10, abort=0) | lengths("prompt", {1000: 600, 2000: 1400}, 1500),
        v1(usage=0.20, running=10, waiting=0, preempted=0, queries=3280000, hits=0, prompt=3280000, generation=634000, stop=2108, length=11, abort=0) | lengths("prompt", {1000: 636, 2000: 1484}, 1500))
    yield vllm("vllm-hybrid-block", 60, "a hybrid model's blocks hold 784 tokens, chats of 200 to 500 share a system prompt",
        "github.com/vllm-project/vllm/issues/54607", config(784, 420, 150000, 18.0) | queue(5000),
        v1(usage=0.33, running=14, waiting=0, preempted=0, queries=1500000, hits=0, prompt=1500000, generation=700000, stop=4900, length=80, abort=1) | lengths("prompt", {200: 1000, 500: 3980}, 300),
        v1(usage=0.31, running=13, waiting=0, preempted=0, queries=1560000, hits=0, prompt=1560000, generation=729000, stop=5095, length=84, abort=1) | lengths("prompt", {200: 1040, 500: 4139}, 300))
    yield vllm("vllm-nothing-shared", 60, "summaries of documents that are each seen once, 5,000 tokens on average",
        "github.com/vllm-project/vllm/issues/54607", big | queue(3000),
        v1(usage=0.42, running=17, waiting=0, preempted=0, queries=15000000, hits=0, prompt=15000000, generation=900000, stop=2990, length=4, abort=0) | lengths("prompt", {5000: 1800, 10000: 1194}, 5010),
        v1(usage=0.44, running=18, waiting=0, preempted=0, queries=15600000, hits=0, prompt=15600000, generation=936000, stop=3110, length=4, abort=0) | lengths("prompt", {5000: 1872, 10000: 1242}, 5010))
    yield vllm("vllm-lora", 30, "one adapter slot; everybody who waits wants another adapter",
        "github.com/vllm-project/vllm/pull/38435", big | queue(700, 60) | {'vllm:lora_requests_info{max_lora="1",running_lora_adapters="sql",waiting_lora_adapters="fr,de"}': 1764500000.0},
        v1(usage=0.34, running=9, waiting=14, deferred=14, preempted=0, queries=300000, hits=210000, prompt=300000, generation=200000, stop=740, length=9, abort=0),
        v1(usage=0.36, running=9, waiting=17, deferred=17, preempted=0, queries=303000, hits=212000, prompt=303000, generation=205000, stop=751, length=9, abort=0))
    yield vllm("vllm-kv-transfer", 30, "decode side of a disaggregated pair; requests wait for KV from the prefill side",
        "github.com/vllm-project/vllm/pull/38435", big | queue(800, 200),
        v1(usage=0.22, running=12, waiting=26, deferred=25, preempted=0, queries=600000, hits=100000, prompt=600000, generation=300000, stop=980, length=2, abort=0),
        v1(usage=0.25, running=11, waiting=31, deferred=31, preempted=0, queries=606000, hits=101000, prompt=606000, generation=303000, stop=990, length=2, abort=0))
    yield vllm("vllm-full-and-a-few-deferred", 30, "pool full; two of those who wait also want an adapter",
        "github.com/vllm-project/vllm/pull/38435", big | queue(300, 100, 200),
        v1(usage=0.992, running=44, waiting=30, deferred=2, preempted=801, queries=700000, hits=300000, prompt=700000, generation=900000, stop=590, length=7, abort=0),
        v1(usage=0.988, running=43, waiting=33, deferred=2, preempted=836, queries=709000, hits=303000, prompt=709000, generation=912000, stop=601, length=7, abort=0))
    yield vllm("vllm-prefill-bound", 30, "6,000 in and 2 out; steps are at their 8,192 tokens and the pool at a third",
        "github.com/llm-d/llm-d-workload-variant-autoscaler/issues/662", big | lengths("generation", {10: 5000}, 2),
        v1(usage=0.31, running=13, waiting=88, preempted=0, queries=30000000, hits=3100000, prompt=30000000, generation=10000, stop=5000, length=0, abort=0)
        | histogram("vllm:iteration_tokens_total", STEP_TOKENS, {8192: 3650, 4096: 30}, 29900000) | queue(100, 2000, 2800),
        v1(usage=0.33, running=11, waiting=97, preempted=0, queries=30780000, hits=3180000, prompt=30780000, generation=10260, stop=5130, length=0, abort=0)
        | histogram("vllm:iteration_tokens_total", STEP_TOKENS, {8192: 3745, 4096: 31}, 30680000) | queue(101, 2004, 2925))
    yield vllm("vllm-slow-card", 30, "few run, the pool is nearly empty, prompts of 9,000 tokens on a slow card",
        "github.com/vllm-project/vllm/issues/13508", big | lengths("generation", {100: 300}, 60) | lengths("prompt", {10000: 300}, 9000),
        v1(usage=0.09, running=3, waiting=41, preempted=0, queries=2700000, hits=300000, prompt=2700000, generation=18000, stop=300, length=0, abort=0)
        | histogram("vllm:iteration_tokens_total", STEP_TOKENS, {2048: 1310, 64: 200}, 2690000) | queue(5, 20, 275),
        v1(usage=0.08, running=3, waiting=44, preempted=0, queries=2754000, hits=306000, prompt=2754000, generation=18360, stop=306, length=0, abort=0)
        | histogram("vllm:iteration_tokens_total", STEP_TOKENS, {2048: 1337, 64: 203}, 2744000) | queue(5, 20, 281))
    yield vllm("vllm-seqs-128", 30, "max_num_seqs 128; running stands at it and the pool is at a fifth",
        "max_num_seqs is the limit that people forget", big,
        v1(usage=0.21, running=128, waiting=33, preempted=0, queries=900000, hits=500000, prompt=900000, generation=800000, stop=5000, length=50, abort=0) | queue(4000, 900, 100),
        v1(usage=0.22, running=128, waiting=38, preempted=0, queries=921000, hits=511000, prompt=921000, generation=829000, stop=5170, length=51, abort=0) | queue(4000, 1063, 103))
    yield vllm("vllm-hung-up", 60, "clients give up after 30 s and ask again; the tokens are computed and thrown away",
        "github.com/inference-sim/inference-sim/issues/1121", big | queue(900, 300),
        v1(usage=0.61, running=52, waiting=0, preempted=0, queries=900000, hits=400000, prompt=900000, generation=3000000, stop=300, length=12, abort=880),
        v1(usage=0.63, running=54, waiting=0, preempted=0, queries=960000, hits=427000, prompt=960000, generation=3210000, stop=308, length=12, abort=1004))
    yield vllm("vllm-refuses", 30, "--max-num-queued-reqs is reached again and again, 503 without Retry-After",
        "github.com/vllm-project/vllm/pull/49445", big | queue(5000, 100),
        v1(usage=0.55, running=60, waiting=4, preempted=0, queries=900000, hits=500000, prompt=900000, generation=800000, stop=5000, length=50, abort=0) | {'vllm:admission_rejections_total{reason="max_num_queued_reqs"}': 40, 'vllm:admission_rejections_total{reason="max_num_queued_tokens"}': 0},
        v1(usage=0.57, running=59, waiting=5, preempted=0, queries=912000, hits=507000, prompt=912000, generation=815000, stop=5088, length=51, abort=0) | {'vllm:admission_rejections_total{reason="max_num_queued_reqs"}': 211, 'vllm:admission_rejections_total{reason="max_num_queued_tokens"}': 0})
    yield vllm("vllm-runaway", 120, "answers of a loop-prone model run into 32,768 tokens; four of them hold the pool, nobody waits",
        "github.com/sgl-project/sglang/issues/2746", config(16, 8200, 131184, 4.0) | queue(60) | {'vllm:request_params_max_tokens_bucket{le="+Inf"}': 60},
        v1(usage=0.90, running=4, waiting=0, preempted=0, queries=15000, hits=8000, prompt=15000, generation=1500000, stop=10, length=50, abort=0) | lengths("generation", {500: 10, INF: 50}, 27400),
        v1(usage=0.97, running=4, waiting=0, preempted=0, queries=15300, hits=8100, prompt=15300, generation=1524000, stop=10, length=51, abort=0) | lengths("generation", {500: 10, INF: 51}, 27500))
    both_full = {}
    for engine, usage in (("0", 0.99), ("1", 0.98)):
        both_full |= labelled(f'engine="{engine}",model_name="acme/chat"', big | v1(usage=usage, running=40, waiting=15, queries=500000, hits=200000, prompt=500000, generation=500000, stop=900, length=9, abort=0))
    yield Pair("vllm-ranks-both-full", "vllm", 30, "two data-parallel engines, both full and preempting", "vLLM labels each engine",
        both_full, {f'vllm:num_preemptions_total{{engine="{rank}",model_name="acme/chat"}}': 300.0 for rank in "01"},
        {f'vllm:num_preemptions_total{{engine="{rank}",model_name="acme/chat"}}': 341.0 for rank in "01"})
    one_full = labelled('engine="0",model_name="acme/chat"', big | v1(usage=0.99, running=40, waiting=27, queries=500000, hits=200000, prompt=500000, stop=900, length=9, abort=0))
    one_full |= labelled('engine="1",model_name="acme/chat"', big | v1(usage=0.08, running=3, waiting=0, queries=90000, hits=40000, prompt=90000, stop=100, length=1, abort=0))
    yield Pair("vllm-ranks-one-full", "vllm", 30, "two data-parallel engines; a sticky router sends nearly all to one of them",
        "github.com/vllm-project/aibrix/issues/1614", one_full,
        {f'vllm:num_preemptions_total{{engine="{rank}",model_name="acme/chat"}}': n for rank, n in (("0", 300.0), ("1", 0.0))} | {f'vllm:generation_tokens_total{{engine="{rank}",model_name="acme/chat"}}': n for rank, n in (("0", 9e5), ("1", 1e5))},
        {f'vllm:num_preemptions_total{{engine="{rank}",model_name="acme/chat"}}': n for rank, n in (("0", 333.0), ("1", 0.0))} | {f'vllm:generation_tokens_total{{engine="{rank}",model_name="acme/chat"}}': n for rank, n in (("0", 9.2e5), ("1", 1.03e5))})


def of_older_vllm() -> Iterator[Pair]:
    """Under names that were removed since."""
    yield vllm("vllm06-swapping", 30, "V0 with n = 4: two sequence groups fill the pool, others are swapped out or wait",
        "github.com/vllm-project/vllm/issues/546", config(16, 2100) | {"vllm:cpu_cache_usage_perc": 0.31},
        v1(old_usage=0.91, running=3, swapped=2, waiting=57, preempted=61, prompt=70000, generation=300000, stop=150, length=40, abort=0),
        v1(old_usage=0.97, running=2, swapped=3, waiting=58, preempted=66, prompt=70000, generation=303600, stop=150, length=40, abort=0))
    yield vllm("vllm08-full", 30, "storm, seen under the names of 0.8", "github.com/vllm-project/vllm/pull/18354", config(16, 4000) | {"vllm:num_requests_swapped": 0},
        v1(old_usage=0.986, running=33, waiting=18, preempted=700, prompt=300000, generation=500000, stop=800, length=20, abort=0),
        v1(old_usage=0.991, running=35, waiting=21, preempted=742, prompt=306000, generation=511000, stop=812, length=20, abort=0))
    yield vllm("vllm08-seqs", 30, "256 run all the time, 44 wait, the pool is at a quarter", "github.com/vllm-project/vllm/pull/18354", config(16, 30000),
        v1(old_usage=0.24, running=256, waiting=44, preempted=0, prompt=900000, generation=900000, stop=8000, length=20, abort=0) | queue(100, 600, 300),
        v1(old_usage=0.25, running=256, waiting=51, preempted=0, prompt=921000, generation=951000, stop=8200, length=20, abort=0) | queue(100, 780, 320))
    yield vllm("vllm06-well", 30, "11 run, nobody waits; the hit rate is a gauge", "github.com/vllm-project/vllm/pull/18354", config(16, 9000),
        v1(old_usage=0.37, running=11, swapped=0, waiting=0, hit_rate=0.55, preempted=0, prompt=500000, generation=200000, stop=1900, length=30, abort=1),
        v1(old_usage=0.36, running=11, swapped=0, waiting=0, hit_rate=0.56, preempted=0, prompt=512000, generation=206000, stop=1950, length=30, abort=1))


# --- SGLang -----------------------------------------------------------------------------------------------------------

SG = 'model_name="acme/chat",engine_type="unified"'


def sg(rank: str = 'tp_rank="0",pp_rank="0"', **values: float) -> dict[str, float]:
    """SGLang's by its own names."""
    return labelled(f"{SG},{rank}", {f"sglang:{name}": value for name, value in values.items()})


def of_sglang() -> Iterator[Pair]:
    """One series per rank; radix cache; several pools."""
    yield Pair("sglang-retracting", "sglang", 30, "long answers, new_token_ratio too optimistic: retraction all the time",
        "SGLang's guide to hyperparameters", sg(max_total_num_tokens=61440, new_token_ratio=0.11, cache_hit_rate=0.38),
        sg(token_usage=0.981, num_used_tokens=60272, num_running_reqs=44, num_queue_reqs=21, num_retracted_reqs=3, num_retracted_requests_total=410, prompt_tokens_total=8e5, generation_tokens_total=1.9e6, cached_tokens_total=3.0e5),
        sg(token_usage=0.992, num_used_tokens=60948, num_running_reqs=39, num_queue_reqs=29, num_retracted_reqs=5, num_retracted_requests_total=446, prompt_tokens_total=8.1e5, generation_tokens_total=1.93e6, cached_tokens_total=3.04e5))
    yield Pair("sglang-retracting-2025", "sglang", 30, "as sglang-retracting, in mid-2025, when retraction was a gauge alone",
        "github.com/sgl-project/sglang/pull/7030", sg(max_total_num_tokens=131072, cache_hit_rate=0.21),
        sg(token_usage=0.974, num_used_tokens=127664, num_running_reqs=61, num_queue_reqs=30, num_retracted_reqs=4, prompt_tokens_total=8e5, generation_tokens_total=1.9e6),
        sg(token_usage=0.988, num_used_tokens=129499, num_running_reqs=57, num_queue_reqs=38, num_retracted_reqs=6, prompt_tokens_total=8.2e5, generation_tokens_total=1.93e6))
    yield Pair("sglang-conservative", "sglang", 30, "clients declare 8,000 tokens and stop after 300: admission holds back, the pool is at 58 %",
        "SGLang's guide to hyperparameters", sg(max_total_num_tokens=240000, new_token_ratio=0.7, cache_hit_rate=0.44, num_retracted_reqs=0, num_retracted_requests_total=0),
        sg(token_usage=0.58, num_used_tokens=139200, num_running_reqs=47, num_queue_reqs=83, prompt_tokens_total=8e5, generation_tokens_total=1.9e6),
        sg(token_usage=0.61, num_used_tokens=146400, num_running_reqs=51, num_queue_reqs=90, prompt_tokens_total=8.3e5, generation_tokens_total=1.94e6))
    yield Pair("sglang-full-attention-pool", "sglang", 30, "full-attention pool at 1.00, sliding pool at 0.07; retraction and 429",
        "github.com/sgl-project/sglang/issues/26248", sg(max_total_num_tokens=180000, cache_hit_rate=0.3),
        sg(token_usage=0.53, full_token_usage=0.998, swa_token_usage=0.07, num_running_reqs=12, num_queue_reqs=9, num_retracted_requests_total=50, prompt_tokens_total=8e5, generation_tokens_total=1.9e6),
        sg(token_usage=0.54, full_token_usage=1.0, swa_token_usage=0.06, num_running_reqs=11, num_queue_reqs=13, num_retracted_requests_total=66, prompt_tokens_total=8.05e5, generation_tokens_total=1.9009e6))
    yield Pair("sglang-mamba-pool", "sglang", 30, "state slots of a hybrid model are all taken, tokens are at a fifth",
        "github.com/sgl-project/sglang/issues/26248", sg(max_total_num_tokens=900000, cache_hit_rate=0.3, num_retracted_requests_total=0),
        sg(token_usage=0.19, mamba_usage=1.0, num_running_reqs=48, num_queue_reqs=20, prompt_tokens_total=8e5, generation_tokens_total=1.9e6),
        sg(token_usage=0.21, mamba_usage=1.0, num_running_reqs=48, num_queue_reqs=26, prompt_tokens_total=8.2e5, generation_tokens_total=1.92e6))
    yield Pair("sglang-grammar", "sglang", 30, "everybody waits for a grammar to be compiled", "SGLang counts the grammar queue apart",
        sg(max_total_num_tokens=240000, cache_hit_rate=0.5, num_queue_reqs=0),
        sg(token_usage=0.12, num_running_reqs=6, num_grammar_queue_reqs=11, prompt_tokens_total=8e5, generation_tokens_total=1.9e6),
        sg(token_usage=0.11, num_running_reqs=5, num_grammar_queue_reqs=16, prompt_tokens_total=8.02e5, generation_tokens_total=1.904e6))
    well: dict[str, float] = {}
    grown: dict[str, float] = {}
    for rank in range(4):
        where = f'tp_rank="{rank}",pp_rank="0"'
        well |= sg(where, max_total_num_tokens=240000, token_usage=0.44, num_used_tokens=105600, num_running_reqs=30, num_queue_reqs=0, cache_hit_rate=0.61)
        grown |= sg(where, prompt_tokens_total=8.3e5, generation_tokens_total=1.95e6)
    yield Pair("sglang-four-ranks", "sglang", 30, "tensor parallel over four ranks, all of which tell the same 30 requests", "github.com/vllm-project/aibrix/issues/1614",
        well, {name: value * 0.98 for name, value in grown.items()}, grown)
    ranks: dict[str, float] = {}
    for rank, usage, running, waiting in ((0, 0.985, 40, 36), (1, 0.11, 4, 0), (2, 0.14, 5, 0)):
        where = f'tp_rank="0",pp_rank="0",dp_rank="{rank}"'
        ranks |= sg(where, max_total_num_tokens=240000, token_usage=usage, num_used_tokens=usage * 240000, num_running_reqs=running, num_queue_reqs=waiting, cache_hit_rate=0.4)
    grown = {name: value for rank in range(3) for name, value in sg(f'tp_rank="0",pp_rank="0",dp_rank="{rank}"', generation_tokens_total=1.9e6).items()}
    yield Pair("sglang-one-rank-full", "sglang", 30, "data parallel over three ranks; one of them gets nearly everything", "github.com/vllm-project/aibrix/issues/1614",
        ranks, grown, {name: value + 9000 for name, value in grown.items()})
    yield Pair("sglang-evictable", "sglang", 30, "nobody is there; the radix cache keeps what it may evict", "github.com/sgl-project/sglang/issues/6778",
        sg(max_total_num_tokens=240000, token_usage=0.93, num_used_tokens=223200, num_running_reqs=0, num_queue_reqs=0, cache_hit_rate=0.0, prompt_tokens_total=8e5, generation_tokens_total=1.9e6), {}, {})
    underscored = {"sglang_max_total_num_tokens": 61440.0, "sglang_cache_hit_rate": 0.25}
    yield Pair("sglang-underscores", "sglang", 30, "full and retracting, after a relay that rewrites colons", "github.com/lightseekorg/smg/issues/813",
        labelled(SG, underscored),
        labelled(SG, {"sglang_token_usage": 0.985, "sglang_num_running_reqs": 31, "sglang_num_queue_reqs": 14, "sglang_num_retracted_requests_total": 80, "sglang_generation_tokens_total": 1.9e6}),
        labelled(SG, {"sglang_token_usage": 0.993, "sglang_num_running_reqs": 28, "sglang_num_queue_reqs": 18, "sglang_num_retracted_requests_total": 97, "sglang_generation_tokens_total": 1.92e6}))
    yield Pair("sglang-runaway", "sglang", 300, "two answers hold about 150,000 tokens each, nobody waits", "github.com/sgl-project/sglang/issues/2746",
        sg(max_total_num_tokens=310000, num_running_reqs=2, num_queue_reqs=0, cache_hit_rate=0.0, num_retracted_requests_total=0),
        sg(token_usage=0.92, num_used_tokens=285200, prompt_tokens_total=9000, generation_tokens_total=2.9e5),
        sg(token_usage=0.99, num_used_tokens=306900, prompt_tokens_total=9000, generation_tokens_total=3.117e5))
    yield Pair("sglang-tiny-pool", "sglang", 30, "a pool of 2,048 tokens: one request fills it and seven wait", "github.com/sgl-project/sglang/issues/14972",
        sg(max_total_num_tokens=2048, cache_hit_rate=0.1), sg(token_usage=0.93, num_used_tokens=1905, num_running_reqs=1, num_queue_reqs=7, num_retracted_requests_total=2, generation_tokens_total=40000),
        sg(token_usage=0.98, num_used_tokens=2007, num_running_reqs=1, num_queue_reqs=7, num_retracted_requests_total=3, generation_tokens_total=41900))
    yield Pair("sglang-stuck", "sglang", 120, "nothing runs, six wait, no token comes", "github.com/vllm-project/vllm/issues/45414",
        sg(max_total_num_tokens=240000, token_usage=0.0, num_used_tokens=0, num_running_reqs=0, cache_hit_rate=0.0, prompt_tokens_total=8e5, generation_tokens_total=1.9e6),
        sg(num_queue_reqs=5), sg(num_queue_reqs=6))
    yield Pair("sglang-max-running", "sglang", 30, "--max-running-requests 32 is reached, the pool is at a fifth", "SGLang exports its limit since 2024",
        sg(max_total_num_tokens=240000, cache_hit_rate=0.4, max_running_requests=32, num_running_reqs=32, num_retracted_requests_total=0),
        sg(token_usage=0.19, num_used_tokens=45600, num_queue_reqs=25, prompt_tokens_total=8e5, generation_tokens_total=1.9e6),
        sg(token_usage=0.2, num_used_tokens=48000, num_queue_reqs=31, prompt_tokens_total=8.2e5, generation_tokens_total=1.92e6))


# --- others -----------------------------------------------------------------------------------------------------------


def of_tgi() -> Iterator[Pair]:
    """TGI reserves input and max_new_tokens; that share is all it tells of its pool."""
    yield Pair("tgi-reserved", "tgi", 30, "requests declare 4,000 new tokens and stop early: all is reserved", "TGI v3 reserves at admission",
        {"tgi_batch_max_total_tokens": 180000}, {"tgi_batch_current_max_tokens": 176400, "tgi_batch_current_size": 40, "tgi_queue_size": 26, "tgi_request_count": 9000, "tgi_request_success": 8900},
        {"tgi_batch_current_max_tokens": 178200, "tgi_batch_current_size": 41, "tgi_queue_size": 33, "tgi_request_count": 9070, "tgi_request_success": 8963})
    yield Pair("tgi-well", "tgi", 30, "9 in the batch, nobody waits", "TGI v3",
        {"tgi_batch_max_total_tokens": 180000, "tgi_queue_size": 0}, {"tgi_batch_current_max_tokens": 41000, "tgi_batch_current_size": 9, "tgi_request_count": 9000, "tgi_request_success": 8991},
        {"tgi_batch_current_max_tokens": 43000, "tgi_batch_current_size": 9, "tgi_request_count": 9040, "tgi_request_success": 9031})
    yield Pair("tgi-overloaded", "tgi", 30, "--max-concurrent-requests is reached; clients get 429 overloaded", "TGI counts its failures by error",
        {"tgi_batch_max_total_tokens": 180000}, {"tgi_batch_current_max_tokens": 120000, "tgi_batch_current_size": 64, "tgi_queue_size": 0, "tgi_request_count": 9000, "tgi_request_success": 8500, 'tgi_request_failure{err="overloaded"}': 310, 'tgi_request_failure{err="validation"}': 4},
        {"tgi_batch_current_max_tokens": 121000, "tgi_batch_current_size": 64, "tgi_queue_size": 0, "tgi_request_count": 9200, "tgi_request_success": 8600, 'tgi_request_failure{err="overloaded"}': 402, 'tgi_request_failure{err="validation"}': 4})
    yield Pair("tgi-stuck", "tgi", 120, "the batch is empty and nine wait", "github.com/vllm-project/vllm/issues/45414",
        {"tgi_batch_max_total_tokens": 180000, "tgi_batch_current_max_tokens": 0, "tgi_batch_current_size": 0, "tgi_request_success": 8500, "tgi_request_count": 8509}, {"tgi_queue_size": 7}, {"tgi_queue_size": 9})


def of_llamacpp() -> Iterator[Pair]:
    """llama.cpp has told nothing of its KV cache since mid-2025."""
    yield Pair("llamacpp-slots", "llamacpp", 30, "four slots are busy all the time and others are deferred", "github.com/ggml-org/llama.cpp/pull/13660",
        {"llamacpp:n_busy_slots_per_decode": 3.98}, {"llamacpp:requests_processing": 4, "llamacpp:requests_deferred": 9, "llamacpp:prompt_tokens_total": 50000, "llamacpp:tokens_predicted_total": 90000, "llamacpp:n_decode_total": 23000, "llamacpp:n_tokens_max": 6100},
        {"llamacpp:requests_processing": 4, "llamacpp:requests_deferred": 12, "llamacpp:prompt_tokens_total": 50900, "llamacpp:tokens_predicted_total": 93100, "llamacpp:n_decode_total": 23780, "llamacpp:n_tokens_max": 6100})
    yield Pair("llamacpp-well", "llamacpp", 30, "two of its slots are busy, nobody is deferred", "github.com/ggml-org/llama.cpp/pull/13660",
        {"llamacpp:requests_deferred": 0}, {"llamacpp:requests_processing": 2, "llamacpp:prompt_tokens_total": 50000, "llamacpp:tokens_predicted_total": 90000, "llamacpp:n_decode_total": 46000, "llamacpp:n_tokens_max": 4100},
        {"llamacpp:requests_processing": 1, "llamacpp:prompt_tokens_total": 50200, "llamacpp:tokens_predicted_total": 91400, "llamacpp:n_decode_total": 46900, "llamacpp:n_tokens_max": 4100})
    yield Pair("llamacpp-2024-slots", "llamacpp", 30, "a build of 2024 that told its cache: slots full, cache at a third", "github.com/ggml-org/llama.cpp/pull/13660",
        {"llamacpp:requests_processing": 4}, {"llamacpp:kv_cache_usage_ratio": 0.31, "llamacpp:kv_cache_tokens": 10158, "llamacpp:requests_deferred": 6, "llamacpp:tokens_predicted_total": 90000},
        {"llamacpp:kv_cache_usage_ratio": 0.34, "llamacpp:kv_cache_tokens": 11141, "llamacpp:requests_deferred": 8, "llamacpp:tokens_predicted_total": 91400})
    yield Pair("llamacpp-stuck", "llamacpp", 120, "nothing is processed, five are deferred, no token comes", "github.com/vllm-project/vllm/issues/45414",
        {"llamacpp:requests_processing": 0, "llamacpp:prompt_tokens_total": 50000, "llamacpp:tokens_predicted_total": 90000, "llamacpp:n_decode_total": 23000}, {"llamacpp:requests_deferred": 5}, {"llamacpp:requests_deferred": 5})


TRT = 'model_name="acme/chat",engine_type="trtllm"'


def trt(**values: float) -> dict[str, float]:
    """TensorRT-LLM serve, by its own names; used and free blocks follow from the share."""
    if "kv_cache_utilization" in values:
        blocks = values["kv_cache_max_blocks"]
        values["kv_cache_used_blocks"] = round(blocks * values["kv_cache_utilization"])
        values["kv_cache_free_blocks"] = blocks - values["kv_cache_used_blocks"]
    return labelled(TRT, {f"trtllm_{name}": value for name, value in values.items()})


def of_tensorrt() -> Iterator[Pair]:
    """TensorRT-LLM serve, and Triton before it."""
    yield Pair("trtllm-full", "trtllm", 30, "MAX_UTILIZATION: full, requests are paused and others wait", "TensorRT-LLM pauses where vLLM preempts",
        trt(kv_cache_tokens_per_block=32, max_num_active_requests=256, kv_cache_host_utilization=0),
        trt(kv_cache_max_blocks=2048, kv_cache_utilization=0.989, num_requests_running=31, num_requests_waiting=38, num_paused_requests=6, kv_cache_hit_rate=0.2, kv_cache_reused_blocks_total=500, kv_cache_missed_blocks_total=2000),
        trt(kv_cache_max_blocks=2048, kv_cache_utilization=0.996, num_requests_running=29, num_requests_waiting=44, num_paused_requests=8, kv_cache_hit_rate=0.2, kv_cache_reused_blocks_total=540, kv_cache_missed_blocks_total=2160))
    yield Pair("trtllm-seqs", "trtllm", 30, "max_batch_size 16 is reached, the pool is at a third", "TensorRT-LLM exports its limit",
        trt(kv_cache_tokens_per_block=32, max_num_active_requests=16, num_requests_running=16, num_paused_requests=0),
        trt(kv_cache_max_blocks=4096, kv_cache_utilization=0.33, num_requests_waiting=48, kv_cache_hit_rate=0.4, kv_cache_reused_blocks_total=4000, kv_cache_missed_blocks_total=6000),
        trt(kv_cache_max_blocks=4096, kv_cache_utilization=0.35, num_requests_waiting=53, kv_cache_hit_rate=0.4, kv_cache_reused_blocks_total=4200, kv_cache_missed_blocks_total=6300))
    yield Pair("trtllm-oversized", "trtllm", 600, "max_batch_size 4 in a pool of 262,144 tokens: four run and hold 9 % of it", "a public log of Qwen3-VL-30B-A3B-FP8: four may run where eleven fit",
        trt(kv_cache_tokens_per_block=32, max_num_active_requests=4, num_requests_running=4, num_requests_waiting=0, num_paused_requests=0),
        trt(kv_cache_max_blocks=8192, kv_cache_utilization=0.09, kv_cache_hit_rate=0.5, kv_cache_reused_blocks_total=4000, kv_cache_missed_blocks_total=4000),
        trt(kv_cache_max_blocks=8192, kv_cache_utilization=0.1, kv_cache_hit_rate=0.5, kv_cache_reused_blocks_total=5200, kv_cache_missed_blocks_total=5200))
    yield Pair("trtllm-well", "trtllm", 30, "40 of 256 run, the pool is at half", "TensorRT-LLM serve",
        trt(kv_cache_tokens_per_block=32, max_num_active_requests=256, num_requests_waiting=0, num_paused_requests=0),
        trt(kv_cache_max_blocks=8192, kv_cache_utilization=0.52, num_requests_running=41, kv_cache_hit_rate=0.5, kv_cache_reused_blocks_total=4000, kv_cache_missed_blocks_total=4000),
        trt(kv_cache_max_blocks=8192, kv_cache_utilization=0.5, num_requests_running=40, kv_cache_hit_rate=0.5, kv_cache_reused_blocks_total=4310, kv_cache_missed_blocks_total=4300))
    yield Pair("trtllm-no-evict", "trtllm", 30, "GUARANTEED_NO_EVICT reserves max_new_tokens: a queue at 61 % of the pool", "github.com/vllm-project/vllm/pull/37307",
        trt(kv_cache_tokens_per_block=32, max_num_active_requests=256, num_paused_requests=0),
        trt(kv_cache_max_blocks=8192, kv_cache_utilization=0.61, num_requests_running=52, num_requests_waiting=35, kv_cache_hit_rate=0.3, kv_cache_reused_blocks_total=4000, kv_cache_missed_blocks_total=9000),
        trt(kv_cache_max_blocks=8192, kv_cache_utilization=0.6, num_requests_running=50, num_requests_waiting=41, kv_cache_hit_rate=0.3, kv_cache_reused_blocks_total=4200, kv_cache_missed_blocks_total=9500))
    yield Pair("trtllm-nothing-shared", "trtllm", 60, "documents that are each seen once", "github.com/vllm-project/vllm/issues/54607",
        trt(kv_cache_tokens_per_block=32, max_num_active_requests=256, num_requests_waiting=0, num_paused_requests=0, kv_cache_hit_rate=0.0, kv_cache_reused_blocks_total=0),
        trt(kv_cache_max_blocks=8192, kv_cache_utilization=0.41, num_requests_running=21, kv_cache_missed_blocks_total=90000),
        trt(kv_cache_max_blocks=8192, kv_cache_utilization=0.43, num_requests_running=22, kv_cache_missed_blocks_total=99400))
    for name, doing, used, active, scheduled, waiting in (
        ("triton-full", "the pool is full and 23 wait", (4044, 4069), (54, 57), (31, 30), (23, 27)),
        ("triton-seqs", "max_batch_size 64: 64 are scheduled, 30 wait, the pool is at a third", (1310, 1392), (94, 99), (64, 64), (30, 35)),
        ("triton-no-evict", "GUARANTEED_NO_EVICT: 24 of 64 run, 20 wait, the pool is at 57 %", (2335, 2376), (44, 47), (24, 23), (20, 24)),
        ("triton-well", "12 run, nobody waits", (1024, 1065), (12, 13), (12, 13), (0, 0)),
    ):
        largest = 64
        yield Pair(name, "triton", 30, doing, "github.com/triton-inference-server/tensorrtllm_backend/issues/725",
            labelled('model="tensorrt_llm",version="1"', {'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max"}': 4096, 'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per"}': 64, 'nv_trt_llm_request_metrics{request_type="max"}': largest, 'nv_trt_llm_request_metrics{request_type="context"}': 1}),
            *[
                labelled('model="tensorrt_llm",version="1"', {
                    'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used"}': used[look], 'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="free"}': 4096 - used[look],
                    'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction"}': round(used[look] / 4096, 4),
                    'nv_trt_llm_request_metrics{request_type="active"}': active[look], 'nv_trt_llm_request_metrics{request_type="scheduled"}': scheduled[look],
                    'nv_trt_llm_request_metrics{request_type="waiting"}': waiting[look],
                })
                for look in (0, 1)
            ])


LMD = 'model_name="acme/chat",engine="0"'


def of_lmdeploy() -> Iterator[Pair]:
    """LMDeploy's names are vLLM's in part, its shares are gauges."""
    for name, doing, usage, running, waiting, rate in (
        ("lmdeploy-full", "the pool is full, 22 wait", (0.98, 0.99), (30, 29), (19, 22), 0.3),
        ("lmdeploy-well", "17 run, nobody waits", (0.35, 0.36), (17, 17), (0, 0), 0.5),
        ("lmdeploy-batch", "max_batch_size 128 is reached, the pool is at a third", (0.31, 0.32), (128, 128), (37, 45), 0.4),
        ("lmdeploy-stuck", "nothing runs, eight wait", (0.0, 0.0), (0, 0), (8, 8), 0.0),
    ):
        moved = 0 if name.endswith("stuck") else 9000
        looks = [
            labelled(LMD, {"lmdeploy:gpu_cache_usage_perc": usage[look], "lmdeploy:num_requests_running": running[look], "lmdeploy:num_requests_waiting": waiting[look],
                           "lmdeploy:num_api_requests_routed": running[look] + waiting[look], "lmdeploy:num_api_requests_waiting": 0, "lmdeploy:prefix_cache_hit_rate": rate,
                           "lmdeploy:prompt_tokens_total": 500000 + look * moved, "lmdeploy:generation_tokens_total": 900000 + look * moved})
            for look in (0, 1)
        ]
        yield Pair(name, "lmdeploy", 120 if not moved else 30, doing, "LMDeploy's metrics", {}, *looks)


def of_dynamo() -> Iterator[Pair]:
    """Frontend and component of NVIDIA Dynamo."""
    front = 'model="acme/chat"'
    part = 'dynamo_component="backend",dynamo_namespace="prod"'

    def look(active: float, total: float, inflight: float, queued: float, share: float | None = None, **more: float) -> dict[str, float]:
        told = labelled(part, {"dynamo_component_kvstats_active_blocks": active, "dynamo_component_kvstats_total_blocks": total,
                               "dynamo_component_kvstats_gpu_cache_usage_percent": active / total if share is None else share})
        return told | labelled(front, {"dynamo_frontend_inflight_requests": inflight, "dynamo_frontend_queued_requests": queued} | {f"dynamo_frontend_model_{key}": value for key, value in more.items()})

    size = {"total_kv_blocks": 8192, "kv_cache_block_size": 32, "context_length": 8192}
    yield Pair("dynamo-full", "dynamo", 30, "the pool is full, 44 are queued", "Dynamo's metrics guide", {},
        look(8093, 8192, 90, 40, max_num_seqs=256, **size), look(8159, 8192, 93, 44, max_num_seqs=256, **size))
    yield Pair("dynamo-two-publishers", "dynamo", 30, "two publishers write one gauge: 1.3 % by its word, 161,000 of 163,000 blocks by count", "github.com/ai-dynamo/dynamo/issues/7753", {},
        look(160900, 162938, 70, 15, 0.013, max_num_seqs=256, kv_cache_block_size=32, context_length=32768, total_kv_blocks=162938), look(161700, 162938, 72, 19, 0.013, max_num_seqs=256, kv_cache_block_size=32, context_length=32768, total_kv_blocks=162938))
    yield Pair("dynamo-seqs", "dynamo", 30, "max_num_seqs 64 is reached, the pool is at a third", "Dynamo exports its limits", {},
        look(2700, 8192, 140, 76, max_num_seqs=64, **size), look(2810, 8192, 149, 85, max_num_seqs=64, **size))
    yield Pair("dynamo-oversized", "dynamo", 600, "max_num_seqs 4 and a window of 8,192 need at most 1,024 of 8,192 blocks", "a public log of Qwen3-VL-30B-A3B-FP8: four may run where eleven fit", {},
        look(505, 8192, 4, 0, max_num_seqs=4, **size), look(530, 8192, 4, 0, max_num_seqs=4, **size))
    yield Pair("dynamo-well", "dynamo", 30, "30 in flight, nobody is queued, the pool is at 40 %", "Dynamo's metrics guide", {},
        look(3270, 8192, 30, 0, max_num_seqs=256, **size), look(3301, 8192, 31, 0, max_num_seqs=256, **size))


def of_nothing() -> Iterator[Pair]:
    """Too little to say anything."""
    yield Pair("no-engine", "none", 30, "a web application that is no inference engine", "any exporter",
        {'http_requests_total{code="200"}': 400, "process_resident_memory_bytes": 4e8, 'python_info{version="3.11.7"}': 1}, {}, {})
    yield Pair("relabelled-away", "vllm", 30, "a relay that lets token counters alone through", "drop rules of scrape configurations",
        {}, labelled('engine="0",model_name="acme/chat"', v1(prompt=90000, generation=41000)), labelled('engine="0",model_name="acme/chat"', v1(prompt=93000, generation=44000)))


FAMILIES = (of_vllm, of_older_vllm, of_sglang, of_tgi, of_llamacpp, of_tensorrt, of_lmdeploy, of_dynamo, of_nothing)
