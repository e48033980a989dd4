"""Decides when the gate's own metrics call for somebody: room and budget, refusals, the engines behind it.

Levels: a pool of which 95 % is held preempts (vllm#27073 was seen over 97 %); a queue beside a pool under 80 % is a
limit that was set, not one of memory (SGLang's tuning guide calls it a reservation that is too cautious, under 90 %).
"""

from typing import Final

from kvbudget.report.monitoring.alert import Alert, Group, Record, Scene, Severity
from kvbudget.report.monitoring.gate_panels import NO_ROOM

_BY: Final = 'gate="g1", instance="e1"'
_LABELS: Final = {"gate": "g1", "instance": "e1"}


def pool(held: int, promised: int, waiting: int, sequences: int = 40, elsewhere: int = 0) -> dict[str, str]:
    """Half an hour of a pool of 1,000 blocks, 20 of them margin, and at most 64 sequences."""
    return {
        f"kvbudget_pool_blocks{{{_BY}}}": "1000x30",
        f"kvbudget_margin_blocks{{{_BY}}}": "20x30",
        f"kvbudget_held_blocks{{{_BY}}}": f"{held}x30",
        f"kvbudget_ledger_reserved_blocks{{{_BY}}}": f"{promised}x30",
        f"kvbudget_taken_blocks{{{_BY}}}": f"{elsewhere}x30",
        f"kvbudget_elsewhere_blocks{{{_BY}}}": f"{elsewhere}x30",
        f"kvbudget_sequences{{{_BY}}}": f"{sequences}x30",
        f"kvbudget_sequence_limit{{{_BY}}}": "64x30",
        'kvbudget_queue_requests{gate="g1", instance="g1"}': f"{waiting}x30",
    }


def _outcomes(finished: int, refused: int = 0, reason: str = "queue_full", expired: int = 0) -> dict[str, str]:
    """So many a minute, for half an hour."""
    return {
        'kvbudget_requests_total{gate="g1", instance="g1", outcome="finished"}': f"0+{finished}x30",
        'kvbudget_requests_total{gate="g1", instance="g1", outcome="refused"}': f"0+{refused}x30",
        'kvbudget_requests_total{gate="g1", instance="g1", outcome="expired"}': f"0+{expired}x30",
        f'kvbudget_refusals_total{{gate="g1", instance="g1", reason="{reason}"}}': f"0+{refused}x30",
    }


_BOUNDS: Final = ("1.0", "2.5", "10.0", "30.0", "+Inf")


def _waits(*counts: int) -> dict[str, str]:
    """So many a minute within each of the bounds and not within the one before."""
    bucket = 'kvbudget_queue_seconds_bucket{gate="g1", instance="g1", le="%s"}'
    return {bucket % bound: f"0+{sum(counts[: place + 1])}x30" for place, bound in enumerate(_BOUNDS)}


_RARE: Final = "0 0 1 1 2 2 3 3 4 4 5 5 6 6 7 7"  # once in two minutes


_RECORDS: Final = (
    Record(
        "gate_instance:kvbudget_held:ratio", "max by (gate, instance) (kvbudget_held_blocks / kvbudget_pool_blocks)"
    ),
    Record(
        "gate_instance:kvbudget_promised:ratio",
        "max by (gate, instance) ((kvbudget_ledger_reserved_blocks + kvbudget_taken_blocks)"
        " / (kvbudget_pool_blocks - kvbudget_margin_blocks > 0))",
    ),
    Record("gate:kvbudget_requests:rate5m", "sum by (gate) (rate(kvbudget_requests_total[5m]))"),
    Record(
        "gate:kvbudget_refused_for_room:ratio_rate5m",
        f'sum by (gate) (rate(kvbudget_refusals_total{{reason=~"{NO_ROOM}"}}[5m]))'
        " / (gate:kvbudget_requests:rate5m > 0)",
    ),
    Record(
        "gate:kvbudget_expired:ratio_rate5m",
        'sum by (gate) (rate(kvbudget_requests_total{outcome="expired"}[5m])) / (gate:kvbudget_requests:rate5m > 0)',
    ),
    Record(
        "gate:kvbudget_engine_failures:ratio_rate5m",
        'sum by (gate) (rate(kvbudget_requests_total{outcome=~"upstream_failed|engine_lost|timed_out"}[5m]))'
        " / (gate:kvbudget_requests:rate5m > 0)",
    ),
    Record(
        "gate:kvbudget_token_drift:ratio_rate15m",
        "sum by (gate) (rate(kvbudget_token_drift_total[15m]))"
        " / (sum by (gate) (rate(kvbudget_prompt_tokens_sum[15m])) > 0)",
    ),
    Record(
        "gate:kvbudget_queue_seconds:p95_rate5m",
        "histogram_quantile(0.95, sum by (gate, le) (rate(kvbudget_queue_seconds_bucket[5m])))",
    ),
    Record(
        "gate:kvbudget_overhead_seconds:p99_rate5m",
        "histogram_quantile(0.99, sum by (gate, le) (rate(kvbudget_overhead_seconds_bucket[5m])))",
    ),
)

_WAITING: Final = "and on (gate) (sum by (gate) (kvbudget_queue_requests) > 0)"

_ROOM: Final = (
    Alert(
        "KvbudgetPoolFull",
        "gate",
        Severity.WARNING,
        f"gate_instance:kvbudget_held:ratio > 0.95\n{_WAITING}",
        5,
        "Engine {{ $labels.instance }} holds {{ $value | humanizePercentage }} of its KV pool, and requests wait.",
        "The engine's blocks are used up: the next long answer preempts another, which is then computed twice.",
        "Free: lower max_tokens of the tenants that hold most, or --max-context; then --max-num-seqs of the engine.",
        Scene(
            "the pool is full and requests wait",
            pool(held=970, promised=975, waiting=12),
            "13m",
            ("KvbudgetPoolFull gate",),
        ),
        "Engine e1 holds 97% of its KV pool, and requests wait.",
        _LABELS,
        (
            Scene("a full pool that keeps nobody waiting is well used", pool(held=970, promised=975, waiting=0), "13m"),
            Scene(
                "requests wait beside a pool that is half free",
                pool(held=500, promised=975, waiting=12),
                "13m",
                ("KvbudgetBudgetFull gate",),
            ),
        ),
        "pool_full",
    ),
    Alert(
        "KvbudgetBudgetFull",
        "gate",
        Severity.WARNING,
        f"gate_instance:kvbudget_promised:ratio > 0.95\nand gate_instance:kvbudget_held:ratio < 0.8\n{_WAITING}",
        5,
        "{{ $value | humanizePercentage }} of what may be promised of engine {{ $labels.instance }} is promised, while"
        " a fifth or more of its pool is free, and requests wait.",
        "Our promises are used up, not the engine's blocks: clients ask for far more max_tokens than they use.",
        "Free: --policy learned, which promises by the lengths that it sees; or a smaller --default-max-tokens.",
        Scene(
            "promises are used up while half of the pool is free",
            pool(held=500, promised=975, waiting=12),
            "13m",
            ("KvbudgetBudgetFull gate",),
        ),
        "99.49% of what may be promised of engine e1 is promised, while a fifth or more of its pool is free, and"
        " requests wait.",
        _LABELS,
        (
            Scene("a tenant waits for its own share", pool(held=200, promised=400, waiting=12), "13m"),
            Scene("all is promised, little is used, and nobody waits", pool(held=500, promised=975, waiting=0), "13m"),
            Scene(
                "all is promised and all is used",
                pool(held=960, promised=975, waiting=9),
                "13m",
                ("KvbudgetPoolFull gate",),
            ),
        ),
        "budget_full",
    ),
    Alert(
        "KvbudgetSequencesFull",
        "gate",
        Severity.WARNING,
        "sum by (gate, instance) (kvbudget_sequences) >= max by (gate, instance) (kvbudget_sequence_limit)\n"
        f"and gate_instance:kvbudget_held:ratio < 0.9\n{_WAITING}",
        5,
        "All {{ $value }} sequences of engine {{ $labels.instance }} are taken while its pool has room, and requests"
        " wait.",
        "max_num_seqs is the limit, not memory.",
        "Free: raise the engine's --max-num-seqs and, if it was given, the gate's. kvbudget plan tells how far.",
        Scene(
            "64 of 64 sequences run in a pool that is a third full",
            pool(held=350, promised=400, waiting=60, sequences=64),
            "13m",
            ("KvbudgetSequencesFull gate",),
        ),
        "All 64 sequences of engine e1 are taken while its pool has room, and requests wait.",
        _LABELS,
        (
            Scene("all sequences run and nobody waits", pool(held=350, promised=400, waiting=0, sequences=64), "13m"),
            Scene(
                "all sequences run and the pool is full, too",
                pool(held=980, promised=975, waiting=60, sequences=64),
                "13m",
                ("KvbudgetPoolFull gate",),
            ),
        ),
        "seqs_full",
    ),
    Alert(
        "KvbudgetOverPromised",
        "gate",
        Severity.WARNING,
        "kvbudget_ledger_reserved_blocks - kvbudget_pool_blocks > 0",
        10,
        "{{ $value }} blocks more are promised than engine {{ $labels.instance }} has.",
        "The pool shrank while requests lived, or the engine's reports came later than was known.",
        "Free: look whether the engine was started anew with less memory; kvbudget check says what changed.",
        Scene(
            "the engine came back with a smaller pool",
            pool(held=900, promised=1040, waiting=0),
            "13m",
            ("KvbudgetOverPromised",),
        ),
        "40 blocks more are promised than engine e1 has.",
        _LABELS,
        (Scene("everything is promised, and no more", pool(held=900, promised=1000, waiting=0), "13m"),),
    ),
    Alert(
        "KvbudgetBypassTraffic",
        "gate",
        Severity.WARNING,
        "kvbudget_elsewhere_blocks / kvbudget_pool_blocks > 0.1",
        10,
        "{{ $value | humanizePercentage }} of the pool of engine {{ $labels.instance }} is held by requests that did"
        " not come through the gate.",
        "Whoever by-passes the gate is counted by nobody, and is taken off what the gate may promise.",
        "Free: find the caller in the engine's access log; let the engine listen where only the gate reaches it.",
        Scene(
            "a batch job talks to the engine directly",
            pool(held=600, promised=300, waiting=0, elsewhere=300),
            "13m",
            ("KvbudgetBypassTraffic",),
        ),
        "30% of the pool of engine e1 is held by requests that did not come through the gate.",
        _LABELS,
        (Scene("health checks hold a few blocks", pool(held=360, promised=300, waiting=0, elsewhere=60), "13m"),),
        "bypass",
    ),
)

_REFUSING: Final = (
    Alert(
        "KvbudgetRefusing",
        "gate",
        Severity.WARNING,
        "gate:kvbudget_refused_for_room:ratio_rate5m > 0.05\nand on (gate)"
        f' (sum by (gate) (increase(kvbudget_refusals_total{{reason=~"{NO_ROOM}"}}[5m])) > 10)',
        5,
        "Gate {{ $labels.gate }} refuses {{ $value | humanizePercentage }} of the requests for want of room.",
        "Lawful requests get 429: the pool, the queue or a tenant's limit is full.",
        "Free: see the reason (kvbudget_refusals_total) and which of pool full, budget full, sequences full it is.",
        Scene("a tenth is refused as the queue is full", _outcomes(finished=27, refused=3), "13m",
              ("KvbudgetRefusing",)),
        "Gate g1 refuses 10% of the requests for want of room.",
        {"gate": "g1"},
        (
            Scene("prompts that are too long are their sender's",
                  _outcomes(finished=90, refused=10, reason="context_exceeded"), "13m"),
            Scene("two of a hundred are refused", _outcomes(finished=980, refused=20), "13m"),
            Scene("one of two requests in a minute is no trend", _outcomes(finished=1, refused=1), "13m"),
        ),
    ),
    Alert(
        "KvbudgetQueueDeadline",
        "gate",
        Severity.WARNING,
        "gate:kvbudget_expired:ratio_rate5m > 0.02\n"
        'and on (gate) (sum by (gate) (increase(kvbudget_requests_total{outcome="expired"}[5m])) > 5)',
        5,
        "{{ $value | humanizePercentage }} of the requests at gate {{ $labels.gate }} reach their deadline in the"
        " queue.",
        "Clients wait and get a 429 after all: the queue is longer than what drains in time.",
        "Free: a smaller --queue-tokens, so that who cannot be served in time hears it at once.",
        Scene("one of 25 waits in vain", _outcomes(finished=48, expired=2), "13m", ("KvbudgetQueueDeadline",)),
        "4% of the requests at gate g1 reach their deadline in the queue.",
        {"gate": "g1"},
        (
            Scene("one in a hundred does", _outcomes(finished=990, expired=9), "13m"),
            Scene("half of very few do",
                  {'kvbudget_requests_total{gate="g1", instance="g1", outcome="finished"}': _RARE,
                   'kvbudget_requests_total{gate="g1", instance="g1", outcome="expired"}': _RARE}, "13m"),
        ),
    ),
    Alert(
        "KvbudgetQueueSlow",
        "gate",
        Severity.WARNING,
        "gate:kvbudget_queue_seconds:p95_rate5m > 10",
        5,
        "One of twenty requests waits over {{ $value | humanizeDuration }} for room at gate {{ $labels.gate }}.",
        "Clients feel it as time to first token, and whoever set a deadline leaves empty-handed.",
        "Free: see what fills (pool, budget or sequences); --slo-ttft refuses at once who would wait too long.",
        Scene("a tenth waits half a minute", _waits(90, 0, 0, 10, 0), "13m", ("KvbudgetQueueSlow gate",)),
        "One of twenty requests waits over 20s for room at gate g1.",
        {"gate": "g1"},
        (
            Scene("one of a hundred does", _waits(99, 0, 0, 1, 0), "13m"),
            Scene("a tenth waits for some seconds", _waits(90, 0, 10, 0, 0), "13m"),
        ),
    ),
    Alert(
        "KvbudgetEngineRejecting",
        "gate",
        Severity.WARNING,
        'sum by (gate) (increase(kvbudget_refusals_total{reason="engine_busy"}[5m])) > 3',
        2,
        "The engines behind gate {{ $labels.gate }} refused {{ $value | printf \"%.0f\" }} requests within 5 minutes.",
        "An engine has limits of its own below those of the gate, so requests that were let in are refused there.",
        "Free: raise the engine's --max-num-queued-reqs and --max-num-queued-tokens, or leave them away.",
        Scene("the engine answers 503 to some", _outcomes(finished=500, refused=1, reason="engine_busy"), "13m",
              ("KvbudgetEngineRejecting gate",)),
        "The engines behind gate g1 refused 5 requests within 5 minutes.",
        {"gate": "g1"},
        (
            Scene("it does so now and then",
                  {'kvbudget_refusals_total{gate="g1", instance="g1", reason="engine_busy"}': _RARE}, "13m"),
            Scene("it did so an hour ago",
                  {'kvbudget_refusals_total{gate="g1", instance="g1", reason="engine_busy"}': "0 20 40x60"}, "50m"),
        ),
        "engine_rejecting",
    ),
    Alert(
        "KvbudgetTokenDrift",
        "gate",
        Severity.WARNING,
        "gate:kvbudget_token_drift:ratio_rate15m > 0.001",
        15,
        "Counts of gate {{ $labels.gate }} and the engine's usage differ by {{ $value | humanizePercentage }} of the"
        " prompt tokens.",
        "The gate counts with another tokenizer or chat template than the engine, so its promises are wrong.",
        "Free: give --tokenizer the folder that the engine serves, and --chat-template what it was started with.",
        Scene("every prompt is 0.2 % longer than counted",
              {'kvbudget_token_drift_total{gate="g1", instance="g1"}': "0+20x60",
               'kvbudget_prompt_tokens_sum{gate="g1", instance="g1"}': "0+10000x60"},
              "40m", ("KvbudgetTokenDrift",)),
        "Counts of gate g1 and the engine's usage differ by 0.2% of the prompt tokens.",
        {"gate": "g1"},
        (
            Scene("a few prompts are off by a token",
                  {'kvbudget_token_drift_total{gate="g1", instance="g1"}': "0+5x60",
                   'kvbudget_prompt_tokens_sum{gate="g1", instance="g1"}': "0+10000x60"}, "40m"),
            Scene("one prompt was off by 5 tokens",
                  {'kvbudget_token_drift_total{gate="g1", instance="g1"}': "0x5 5x60",
                   'kvbudget_prompt_tokens_sum{gate="g1", instance="g1"}': "0+10000x60"}, "40m"),
        ),
    ),
)  # fmt: skip

ROOM: Final = Group("kvbudget-gate-room", _RECORDS, (*_ROOM, *_REFUSING))
