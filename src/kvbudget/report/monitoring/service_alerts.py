"""Decides when the gate itself, or what is behind it, is not well (down, failing, slow), and what comes."""

from typing import Final

from kvbudget.report.monitoring.alert import Alert, Group, Scene, Severity

_BY: Final = 'gate="g1", instance="e1"'
_LABELS: Final = {"gate": "g1", "instance": "e1"}
_SOURCE: Final = '{gate="g1", instance="g1", source="k8s://llm/vllm"}'


_RARE: Final = "0 0 1 1 2 2 3 3 4 4 5 5 6 6 7 7"  # once in two minutes


def _up(value: str, drained: str = "0x30") -> dict[str, str]:
    return {f"kvbudget_backend_up{{{_BY}}}": value, f"kvbudget_instance_draining{{{_BY}}}": drained}


def _ends(finished: int, failed: int, outcome: str = "upstream_failed") -> dict[str, str]:
    return {
        'kvbudget_requests_total{gate="g1", instance="g1", outcome="finished"}': f"0+{finished}x30",
        f'kvbudget_requests_total{{gate="g1", instance="g1", outcome="{outcome}"}}': f"0+{failed}x30",
    }


_BOUNDS: Final = ("0.01", "0.1", "0.25", "0.5", "+Inf")


def _overhead(*counts: int) -> dict[str, str]:
    """So many a minute within each of the bounds and not within the one before."""
    bucket = 'kvbudget_overhead_seconds_bucket{gate="g1", instance="g1", le="%s"}'
    return {bucket % bound: f"0+{sum(counts[: place + 1])}x40" for place, bound in enumerate(_BOUNDS)}


_DOWN: Final = (
    Alert(
        "KvbudgetGateDown",
        "prometheus",
        Severity.CRITICAL,
        'up{job="kvbudget"} == 0',
        1,
        "Gate {{ $labels.instance }} has not answered on its admin port for a minute.",
        "No request is let in by it, or nobody sees what it does.",
        "Free: kvbudget serve's last lines of log; is the admin port open to Prometheus, and its token known there?",
        Scene("the gate's process ended", {'up{job="kvbudget", instance="g1:8801"}': "1x5 0x20"}, "10m",
              ("KvbudgetGateDown",)),
        "Gate g1:8801 has not answered on its admin port for a minute.",
        {"job": "kvbudget", "instance": "g1:8801"},
        (
            Scene("one scrape was missed", {'up{job="kvbudget", instance="g1:8801"}': "1x5 0 1x20"}, "7m"),
            Scene("something else is down", {'up{job="node", instance="n1:9100"}': "0x20"}, "10m"),
        ),
    ),
    Alert(
        "KvbudgetEngineDown",
        "prometheus",
        Severity.CRITICAL,
        'up{job=~"engine|vllm|sglang"} == 0',
        1,
        "Engine {{ $labels.instance }} has not answered Prometheus for a minute.",
        "It is down, still loads its model, or is too busy to answer.",
        "Free: its log; kvbudget plan tells whether what it was started with fits the card.",
        Scene("the engine was killed", {'up{job="vllm", instance="e1:8000"}': "1x5 0x20"}, "10m",
              ("KvbudgetEngineDown",)),
        "Engine e1:8000 has not answered Prometheus for a minute.",
        {"job": "vllm", "instance": "e1:8000"},
        (Scene("one scrape was missed", {'up{job="vllm", instance="e1:8000"}': "1x5 0 1x20"}, "7m"),),
    ),
    Alert(
        "KvbudgetBackendDown",
        "gate",
        Severity.CRITICAL,
        "max by (gate, instance) (kvbudget_backend_up) == 0\n"
        "unless on (gate, instance) (kvbudget_instance_draining == 1)",
        1,
        "Gate {{ $labels.gate }} gets no answers, or no progress, from engine {{ $labels.instance }}.",
        "The gate sends it nothing. With no other engine for the model, clients get 503.",
        "Free: GET /v1/instances on the admin port tells the problem in words.",
        Scene("the engine answers nobody", _up("1x5 0x20"), "10m", ("KvbudgetBackendDown",)),
        "Gate g1 gets no answers, or no progress, from engine e1.",
        _LABELS,
        (
            Scene("an operator took it out first", _up("1x5 0x20", drained="0x3 1x20"), "10m"),
            Scene("it was down for a look", _up("1x5 0 1x20"), "8m"),
        ),
    ),
    Alert(
        "KvbudgetInstanceEjected",
        "gate",
        Severity.WARNING,
        "kvbudget_instance_ejected == 1",
        2,
        "Gate {{ $labels.gate }} took engine {{ $labels.instance }} out after failures in a row.",
        "The engine answers health checks, and fails requests. The others carry its load.",
        "Free: the engine's log at the time of the failures; it is tried again by itself.",
        Scene("it fails again and again", {f"kvbudget_instance_ejected{{{_BY}}}": "0x5 1x20"}, "10m",
              ("KvbudgetInstanceEjected",)),
        "Gate g1 took engine e1 out after failures in a row.",
        _LABELS,
        (Scene("it came back at the next try", {f"kvbudget_instance_ejected{{{_BY}}}": "0x5 1 0x20"}, "10m"),),
    ),
    Alert(
        "KvbudgetEngineFailing",
        "gate",
        Severity.CRITICAL,
        "gate:kvbudget_engine_failures:ratio_rate5m > 0.02\nand on (gate) (sum by (gate)"
        ' (increase(kvbudget_requests_total{outcome=~"upstream_failed|engine_lost|timed_out"}[5m])) > 5)',
        5,
        "{{ $value | humanizePercentage }} of the requests through gate {{ $labels.gate }} end in a failure of the"
        " engine.",
        "Answers break off, the engine restarts under them, or it keeps silent.",
        "Free: the outcome tells which (kvbudget_requests_total); then the engine's log.",
        Scene("one of 25 breaks off", _ends(finished=48, failed=2), "13m", ("KvbudgetEngineFailing",)),
        "4% of the requests through gate g1 end in a failure of the engine.",
        {"gate": "g1"},
        (
            Scene("clients leave", _ends(finished=90, failed=10, outcome="client_gone"), "13m"),
            Scene("one of a hundred breaks off", _ends(finished=495, failed=5), "13m"),
            Scene("half of very few break off",
                  {'kvbudget_requests_total{gate="g1", instance="g1", outcome="finished"}': _RARE,
                   'kvbudget_requests_total{gate="g1", instance="g1", outcome="timed_out"}': _RARE}, "13m"),
        ),
    ),
)  # fmt: skip

_OWN: Final = (
    Alert(
        "KvbudgetLedgerErrors",
        "gate",
        Severity.CRITICAL,
        "sum by (gate) (increase(kvbudget_ledger_errors_total[10m])) > 0\n"
        "unless sum by (gate) (increase(kvbudget_ledger_call_failures_total[10m])) > 0",
        0,
        "Gate {{ $labels.gate }} caught {{ $value | printf \"%.0f\" }} misuse(s) of its ledger within 10 minutes.",
        "A reservation was ended twice, or never made: a bug. What is promised may be wrong from now on.",
        "Free: keep the log lines, report them; a restart of the gate starts the ledger anew.",
        Scene("a reservation was ended twice", {'kvbudget_ledger_errors_total{gate="g1", instance="g1"}': "0x10 1x20"},
              "12m", ("KvbudgetLedgerErrors",)),
        "Gate g1 caught 1 misuse(s) of its ledger within 10 minutes.",
        {"gate": "g1"},
        (
            Scene("that was long ago", {'kvbudget_ledger_errors_total{gate="g1", instance="g1"}': "0 1x60"}, "40m"),
            Scene("a shared ledger did not answer",
                  {'kvbudget_ledger_errors_total{gate="g1", instance="g1"}': "0x10 5x20",
                   'kvbudget_ledger_call_failures_total{gate="g1", instance="g1"}': "0x10 5x20"}, "12m"),
        ),
    ),
    Alert(
        "KvbudgetSlowGate",
        "gate",
        Severity.WARNING,
        "gate:kvbudget_overhead_seconds:p99_rate5m > 0.25",
        10,
        "One of a hundred requests spends over {{ $value | humanizeDuration }} inside gate {{ $labels.gate }}, without"
        " the queue.",
        "Counting tokens or the process itself is short of CPU.",
        "Free: compare with kvbudget_count_seconds; fastokens is faster than the engine's /tokenize; --workers N.",
        Scene("a fifth takes up to half a second", _overhead(80, 0, 0, 20, 0), "30m",
              ("KvbudgetSlowGate",)),
        "One of a hundred requests spends over 487.5ms inside gate g1, without the queue.",
        {"gate": "g1"},
        (
            Scene("one of a thousand does", _overhead(999, 0, 0, 1, 0), "30m"),
            Scene("a fifth takes a tenth of a second", _overhead(80, 0, 20, 0, 0), "30m"),
        ),
    ),
    Alert(
        "KvbudgetAccessLogLost",
        "gate",
        Severity.INFO,
        "sum by (gate) (increase(kvbudget_access_log_lost_total[15m])) > 0",
        0,
        "Gate {{ $labels.gate }} lost {{ $value | printf \"%.0f\" }} lines of its access log within 15 minutes.",
        "The disk did not take them. No request waits for the log.",
        "Free: space and speed of the disk under --access-log.",
        Scene("the disk is full", {'kvbudget_access_log_lost_total{gate="g1", instance="g1"}': "0+30x30"}, "20m",
              ("KvbudgetAccessLogLost",)),
        "Gate g1 lost 450 lines of its access log within 15 minutes.",
        {"gate": "g1"},
        (
            Scene("it was full yesterday", {'kvbudget_access_log_lost_total{gate="g1", instance="g1"}': "900x60"},
                  "50m"),
        ),
    ),
    Alert(
        "KvbudgetDiscoveryStale",
        "gate",
        Severity.WARNING,
        "max by (gate, source) (kvbudget_discovery_age_seconds) > 300\n"
        "or max by (gate, source) (\n"
        "  increase(kvbudget_discovery_failures_total[5m]) > 0 unless kvbudget_discovery_age_seconds\n"
        ")",
        2,
        "Gate {{ $labels.gate }} has not been told by {{ $labels.source }} which engines there are.",
        "Who was known stays and goes on; who is new gets no work.",
        "Free: the gate's log says why; the Role of its service account, the name's records, or the list's server.",
        Scene("the API server answers nobody", {f"kvbudget_discovery_age_seconds{_SOURCE}": "10x5 60+60x20"}, "15m",
              ("KvbudgetDiscoveryStale",)),
        "Gate g1 has not been told by k8s://llm/vllm which engines there are.",
        {"gate": "g1", "source": "k8s://llm/vllm"},
        (
            Scene("it never had the right to ask", {f"kvbudget_discovery_failures_total{_SOURCE}": "0+2x20"}, "10m",
                  ("KvbudgetDiscoveryStale",)),
            Scene("a watch is quiet between bookmarks",
                  {f"kvbudget_discovery_age_seconds{_SOURCE}": "10 70 10 70 10x20",
                   f"kvbudget_discovery_failures_total{_SOURCE}": "3x25"}, "10m"),
        ),
    ),
    Alert(
        "KvbudgetLedgerLost",
        "gate",
        Severity.CRITICAL,
        "min by (gate) (kvbudget_ledger_up) == 0",
        1,
        "Gate {{ $labels.gate }} has not been answered by the shared ledger for a lease.",
        "It refuses all requests with 503 ledger_lost, or goes by an equal part of the pool (--ledger-lost slice).",
        "Free: the gate's log names the address and the reason; is the server up, its memory free, the password right?",
        Scene("the server is gone", {'kvbudget_ledger_up{gate="g1", instance="e1"}': "1x5 0x20"}, "15m",
              ("KvbudgetLedgerLost",)),
        "Gate g1 has not been answered by the shared ledger for a lease.",
        {"gate": "g1"},
        (Scene("a failover takes some time", {'kvbudget_ledger_up{gate="g1", instance="e1"}': "1x5 0 1x20"}, "15m"),),
    ),
    Alert(
        "KvbudgetWorkerDown",
        "gate",
        Severity.WARNING,
        "min by (gate, worker) (kvbudget_worker_up) == 0",
        2,
        "Worker {{ $labels.worker }} of gate {{ $labels.gate }} does not serve.",
        "The others take all connections; what it had promised is theirs again.",
        "Free: the gate's log says how it ended; it is started again with growing pauses.",
        Scene("it ends at every start", {'kvbudget_worker_up{gate="g1", worker="1"}': "1x5 0x20",
                                         'kvbudget_worker_up{gate="g1", worker="0"}': "1x25"}, "15m",
              ("KvbudgetWorkerDown",)),
        "Worker 1 of gate g1 does not serve.",
        {"gate": "g1", "worker": "1"},
        (Scene("it was started again", {'kvbudget_worker_up{gate="g1", worker="1"}': "1x5 0 1x20"}, "15m"),),
    ),
    Alert(
        "KvbudgetScrapeLabels",
        "prometheus",
        Severity.WARNING,
        'count by (job) (kvbudget_pool_blocks{exported_instance!=""}) > 0',
        5,
        "Prometheus renames the label `instance` of {{ $value }} engines in job {{ $labels.job }}.",
        "The gate's name of an engine became exported_instance, so dashboards and alerts mix up engines and gates.",
        "Free: honor_labels: true for this job, and a target label `gate` (see the prometheus.yml that came with it).",
        Scene("the scrape has no honor_labels",
              {'kvbudget_pool_blocks{job="kvbudget", instance="g1:8801", exported_instance="e1"}': "100x20"}, "10m",
              ("KvbudgetScrapeLabels",)),
        "Prometheus renames the label `instance` of 1 engines in job kvbudget.",
        {"job": "kvbudget"},
        (Scene("it has", {'kvbudget_pool_blocks{job="kvbudget", gate="g1:8801", instance="e1"}': "100x20"}, "10m"),),
    ),
)  # fmt: skip


def _chance(chance: str, alarm: str) -> dict[str, str]:
    return {
        f"kvbudget_forecast_saturation_probability{{{_BY}}}": chance,
        f"kvbudget_forecast_alarm{{{_BY}}}": alarm,
    }


def _finding(code: str) -> dict[str, str]:
    return {f'kvbudget_finding{{{_BY}, code="{code}"}}': "1x30"}


_COMING: Final = (
    Alert(
        "KvbudgetForecastSaturation",
        "gate",
        Severity.WARNING,
        "max by (gate, instance) (kvbudget_forecast_saturation_probability)\n"
        "and on (gate, instance) (kvbudget_forecast_alarm == 1)",
        5,
        "Engine {{ $labels.instance }} will be full within 30 minutes with a chance of"
        " {{ $value | humanizePercentage }}.",
        "Demand (let in, waiting and refused) heads for 95 % of the pool. Nobody waits yet.",
        "Free: put off batch work; drain nothing; see that the queue and the tenants' shares are set as you want them.",
        Scene("the evening peak builds up", _chance("0.2x5 0.8x20", "0x5 1x20"), "13m",
              ("KvbudgetForecastSaturation",)),
        "Engine e1 will be full within 30 minutes with a chance of 80%.",
        _LABELS,
        (
            Scene("it may be full, and by its own record that is no reason to warn", _chance("0.6x30", "0x30"), "13m"),
            Scene("a burst passes", _chance("0.2x5 0.9x2 0.2x20", "0x5 1x2 0x20"), "9m"),
        ),
        "forecast",
    ),
    Alert(
        "KvbudgetFinding",
        "gate",
        Severity.INFO,
        'max by (gate, instance, code) (kvbudget_finding{code!~"healthy|insufficient_data"}) == 1',
        10,
        "kvbudget diagnose finds {{ $labels.code }} at engine {{ $labels.instance }}.",
        "The same findings that kvbudget diagnose prints, with evidence and actions in order of cost.",
        "Free: kvbudget diagnose with the gate's admin address, for the numbers and what to do.",
        Scene("a prefix is shared and shorter than a block", _finding("prefix_cache_below_block"), "13m",
              ("KvbudgetFinding",)),
        "kvbudget diagnose finds prefix_cache_below_block at engine e1.",
        {**_LABELS, "code": "prefix_cache_below_block"},
        (
            Scene("all is well", _finding("healthy"), "13m"),
            Scene("too little is known", _finding("insufficient_data"), "13m"),
        ),
    ),
)  # fmt: skip

SERVICE: Final = Group("kvbudget-gate-service", (), (*_DOWN, *_OWN, *_COMING))
