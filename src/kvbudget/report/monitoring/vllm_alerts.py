"""Decides when a vLLM's own metrics (0.32) call for somebody, with our gate before it or without.

Gauges lag by 3 to 6 s and read 0 for about 18 s after a cold start (vllm#49538), so nothing here looks at one instant.
Counters are never read as such: 480 preemptions of last week are no trouble of today.
"""

from typing import Final

from kvbudget.report.monitoring.alert import Alert, Group, Record, Scene, Severity
from kvbudget.report.monitoring.vllm_scenes import BY_MODEL, BY_RANK, MODEL, OF, RANK, engine, preempted, queue
from kvbudget.report.monitoring.vllm_waste import WASTE

_RECORDS: Final = (
    Record("instance_model:vllm_preemptions:rate5m", f"sum {BY_MODEL} (rate(vllm:num_preemptions_total[5m]))"),
    Record("instance_model:vllm_finished:rate5m", f"sum {BY_MODEL} (rate(vllm:request_success_total[5m]))"),
    Record(
        "instance_model:vllm_prefix_hits:ratio_rate30m",
        f"sum {BY_MODEL} (rate(vllm:prefix_cache_hits_total[30m]))"
        f" / (sum {BY_MODEL} (rate(vllm:prefix_cache_queries_total[30m])) > 0)",
    ),
    Record(
        "instance_model:vllm_prefix_hits:ratio_rate1d",
        f"sum {BY_MODEL} (rate(vllm:prefix_cache_hits_total[1d]))"
        f" / (sum {BY_MODEL} (rate(vllm:prefix_cache_queries_total[1d])) > 0)",
    ),
    Record(
        "instance_model:vllm_queue_seconds:p95_rate5m",
        "histogram_quantile(0.95, sum by (instance, model_name, le)"
        " (rate(vllm:request_queue_time_seconds_bucket[5m])))",
    ),
    Record(
        "instance_model_engine:vllm_running:share_of_hour",
        f"max {BY_RANK} (avg_over_time(vllm:num_requests_running[5m])"
        " / (max_over_time(vllm:num_requests_running[1h]) > 1))",
    ),
    # Computed prompt tokens for each generated one; what was found in a cache is not. Older versions do not tell.
    Record(
        "instance_model_engine:vllm_prompt_per_output:ratio_rate5m",
        f'(sum {BY_RANK} (rate(vllm:prompt_tokens_by_source_total{{source="local_compute"}}[5m]))'
        f" or sum {BY_RANK} (rate(vllm:prompt_tokens_total[5m])))"
        f" / (sum {BY_RANK} (rate(vllm:generation_tokens_total[5m])) > 0)",
    ),
)

# Somebody waits for capacity all the time, and the pool has room.
_QUEUE_BESIDE_FREE_POOL: Final = (
    "and on (instance, model_name, engine)"
    ' (min_over_time(vllm:num_requests_waiting_by_reason{reason="capacity"}[5m])'
    " > 0)\nand on (instance, model_name, engine) (max_over_time(vllm:kv_cache_usage_perc[5m]) < 0.9)"
)

_LONG_PROMPTS: Final = Scene(
    "6,000 tokens in and 300 out: 40 run flat, 30 wait, a third of the pool is used",
    engine("0.32x90", "40x90", "30x90", prompt_tokens="0+240000x90", generated="0+12000x90"),
    "13m",
    ("KvbudgetComputeBound",),
)

_ROOM: Final = (
    Alert(
        "KvbudgetPoolFull",
        "vllm",
        Severity.WARNING,
        f"max {BY_RANK} (avg_over_time(vllm:kv_cache_usage_perc[5m])) > 0.95\n"
        "and on (instance, model_name, engine) (min_over_time(vllm:num_requests_waiting[5m]) > 0)",
        2,
        "{{ $labels.instance }} holds {{ $value | humanizePercentage }} of its KV pool over 5 minutes, and requests"
        " wait all the time.",
        "The blocks are used up. Each admission now pushes a running request out.",
        "Free: a gate before it, or --max-num-seqs down to what fits; then shorter max_tokens.",
        Scene("full, 38 running, 100 waiting", engine("0.98x90", "38x90", "100x90"), "13m", ("KvbudgetPoolFull vllm",)),
        "e1:8000 holds 98% of its KV pool over 5 minutes, and requests wait all the time.",
        RANK,
        (
            Scene("full and nobody waits", engine("0.98x90", "38x90", "0x90"), "13m"),
            Scene("a queue with a free pool", engine("0.35x90", "256x90", "60x90"), "13m",
                  ("KvbudgetSequencesFull vllm",)),
        ),
        "pool_full",
    ),
    Alert(
        "KvbudgetPreempting",
        "vllm",
        Severity.WARNING,
        "instance_model:vllm_preemptions:rate5m > 0.02\n"
        "and instance_model:vllm_preemptions:rate5m > 0.05 * instance_model:vllm_finished:rate5m",
        5,
        "{{ $labels.instance }} preempts {{ $value | printf \"%.2f\" }} requests a second, over 5 %"
        " of what it finishes.",
        "Preempted requests are computed again from their first token: throughput falls and gaps of seconds appear.",
        "Free: fewer --max-num-seqs, or a gate before it; a margin of 2 to 5 % of the pool raises throughput.",
        Scene("3 preemptions a minute beside 30 answers", preempted("0+3x30", "0+30x30"), "13m",
              ("KvbudgetPreempting vllm",)),
        "e1:8000 preempts 0.05 requests a second, over 5 % of what it finishes.",
        MODEL,
        (
            Scene("480 preemptions of last week, idle since", preempted("480x30", "9000x30"), "13m"),
            Scene("two of a hundred requests", preempted("0+2x30", "0+100x30"), "13m"),
            Scene("once in two minutes", preempted("0 0 1 1 2 2 3 3 4 4 5 5 6 6 7", "0+3x30"), "13m"),
        ),
    ),
    Alert(
        "KvbudgetSequencesFull",
        "vllm",
        Severity.WARNING,
        f"instance_model_engine:vllm_running:share_of_hour > 0.95\n{_QUEUE_BESIDE_FREE_POOL}\n"
        "unless on (instance, model_name, engine) (instance_model_engine:vllm_prompt_per_output:ratio_rate5m > 10)",
        5,
        "{{ $labels.instance }} runs at {{ $value | humanizePercentage }} of the most it ran within an hour, its pool"
        " has room, and requests wait.",
        "What runs stays flat at one number: max_num_seqs is the limit, not memory.",
        "Free: raise --max-num-seqs; kvbudget plan tells how many requests of your lengths fit.",
        Scene("256 run flat, 60 wait, a third of the pool is used",
              engine("0.35x90", "256x90", "60x90", prompt_tokens="0+30000x90"), "13m",
              ("KvbudgetSequencesFull vllm",)),
        "e1:8000 runs at 100% of the most it ran within an hour, its pool has room, and requests wait.",
        RANK,
        (
            _LONG_PROMPTS,
            Scene("half as many run as an hour ago, and a few wait",
                  engine("0.35x90", "200x5 100x85", "0x5 5x85"), "20m"),
            Scene("256 run flat and nobody waits", engine("0.35x90", "256x90", "0x90"), "13m"),
            Scene("they wait for a LoRA slot",
                  engine("0.35x90", "200x90", "12x90", deferred="12x90", for_room="0x90"), "13m",
                  ("KvbudgetDeferred vllm",)),
        ),
        "seqs_full",
    ),
    Alert(
        "KvbudgetComputeBound",
        "vllm",
        Severity.WARNING,
        f"instance_model_engine:vllm_prompt_per_output:ratio_rate5m > 10\n{_QUEUE_BESIDE_FREE_POOL}",
        5,
        "{{ $labels.instance }} computes {{ $value | printf \"%.0f\" }} prompt tokens for each that it generates, its"
        " pool has room, and requests wait.",
        "Neither blocks nor sequences are short: prompts wait for tokens of a step.",
        "Free: raise --max-num-batched-tokens; more memory does not help.",
        _LONG_PROMPTS,
        "e1:8000 computes 20 prompt tokens for each that it generates, its pool has room, and requests wait.",
        RANK,
        (
            Scene("long prompts, and the pool is full",
                  engine("0.98x90", "40x90", "30x90", prompt_tokens="0+240000x90", generated="0+12000x90"), "13m",
                  ("KvbudgetPoolFull vllm",)),
            Scene("long prompts, and nobody waits",
                  engine("0.32x90", "40x90", "0x90", prompt_tokens="0+240000x90", generated="0+800x90"), "13m"),
        ),
        "compute_bound",
    ),
    Alert(
        "KvbudgetDeferred",
        "vllm",
        Severity.WARNING,
        f'min {BY_RANK} (min_over_time(vllm:num_requests_waiting_by_reason{{reason="deferred"}}[5m])) > 0\n'
        f'unless on (instance, model_name, engine)'
        ' (max_over_time(vllm:num_requests_waiting_by_reason{reason="capacity"}[5m]) > 0)',
        5,
        "At least {{ $value }} requests wait at {{ $labels.instance }} for something else than room.",
        "For a LoRA slot, a KV transfer or a grammar. Neither memory nor a gate helps.",
        "Free: --max-loras up to the adapters that are asked for at a time; the connector's log for transfers.",
        Scene("12 wait for a LoRA slot", engine("0.3x90", "8x90", "12x90", deferred="12x90", for_room="0x90"), "13m",
              ("KvbudgetDeferred vllm",)),
        "At least 12 requests wait at e1:8000 for something else than room.",
        RANK,
        (
            Scene("some wait for a LoRA slot, others for a place",
                  engine("0.3x90", "8x90", "12x90", deferred="4x90", for_room="8x90"), "13m",
                  ("KvbudgetSequencesFull vllm",)),
            Scene("a grammar was compiled for a minute",
                  engine("0.3x90", "8x90", "2x90", deferred="0x10 2 0x80", for_room="0x90"), "13m"),
        ),
        "deferred",
    ),
)  # fmt: skip

_TROUBLE: Final = (
    Alert(
        "KvbudgetStuck",
        "vllm",
        Severity.CRITICAL,
        f"max {BY_RANK} (min_over_time(vllm:num_requests_waiting[3m])) > 0\n"
        "and on (instance, model_name, engine) (max_over_time(vllm:num_requests_running[3m]) == 0)\nor\n"
        f"max {BY_RANK} (min_over_time(vllm:num_requests_running[5m])) > 0\n"
        "and on (instance, model_name, engine) (increase(vllm:iteration_tokens_total_count[5m]) == 0)",
        1,
        "{{ $labels.instance }} makes no progress: {{ $value }} or more requests are in it, and no step is computed"
        " for them.",
        "The scheduler hangs while /health says 200. Neither the pool nor the budget is full.",
        "Free: take it out of service (drain), keep its log, start it anew; known bugs are named in the runbook.",
        Scene("4 wait, none runs, the pool is empty", engine("0x90", "0x90", "4x90"), "13m", ("KvbudgetStuck vllm",)),
        "e1:8000 makes no progress: 4 or more requests are in it, and no step is computed for them.",
        RANK,
        (
            Scene("8 run, and no step is computed for them", engine("0.2x90", "8x90", "0x90", steps="900x90"), "13m",
                  ("KvbudgetStuck vllm",)),
            Scene("8 run, and steps go on", engine("0.2x90", "8x90", "0x90"), "13m"),
            Scene("a cold start: for a minute the gauges lag", engine("0x5 0.2x80", "0x5 8x80", "0x4 3 0x80"), "6m"),
            Scene("idle", engine("0x90", "0x90", "0x90", steps="900x90"), "13m"),
        ),
        "stuck",
    ),
    Alert(
        "KvbudgetEngineRejecting",
        "vllm",
        Severity.WARNING,
        f"sum {BY_MODEL} (rate(vllm:admission_rejections_total[5m])) > 0.05",
        2,
        "{{ $labels.instance }} refuses {{ $value | printf \"%.2f\" }} requests a second by a limit of its own.",
        "--max-num-queued-reqs or --max-num-queued-tokens is reached. Clients get 503 without a time to come back.",
        "Free: let the gate do the queueing, with honest Retry-After; or raise the limit that the label names.",
        Scene("6 a minute are refused", {f'vllm:admission_rejections_total{{{OF}, reason="max_num_queued_reqs"}}':
              "0+6x30"}, "13m", ("KvbudgetEngineRejecting vllm",)),
        "e1:8000 refuses 0.10 requests a second by a limit of its own.",
        MODEL,
        (
            Scene("2 a minute are refused",
                  {f'vllm:admission_rejections_total{{{OF}, reason="max_num_queued_reqs"}}': "0+2x30"}, "13m"),
            Scene("a burst was refused an hour ago",
                  {f'vllm:admission_rejections_total{{{OF}, reason="max_num_queued_reqs"}}': "0 90x90"}, "60m"),
        ),
        "engine_rejecting",
    ),
    Alert(
        "KvbudgetQueueSlow",
        "vllm",
        Severity.WARNING,
        "instance_model:vllm_queue_seconds:p95_rate5m > 10",
        5,
        "One of twenty requests waits over {{ $value | humanizeDuration }} in the queue of {{ $labels.instance }}.",
        "Clients feel it as time to first token. The pool, sequences or compute may be the limit.",
        "Free: see which of the other alerts holds; without one it is load, and a gate would refuse in time.",
        Scene("a tenth waits 20 s", queue(90, 0, 0, 0, 10, 0), "13m", ("KvbudgetQueueSlow vllm",)),
        "One of twenty requests waits over 17.5s in the queue of e1:8000.",
        MODEL,
        (
            Scene("one of a hundred does", queue(99, 0, 0, 0, 1, 0), "13m"),
            Scene("a tenth waits for some seconds", queue(90, 0, 10, 0, 0, 0), "13m"),
        ),
    ),
    Alert(
        "KvbudgetRankImbalance",
        "vllm",
        Severity.WARNING,
        f"max {BY_MODEL} (avg_over_time(vllm:kv_cache_usage_perc[10m]))"
        f" - min {BY_MODEL} (avg_over_time(vllm:kv_cache_usage_perc[10m])) > 0.4",
        10,
        "The fullest rank of {{ $labels.instance }} holds {{ $value | humanizePercentage }} more of its pool than the"
        " emptiest.",
        "One data-parallel rank is full while another is empty: who is sent where is decided badly.",
        "Free: the load balancer before the ranks; sticky sessions and few long requests do this.",
        Scene("rank 0 at 95 %, rank 1 at 20 %",
              {f"vllm:kv_cache_usage_perc{{{OF}, engine=\"{rank}\"}}": f"{usage}x40"
               for rank, usage in (("0", 0.95), ("1", 0.2))}, "25m", ("KvbudgetRankImbalance",)),
        "The fullest rank of e1:8000 holds 75% more of its pool than the emptiest.",
        MODEL,
        (
            Scene("rank 0 at 70 %, rank 1 at 50 %",
                  {f"vllm:kv_cache_usage_perc{{{OF}, engine=\"{rank}\"}}": f"{usage}x40"
                   for rank, usage in (("0", 0.7), ("1", 0.5))}, "30m"),
        ),
        "rank_imbalance",
    ),
)  # fmt: skip

VLLM_RULES: Final = Group("kvbudget-vllm", _RECORDS, (*_ROOM, *_TROUBLE, *WASTE))
