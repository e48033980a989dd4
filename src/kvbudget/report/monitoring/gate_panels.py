"""Decides what is seen of the gate: the pool and who has it, the queue, refusals, tenants, tokens, what comes next.

Read at our own `/metrics` and vLLM 0.32's. `instance` is the gate's name of an engine, which a scrape keeps only with
`honor_labels: true`; `gate` is the gate process, which the scrape adds (see `stack`).
"""

from typing import Final

from kvbudget.report.monitoring.panel import (
    Dashboard,
    Kind,
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

_GATE: Final = 'gate=~"$gate"'
_ENGINE: Final = f'{_GATE}, instance=~"$instance"'
_VLLM: Final = 'instance=~"$engine"'
# Refusals for want of room. The others say that a request is wrong, or that no engine is there.
NO_ROOM: Final = "pool_full|queue_full|tenant_share|tenant_blocks|tenant_tokens|logprobs_full"


def _of_pool(metric: str) -> str:
    return f"max by (instance) ({metric}{{{_ENGINE}}} / kvbudget_pool_blocks{{{_ENGINE}}})"


def _blocks(metric: str) -> str:
    """Of all engines; replicas of the gate that tell of the same engine count once."""
    return f"sum(max by (instance) ({metric}{{{_ENGINE}}}))"


_FREE: Final = (
    f"sum(max by (instance) (clamp_min(kvbudget_pool_blocks{{{_ENGINE}}} - kvbudget_margin_blocks{{{_ENGINE}}}"
    f" - kvbudget_ledger_reserved_blocks{{{_ENGINE}}} - kvbudget_taken_blocks{{{_ENGINE}}}, 0)))"
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
            f"sum(kvbudget_queue_requests{{{_GATE}}})",
            levels=(1, 50),
        ),
        figure(
            "Refused for want of room",
            "Share of all requests. Those that were wrong in themselves do not count. 0 also when nothing arrives.",
            Unit.SHARE,
            share_of(
                per_second("kvbudget_refusals_total", f'{_GATE}, reason=~"{NO_ROOM}|deadline"'),
                per_second("kvbudget_requests_total", _GATE),
            ),
            levels=(0.01, 0.05),
        ),
        figure(
            "Engines that are down",
            "Engines that do not answer or make no progress.",
            Unit.WHOLE,
            f"sum(1 - max by (instance) (kvbudget_backend_up{{{_ENGINE}}}))",
            levels=(1, 1),
        ),
        figure(
            "Full within 30 minutes",
            "Chance that the demand of an engine reaches 95 % of its pool within half an hour.",
            Unit.SHARE,
            f"max(kvbudget_forecast_saturation_probability{{{_ENGINE}}})",
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
                    f"sum by (instance) (kvbudget_sequences{{{_ENGINE}}})", "{{instance}} sequences", right=Unit.WHOLE
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
                    f"max by (instance) (clamp_min(kvbudget_ledger_reserved_blocks{{{_ENGINE}}}"
                    f" - kvbudget_held_blocks{{{_ENGINE}}}, 0))",
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
                    f"sum by (instance) (kvbudget_sequences{{{_ENGINE}}})"
                    f" / max by (instance) (kvbudget_sequence_limit{{{_ENGINE}}})",
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
            (Query(f"max by (instance) (kvbudget_elsewhere_blocks{{{_ENGINE}}})", "{{instance}}"),),
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
                Query(f"sum(kvbudget_queue_requests{{{_GATE}}})", "requests"),
                Query(f"sum(kvbudget_queue_tokens{{{_GATE}}})", "tokens", right=Unit.NUMBER),
            ),
        ),
        Panel(
            "Wait for room",
            "How long forwarded requests waited at the gate.",
            Unit.SECONDS,
            quantiles("kvbudget_queue_seconds", _GATE),
        ),
        Panel(
            "Refusals by reason",
            "Per second. pool_full, queue_full, deadline: no room. tenant_*: a tenant's own limit. context_exceeded,"
            " never_fits, bad_request: the request is wrong. no_backend, engine_busy: look at the engine.",
            Unit.PER_SECOND,
            (Query(per_second("kvbudget_refusals_total", _GATE, "reason"), "{{reason}}"),),
            stacked=True,
        ),
        Panel(
            "Outcomes",
            "How requests ended, per second.",
            Unit.PER_SECOND,
            (Query(per_second("kvbudget_requests_total", _GATE, "outcome"), "{{outcome}}"),),
            stacked=True,
        ),
        Panel(
            "Tried again, and refused in shadow only",
            "Requests that were tried again as their engine gave no answer; requests that shadow mode let through and"
            " would have refused. Per second.",
            Unit.PER_SECOND,
            (
                Query(per_second("kvbudget_retries_total", _GATE), "tried again"),
                Query(f"{per_second('kvbudget_shadow_refusals_total', _GATE)} or vector(0)", "shadow"),
            ),
        ),
        Panel(
            "Tenants",
            "Blocks promised to each tenant: the ten that have most.",
            Unit.WHOLE,
            (
                Query(
                    f'topk(10, sum by (tenant) (kvbudget_reserved_blocks{{{_ENGINE}, tenant=~"$tenant"}}))',
                    "{{tenant}}",
                ),
            ),
            stacked=True,
        ),
    ),
)

_TOKENS: Final = Row(
    "Tokens",
    (
        Panel(
            "Tokens",
            "Per second: prompts as counted, answers as the engine told.",
            Unit.NUMBER,
            (
                Query(per_second("kvbudget_prompt_tokens_sum", _GATE), "prompt"),
                Query(per_second("kvbudget_output_tokens_sum", _GATE), "output"),
            ),
            width=6,
        ),
        Panel(
            "Prompt lengths",
            "Tokens of counted prompts.",
            Unit.NUMBER,
            quantiles("kvbudget_prompt_tokens", _GATE),
            width=6,
        ),
        Panel(
            "Output lengths",
            "Tokens of finished answers. What policy learned learns from.",
            Unit.NUMBER,
            quantiles("kvbudget_output_tokens", _GATE),
            width=6,
        ),
        Panel(
            "Token drift",
            "Share of prompt tokens by which our exact counts and the engine's usage differ. Anything over 0 is a wrong"
            " tokenizer or chat template.",
            Unit.SHARE,
            (
                Query(
                    share_of(
                        per_second("kvbudget_token_drift_total", _GATE),
                        per_second("kvbudget_prompt_tokens_sum", _GATE),
                    ),
                    "drift",
                ),
            ),
            levels=(0.0001, 0.001),
            width=6,
        ),
    ),
)

_LATENCY: Final = Row(
    "Latency, and the engines by their own metrics (vLLM's names)",
    (
        Panel(
            "Time to first token",
            "By the engine, so without the wait at the gate.",
            Unit.SECONDS,
            quantiles("vllm:time_to_first_token_seconds", _VLLM),
        ),
        Panel(
            "Time between tokens",
            "By the engine. A p99 far over the p50: preemptions, or long prefills among the decodes.",
            Unit.SECONDS,
            quantiles("vllm:inter_token_latency_seconds", _VLLM),
        ),
        Panel(
            "The gate's own time",
            "From the last byte of a request to its forwarding without the queue, and of that the counting.",
            Unit.SECONDS,
            (
                *quantiles("kvbudget_overhead_seconds", _GATE)[1:],
                *[
                    query._replace(legend=f"counting {query.legend}")
                    for query in quantiles("kvbudget_count_seconds", _GATE)[1:]
                ],
            ),
        ),
        Panel(
            "Preemptions",
            "Per second. Behind the gate they should be near 0: each one computes a request's tokens twice.",
            Unit.PER_SECOND,
            (Query(per_second("vllm:num_preemptions_total", _VLLM, "instance"), "{{instance}}"),),
        ),
        Panel(
            "Prefix cache",
            "Share of prompt tokens that the engine found in its prefix cache and, dashed, how many it looked up.",
            Unit.SHARE,
            (
                Query(
                    share_of(
                        per_second("vllm:prefix_cache_hits_total", _VLLM),
                        per_second("vllm:prefix_cache_queries_total", _VLLM),
                    ),
                    "hits",
                ),
                Query(
                    per_second("vllm:prefix_cache_queries_total", _VLLM), "tokens looked up per s", right=Unit.NUMBER
                ),
            ),
            most=1.0,
        ),
        Panel(
            "Waiting inside the engines",
            "Requests that the engine itself lets wait. Behind the gate: near 0, as the gate's queue is the fair one.",
            Unit.WHOLE,
            (
                Query(f"sum by (instance) (vllm:num_requests_running{{{_VLLM}}})", "{{instance}} running"),
                Query(f"sum by (instance) (vllm:num_requests_waiting{{{_VLLM}}})", "{{instance}} waiting"),
            ),
        ),
    ),
)

_NEXT: Final = Row(
    "What is wrong, and what comes",
    (
        Panel(
            "Findings",
            "What kvbudget diagnose finds on the engines behind this gate, while it holds.",
            Unit.NUMBER,
            (
                Query(
                    f"max by (instance, code) (kvbudget_finding{{{_ENGINE}}})",
                    "{{instance}} {{code}}",
                ),
            ),
            Kind.STATES,
            levels=(1, 1),
        ),
        Panel(
            "Demand and its forecast",
            "Tokens that all who came would hold: admitted, queued and refused. No engine's metrics have it. The bounds"
            " are those of the next 30 minutes.",
            Unit.NUMBER,
            (
                Query(f"sum by (instance) (kvbudget_demand_tokens{{{_ENGINE}}})", "{{instance}} now"),
                Query(
                    f"max by (instance, bound) (kvbudget_forecast_demand_tokens{{{_ENGINE}}})",
                    "{{instance}} {{bound}}",
                ),
            ),
        ),
        Panel(
            "Chance to be full within 30 minutes",
            "Over a half: the alarm.",
            Unit.SHARE,
            (
                Query(
                    f"max by (instance) (kvbudget_forecast_saturation_probability{{{_ENGINE}}})",
                    "{{instance}}",
                ),
            ),
            levels=(0.3, 0.5),
            most=1.0,
        ),
    ),
)

_HEALTH: Final = Row(
    "The gate's own health",
    (
        Panel(
            "Instances",
            "Up, drained by an operator, ejected after failures in a row.",
            Unit.NUMBER,
            (
                Query(f"max by (instance) (kvbudget_backend_up{{{_ENGINE}}})", "{{instance}} up"),
                Query(f"max by (instance) (kvbudget_instance_draining{{{_ENGINE}}})", "{{instance}} draining"),
                Query(f"max by (instance) (kvbudget_instance_ejected{{{_ENGINE}}})", "{{instance}} ejected"),
            ),
            most=1.0,
            width=6,
        ),
        Panel(
            "Must stay at zero",
            "Misuses of the ledger (each is a bug) and lines of the access log that were lost, within 5 minutes.",
            Unit.WHOLE,
            (
                Query(f"sum(increase(kvbudget_ledger_errors_total{{{_GATE}}}[5m]))", "ledger errors"),
                Query(f"sum(increase(kvbudget_access_log_lost_total{{{_GATE}}}[5m]))", "log lines lost"),
            ),
            width=6,
        ),
        Panel(
            "Policy learned",
            "Answers that it knows by now and, dashed, standard deviations that preemptions have added to its margin.",
            Unit.WHOLE,
            (
                Query(f"max by (instance) (kvbudget_learned_answers{{{_ENGINE}}})", "{{instance}} answers"),
                Query(
                    f"max by (instance) (kvbudget_learned_margin{{{_ENGINE}}})",
                    "{{instance}} added",
                    right=Unit.NUMBER,
                ),
            ),
            width=6,
        ),
        Panel(
            "Shared prompts",
            "Blocks of prompts that several requests hold and that are charged once.",
            Unit.WHOLE,
            (Query(f"max by (instance) (kvbudget_shared_prefix_blocks{{{_ENGINE}}})", "{{instance}}"),),
            width=6,
        ),
    ),
)

GATE: Final = Dashboard(
    "kvbudget-gate",
    "kvbudget: the gate and its engines",
    "What is promised, what is held, who waits and why. Made by kvbudget dashboards.",
    (
        Variable("gate", "Gate", "kvbudget_requests_total", "gate"),
        Variable("instance", "Engine, as the gate calls it", "kvbudget_pool_blocks", "instance"),
        Variable("tenant", "Tenant", "kvbudget_reserved_blocks", "tenant"),
        Variable("engine", "Engine, as Prometheus calls it", "vllm:num_requests_running", "instance"),
    ),
    (_NOW, _POOL, _QUEUE, _TOKENS, _LATENCY, _NEXT, _HEALTH),
)
