"""Decides when an SGLang's own metrics call for somebody. Its tensor-parallel ranks repeat one another: the largest."""

from typing import Final

from kvbudget.report.monitoring.alert import Alert, Group, Record, Scene, Severity

_OF: Final = 'instance="s1:30000", model_name="m", engine_type="unified"'
_BY: Final = f'{_OF}, tp_rank="0", pp_rank="0", dp_rank="0"'
_MODEL: Final = {"instance": "s1:30000", "model_name": "m"}
_RANK: Final = {**_MODEL, "dp_rank": "0"}
_RANKS: Final = "by (instance, model_name, dp_rank)"
_ON: Final = "on (instance, model_name, dp_rank)"
_BY_MODEL: Final = "by (instance, model_name)"


def engine(usage: str, running: str, queue: str, grammar: str = "0x40") -> dict[str, str]:
    """Forty minutes of one rank."""
    return {
        f"sglang:token_usage{{{_BY}}}": usage,
        f"sglang:num_running_reqs{{{_BY}}}": running,
        f"sglang:num_queue_reqs{{{_BY}}}": queue,
        f"sglang:num_grammar_queue_reqs{{{_BY}}}": grammar,
    }


def _pools(full: str, sliding: str, mamba: str = "0x40") -> dict[str, str]:
    return {
        f"sglang:full_token_usage{{{_BY}}}": full,
        f"sglang:swa_token_usage{{{_BY}}}": sliding,
        f"sglang:mamba_usage{{{_BY}}}": mamba,
    }


def _retracted(per_minute: str, finished: str) -> dict[str, str]:
    return {
        f"sglang:num_retracted_requests_total{{{_BY}}}": per_minute,
        f'sglang:num_requests_total{{{_OF}, is_streaming="true"}}': finished,
    }


_BOUNDS: Final = ("1.0", "2.0", "5.0", "15.0", "20.0", "+Inf")


def _queue_times(*counts: int) -> dict[str, str]:
    """So many a minute within each of the bounds and not within the one before."""
    bucket = f"sglang:queue_time_seconds_bucket{{{_BY}, le=%s}}"
    return {bucket % f'"{bound}"': f"0+{sum(counts[: place + 1])}x40" for place, bound in enumerate(_BOUNDS)}


_RECORDS: Final = (
    Record(
        "instance_model:sglang_retractions:rate5m",
        f"sum {_BY_MODEL} (max {_RANKS} (rate(sglang:num_retracted_requests_total[5m])))",
    ),
    Record("instance_model:sglang_finished:rate5m", f"sum {_BY_MODEL} (rate(sglang:num_requests_total[5m]))"),
    Record(
        "instance_model:sglang_queue_seconds:p95_rate5m",
        "histogram_quantile(0.95, sum by (instance, model_name, le) (rate(sglang:queue_time_seconds_bucket[5m])))",
    ),
)

_ALERTS: Final = (
    Alert(
        "KvbudgetPoolFull",
        "sglang",
        Severity.WARNING,
        f"max {_RANKS} (avg_over_time(sglang:token_usage[5m])) > 0.95\n"
        f"and {_ON} (min_over_time(sglang:num_queue_reqs[5m]) > 0)",
        2,
        "{{ $labels.instance }} uses {{ $value | humanizePercentage }} of a KV pool over 5 minutes, and requests wait"
        " all the time.",
        "The pool is used up; what can be evicted is not counted.",
        "Free: a gate before it; lower max_new_tokens; --schedule-conservativeness up if it retracts.",
        Scene("full, and 30 wait", engine("0.98x40", "50x40", "30x40"), "13m", ("KvbudgetPoolFull sglang",)),
        "s1:30000 uses 98% of a KV pool over 5 minutes, and requests wait all the time.",
        _RANK,
        (Scene("full, and nobody waits", engine("0.98x40", "50x40", "0x40"), "13m"),),
        "pool_full",
    ),
    Alert(
        "KvbudgetBudgetFull",
        "sglang",
        Severity.WARNING,
        f"max {_RANKS} (max_over_time(sglang:token_usage[5m])) < 0.9\n"
        f"and {_ON} (min_over_time(sglang:num_queue_reqs[5m]) > 0)\n"
        f"and {_ON} (min_over_time(sglang:num_running_reqs[5m]) > 0)",
        5,
        "{{ $labels.instance }} used no more than {{ $value | humanizePercentage }} of its KV pool while requests"
        " waited.",
        "SGLang reserves for answers more than they use, or runs as many requests as it may.",
        "Free: --schedule-conservativeness 0.3; if what runs is flat, --max-running-requests up.",
        Scene("60 % used, and 30 wait", engine("0.6x40", "50x40", "30x40"), "13m", ("KvbudgetBudgetFull sglang",)),
        "s1:30000 used no more than 60% of its KV pool while requests waited.",
        _RANK,
        (
            Scene("60 % used, and nobody waits", engine("0.6x40", "50x40", "0x40"), "13m"),
            Scene("they wait, and nothing runs", engine("0x40", "0x40", "5x40"), "13m", ("KvbudgetStuck sglang",)),
        ),
        "budget_full",
    ),
    Alert(
        "KvbudgetSubPoolFull",
        "sglang",
        Severity.WARNING,
        "(\n"
        f"  max {_RANKS} (sglang:full_token_usage) > 0.95\n"
        f"  and {_ON} ((sglang:swa_token_usage > 0 and sglang:swa_token_usage < 0.3)"
        " or (sglang:mamba_usage > 0 and sglang:mamba_usage < 0.3))\n"
        ")\nor\n(\n"
        f"  (max {_RANKS} (sglang:swa_token_usage) > 0.95 or max {_RANKS} (sglang:mamba_usage) > 0.95)\n"
        f"  and {_ON} (sglang:full_token_usage < 0.5)\n"
        ")",
        5,
        "One of the pools of {{ $labels.instance }} is {{ $value | humanizePercentage }} full while another has room.",
        "Full attention, sliding window and Mamba states do not share their memory: the split is wrong, not the size.",
        "Free: --swa-full-tokens-ratio or --mamba-full-memory-ratio; kvbudget plan computes both.",
        Scene("full attention at 100 %, sliding window at 20 %", _pools("1x40", "0.2x40"), "13m",
              ("KvbudgetSubPoolFull",)),
        "One of the pools of s1:30000 is 100% full while another has room.",
        _RANK,
        (
            Scene("a model without sliding windows is full", _pools("1x40", "0x40"), "13m"),
            Scene("both are full", _pools("0.97x40", "0.96x40"), "13m"),
            Scene("full attention is full, the others half", _pools("0.97x40", "0.5x40", "0.5x40"), "13m"),
            Scene("full attention at 60 %, sliding window at 6 %", _pools("0.6x40", "0.06x40"), "13m"),
            Scene("sliding window and states at 60 %, full attention at 10 %",
                  _pools("0.1x40", "0.6x40", "0.6x40"), "13m"),
            Scene("full attention at 100 %, states at 20 %", _pools("1x40", "0x40", "0.2x40"), "13m",
                  ("KvbudgetSubPoolFull",)),
            Scene("sliding window at 100 %, full attention at 40 %", _pools("0.4x40", "1x40"), "13m",
                  ("KvbudgetSubPoolFull",)),
            Scene("states at 100 %, attention at 10 %", _pools("0.1x40", "0x40", "1x40"), "13m",
                  ("KvbudgetSubPoolFull",)),
        ),
        "sub_pool_full",
    ),
    Alert(
        "KvbudgetPreempting",
        "sglang",
        Severity.WARNING,
        "instance_model:sglang_retractions:rate5m > 0.02\n"
        "and instance_model:sglang_retractions:rate5m > 0.05 * instance_model:sglang_finished:rate5m",
        5,
        "{{ $labels.instance }} retracts {{ $value | printf \"%.2f\" }} requests a second, over 5 %"
        " of what it finishes.",
        "Retracted requests are computed again from their first token.",
        "Free: --schedule-conservativeness 1.3, or a gate before it.",
        Scene("3 retractions a minute beside 30 answers", _retracted("0+3x40", "0+30x40"), "13m",
              ("KvbudgetPreempting sglang",)),
        "s1:30000 retracts 0.05 requests a second, over 5 % of what it finishes.",
        _MODEL,
        (
            Scene("all of them last week", _retracted("480x40", "9000x40"), "13m"),
            Scene("two of a hundred requests", _retracted("0+2x40", "0+100x40"), "13m"),
            Scene("once in two minutes", _retracted("0 0 1 1 2 2 3 3 4 4 5 5 6 6 7", "0+3x40"), "13m"),
        ),
    ),
    Alert(
        "KvbudgetStuck",
        "sglang",
        Severity.CRITICAL,
        f"max {_RANKS} (min_over_time(sglang:num_queue_reqs[3m])) > 0\n"
        f"and {_ON} (max_over_time(sglang:num_running_reqs[3m]) == 0)",
        1,
        "{{ $labels.instance }} makes no progress: {{ $value }} or more requests wait and none runs.",
        "The scheduler hangs, or one request is larger than the whole pool.",
        "Free: take it out of service, keep its log, start it anew.",
        Scene("5 wait and none runs", engine("0x40", "0x40", "5x40"), "13m", ("KvbudgetStuck sglang",)),
        "s1:30000 makes no progress: 5 or more requests wait and none runs.",
        _RANK,
        (Scene("idle", engine("0x40", "0x40", "0x40"), "13m"),),
        "stuck",
    ),
    Alert(
        "KvbudgetDeferred",
        "sglang",
        Severity.WARNING,
        f"max {_RANKS} (min_over_time(sglang:num_grammar_queue_reqs[5m])) > 0",
        5,
        "At least {{ $value }} requests wait at {{ $labels.instance }} for a grammar to be compiled.",
        "Structured outputs, not room.",
        "Free: fewer different schemas; they are cached by their text.",
        Scene("3 wait for their grammars", engine("0.4x40", "8x40", "0x40", grammar="3x40"), "13m",
              ("KvbudgetDeferred sglang",)),
        "At least 3 requests wait at s1:30000 for a grammar to be compiled.",
        _RANK,
        (Scene("one did, for a minute", engine("0.4x40", "8x40", "0x40", grammar="0x9 1 0x30"), "11m"),),
        "deferred",
    ),
    Alert(
        "KvbudgetQueueSlow",
        "sglang",
        Severity.WARNING,
        "instance_model:sglang_queue_seconds:p95_rate5m > 10",
        5,
        "One of twenty requests waits over {{ $value | humanizeDuration }} in the queue of {{ $labels.instance }}.",
        "Clients feel it as time to first token.",
        "Free: see which of the other alerts holds; without one it is load, and a gate would refuse in time.",
        Scene("a tenth waits 20 s", _queue_times(90, 0, 0, 0, 10, 0), "13m",
              ("KvbudgetQueueSlow sglang",)),
        "One of twenty requests waits over 17.5s in the queue of s1:30000.",
        _MODEL,
        (
            Scene("one of a hundred does", _queue_times(99, 0, 0, 0, 1, 0), "13m"),
            Scene("a tenth waits for some seconds", _queue_times(90, 0, 10, 0, 0, 0), "13m"),
        ),
    ),
)  # fmt: skip

SGLANG_RULES: Final = Group("kvbudget-sglang", _RECORDS, _ALERTS)
