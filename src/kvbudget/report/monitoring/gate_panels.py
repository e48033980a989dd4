"""Decides what is seen of the gate: the pool and who has it, the queue, refusals, tenants, tokens, what comes next.

Read at our own `/metrics` and vLLM 0.32's. `instance` is the gate's name of an engine, which a scrape keeps only with
`honor_labels: true`; `gate` is the gate process, which the scrape adds (see `stack`).
"""

from typing import Final

from kvbudget.report.monitoring.gate_detail import HEALTH, LATENCY, NEXT, TOKENS
from kvbudget.report.monitoring.panel import (
    Dashboard,
    Panel,
    Query,
    Row,
    Unit,
    Variable,
    figure,
    per_second,
    quantiles,
    share_of,
)
from kvbudget.report.monitoring.selectors import ENGINE, GATE

# Refusals for want of room. The others say that a request is wrong, or that no engine is there.
NO_ROOM: Final = "pool_full|queue_full|tenant_share|tenant_blocks|tenant_tokens|logprobs_full"


def _of_pool(metric: str) -> str:
    return f"max by (instance) ({metric}{{{ENGINE}}} / kvbudget_pool_blocks{{{ENGINE}}})"


def _blocks(metric: str) -> str:
    """Of all engines; replicas of the gate that tell of the same engine count once."""
    return f"sum(max by (instance) ({metric}{{{ENGINE}}}))"


_FREE: Final = (
    f"sum(max by (instance) (clamp_min(kvbudget_pool_blocks{{{ENGINE}}} - kvbudget_margin_blocks{{{ENGINE}}}"
    f" - kvbudget_ledger_reserved_blocks{{{ENGINE}}} - kvbudget_taken_blocks{{{ENGINE}}}, 0)))"
)

_NOW: Final = Row(
    "Now",
    (
        figure(
            "Fullest pool",
            "Share of its KV pool that the fullest engine holds, by its own word. Over 95 % it preempts.",
            Unit.SHARE,
            f"max({_of_pool('kvbudget_held_blocks')})",
            levels=(0.85, 0.95),
        ),
        figure(
            "Most promised",
            "Share of a pool that is promised to living requests at their worst common moment. Near 100 % with a pool"
            " that is not full: the budget is full, not the pool.",
            Unit.SHARE,
            f"max({_of_pool('kvbudget_ledger_reserved_blocks')})",
            levels=(0.9, 1.0),
        ),
        figure(
            "Waiting for room",
            "Requests in the gate's queue.",
            Unit.WHOLE,
            f"sum(kvbudget_queue_requests{{{GATE}}})",
            levels=(1, 50),
        ),
        figure(
            "Refused for want of room",
            "Share of all requests. Those that were wrong in themselves do not count. 0 also when nothing arrives.",
            Unit.SHARE,
            share_of(
                per_second("kvbudget_refusals_total", f'{GATE}, reason=~"{NO_ROOM}|deadline"'),
                per_second("kvbudget_requests_total", GATE),
            ),
            levels=(0.01, 0.05),
        ),
        figure(
            "Engines that are down",
            "Engines that do not answer or make no progress.",
            Unit.WHOLE,
            f"sum(1 - max by (instance) (kvbudget_backend_up{{{ENGINE}}}))",
            levels=(1, 1),
        ),
        figure(
            "Full within 30 minutes",
            "Chance that the demand of an engine reaches 95 % of its pool within half an hour.",
            Unit.SHARE,
            f"max(kvbudget_forecast_saturation_probability{{{ENGINE}}})",
            levels=(0.3, 0.5),
        ),
    ),
)

_POOL: Final = Row(
    "KV pool",
    (
        Panel(
            "KV use against concurrency",
            "Left: share of the pool that the engine holds. Right, dashed: sequences that run through this gate. Use"
            " that rises while concurrency stays flat is growth of answers, or longer prompts.",
            Unit.SHARE,
            (
                Query(_of_pool("kvbudget_held_blocks"), "{{instance}} held"),
                Query(
                    f"sum by (instance) (kvbudget_sequences{{{ENGINE}}})", "{{instance}} sequences", right=Unit.WHOLE
                ),
            ),
            levels=(0.85, 0.95),
            most=1.0,
            width=12,
        ),
        Panel(
            "Whose blocks",
            "The whole pool: promised to requests, held elsewhere (traffic that by-passes the gate, or an engine that"
            " came back), kept back as margin, free. The line is what the engines really hold.",
            Unit.WHOLE,
            (
                Query(_blocks("kvbudget_ledger_reserved_blocks"), "promised"),
                Query(_blocks("kvbudget_taken_blocks"), "elsewhere"),
                Query(_blocks("kvbudget_margin_blocks"), "margin"),
                Query(_FREE, "free"),
                Query(_blocks("kvbudget_held_blocks"), "held by the engines", line=True),
            ),
            stacked=True,
            width=12,
        ),
        Panel(
            "Promised and not held",
            "What requests may still grow into, or never use. High for long with a queue: clients ask for far more"
            " max_tokens than they use; policy learned promises less.",
            Unit.WHOLE,
            (
                Query(
                    f"max by (instance) (clamp_min(kvbudget_ledger_reserved_blocks{{{ENGINE}}}"
                    f" - kvbudget_held_blocks{{{ENGINE}}}, 0))",
                    "{{instance}}",
                ),
            ),
        ),
        Panel(
            "Sequences of the limit",
            "Share of max_num_seqs in use. At 100 % with a free pool: raise --max-num-seqs.",
            Unit.SHARE,
            (
                Query(
                    f"sum by (instance) (kvbudget_sequences{{{ENGINE}}})"
                    f" / max by (instance) (kvbudget_sequence_limit{{{ENGINE}}})",
                    "{{instance}}",
                ),
            ),
            levels=(0.9, 1.0),
            most=1.0,
        ),
        Panel(
            "Held elsewhere",
            "Blocks held in the engine by what did not come through this gate.",
            Unit.WHOLE,
            (Query(f"max by (instance) (kvbudget_elsewhere_blocks{{{ENGINE}}})", "{{instance}}"),),
        ),
    ),
)

_QUEUE: Final = Row(
    "Queue, refusals and outcomes",
    (
        Panel(
            "Waiting",
            "Requests that wait for room and, dashed on the right, their tokens.",
            Unit.WHOLE,
            (
                Query(f"sum(kvbudget_queue_requests{{{GATE}}})", "requests"),
                Query(f"sum(kvbudget_queue_tokens{{{GATE}}})", "tokens", right=Unit.NUMBER),
            ),
        ),
        Panel(
            "Wait for room",
            "How long forwarded requests waited at the gate.",
            Unit.SECONDS,
            quantiles("kvbudget_queue_seconds", GATE),
        ),
        Panel(
            "Refusals by reason",
            "Per second. pool_full, queue_full, deadline: no room. tenant_*: a tenant's own limit. context_exceeded,"
            " never_fits, bad_request: the request is wrong. no_backend, engine_busy: look at the engine.",
            Unit.PER_SECOND,
            (Query(per_second("kvbudget_refusals_total", GATE, "reason"), "{{reason}}"),),
            stacked=True,
        ),
        Panel(
            "Outcomes",
            "How requests ended, per second.",
            Unit.PER_SECOND,
            (Query(per_second("kvbudget_requests_total", GATE, "outcome"), "{{outcome}}"),),
            stacked=True,
        ),
        Panel(
            "Tried again, and refused in shadow only",
            "Requests that were tried again as their engine gave no answer; requests that shadow mode let through and"
            " would have refused. Per second.",
            Unit.PER_SECOND,
            (
                Query(per_second("kvbudget_retries_total", GATE), "tried again"),
                Query(f"{per_second('kvbudget_shadow_refusals_total', GATE)} or vector(0)", "shadow"),
            ),
        ),
        Panel(
            "Tenants",
            "Blocks promised to each tenant: the ten that have most.",
            Unit.WHOLE,
            (
                Query(
                    f'topk(10, sum by (tenant) (kvbudget_reserved_blocks{{{ENGINE}, tenant=~"$tenant"}}))',
                    "{{tenant}}",
                ),
            ),
            stacked=True,
        ),
    ),
)

GATE_BOARD: Final = Dashboard(
    "kvbudget-gate",
    "kvbudget: the gate and its engines",
    "What is promised, what is held, who waits and why. Made by kvbudget dashboards.",
    (
        Variable("gate", "Gate", "kvbudget_requests_total", "gate"),
        Variable("instance", "Engine, as the gate calls it", "kvbudget_pool_blocks", "instance"),
        Variable("tenant", "Tenant", "kvbudget_reserved_blocks", "tenant"),
        Variable("engine", "Engine, as Prometheus calls it", "vllm:num_requests_running", "instance"),
    ),
    (_NOW, _POOL, _QUEUE, TOKENS, LATENCY, NEXT, HEALTH),
)
