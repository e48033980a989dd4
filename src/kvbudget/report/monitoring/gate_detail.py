"""Decides what is seen of the gate in detail: tokens, latency, what is wrong and what comes, its own health."""

from typing import Final

from kvbudget.report.monitoring.panel import Kind, Panel, Query, Row, Unit, per_second, quantiles, share_of
from kvbudget.report.monitoring.selectors import ENGINE, GATE, VLLM

_NO_FINDING: Final = "healthy|insufficient_data"  # verdicts that are no trouble: drawn as 0, green

TOKENS: Final = Row(
    "Tokens",
    (
        Panel(
            "Tokens",
            "Per second: prompts as counted, answers as the engine told.",
            Unit.NUMBER,
            (
                Query(per_second("kvbudget_prompt_tokens_sum", GATE), "prompt"),
                Query(per_second("kvbudget_output_tokens_sum", GATE), "output"),
            ),
            width=6,
        ),
        Panel(
            "Prompt lengths",
            "Tokens of counted prompts.",
            Unit.NUMBER,
            quantiles("kvbudget_prompt_tokens", GATE),
            width=6,
        ),
        Panel(
            "Output lengths",
            "Tokens of finished answers. What policy learned learns from.",
            Unit.NUMBER,
            quantiles("kvbudget_output_tokens", GATE),
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
                        per_second("kvbudget_token_drift_total", GATE),
                        per_second("kvbudget_prompt_tokens_sum", GATE),
                    ),
                    "drift",
                ),
            ),
            levels=(0.0001, 0.001),
            width=6,
        ),
    ),
)

LATENCY: Final = Row(
    "Latency, and the engines by their own metrics (vLLM's names)",
    (
        Panel(
            "Time to first token",
            "By the engine, so without the wait at the gate.",
            Unit.SECONDS,
            quantiles("vllm:time_to_first_token_seconds", VLLM),
        ),
        Panel(
            "Time between tokens",
            "By the engine. A p99 far over the p50: preemptions, or long prefills among the decodes.",
            Unit.SECONDS,
            quantiles("vllm:inter_token_latency_seconds", VLLM),
        ),
        Panel(
            "The gate's own time",
            "From the last byte of a request to its forwarding without the queue, and of that the counting.",
            Unit.SECONDS,
            (
                *quantiles("kvbudget_overhead_seconds", GATE)[1:],
                *[
                    query._replace(legend=f"counting {query.legend}")
                    for query in quantiles("kvbudget_count_seconds", GATE)[1:]
                ],
            ),
        ),
        Panel(
            "Preemptions",
            "Per second. Behind the gate they should be near 0: each one computes a request's tokens twice.",
            Unit.PER_SECOND,
            (Query(per_second("vllm:num_preemptions_total", VLLM, "instance"), "{{instance}}"),),
        ),
        Panel(
            "Prefix cache",
            "Share of prompt tokens that the engine found in its prefix cache and, dashed, how many it looked up.",
            Unit.SHARE,
            (
                Query(
                    share_of(
                        per_second("vllm:prefix_cache_hits_total", VLLM),
                        per_second("vllm:prefix_cache_queries_total", VLLM),
                    ),
                    "hits",
                ),
                Query(per_second("vllm:prefix_cache_queries_total", VLLM), "tokens looked up per s", right=Unit.NUMBER),
            ),
            most=1.0,
        ),
        Panel(
            "Waiting inside the engines",
            "Requests that the engine itself lets wait. Behind the gate: near 0, as the gate's queue is the fair one.",
            Unit.WHOLE,
            (
                Query(f"sum by (instance) (vllm:num_requests_running{{{VLLM}}})", "{{instance}} running"),
                Query(f"sum by (instance) (vllm:num_requests_waiting{{{VLLM}}})", "{{instance}} waiting"),
            ),
        ),
    ),
)

NEXT: Final = Row(
    "What is wrong, and what comes",
    (
        Panel(
            "Findings",
            "What kvbudget diagnose finds on the engines behind this gate, while it holds.",
            Unit.NUMBER,
            (
                Query(
                    f'max by (instance, code) (kvbudget_finding{{{ENGINE}, code!~"{_NO_FINDING}"}} == 1)',
                    "{{instance}} {{code}}",
                ),
                Query(
                    f'0 * max by (instance, code) (kvbudget_finding{{{ENGINE}, code=~"{_NO_FINDING}"}} == 1)',
                    "{{instance}} {{code}}",
                ),
            ),
            Kind.STATES,
            levels=(1, 1),
            none="Not told by this gate",
        ),
        Panel(
            "Demand and its forecast",
            "Tokens that all who came would hold: admitted, queued and refused. No engine's metrics have it. The bounds"
            " are those of the next 30 minutes.",
            Unit.NUMBER,
            (
                Query(f"sum by (instance) (kvbudget_demand_tokens{{{ENGINE}}})", "{{instance}} now"),
                Query(
                    f"max by (instance, bound) (kvbudget_forecast_demand_tokens{{{ENGINE}}})",
                    "{{instance}} {{bound}}",
                ),
            ),
        ),
        Panel(
            "Chance to be full within 30 minutes",
            "And, dashed, the alarm: 1 when the chance is above what has been worth a warning so far.",
            Unit.SHARE,
            (
                Query(f"max by (instance) (kvbudget_forecast_saturation_probability{{{ENGINE}}})", "{{instance}}"),
                Query(
                    f"max by (instance) (kvbudget_forecast_alarm{{{ENGINE}}})", "{{instance}} alarm", right=Unit.NUMBER
                ),
            ),
            most=1.0,
        ),
    ),
)

HEALTH: Final = Row(
    "The gate's own health",
    (
        Panel(
            "Instances",
            "Up, drained by an operator, ejected after failures in a row.",
            Unit.NUMBER,
            (
                Query(f"max by (instance) (kvbudget_backend_up{{{ENGINE}}})", "{{instance}} up"),
                Query(f"max by (instance) (kvbudget_instance_draining{{{ENGINE}}})", "{{instance}} draining"),
                Query(f"max by (instance) (kvbudget_instance_ejected{{{ENGINE}}})", "{{instance}} ejected"),
            ),
            most=1.0,
            width=6,
        ),
        Panel(
            "Must stay at zero",
            "Misuses of the ledger (each is a bug) and lines of the access log that were lost, within 5 minutes.",
            Unit.WHOLE,
            (
                Query(f"sum(increase(kvbudget_ledger_errors_total{{{GATE}}}[5m]))", "ledger errors"),
                Query(f"sum(increase(kvbudget_access_log_lost_total{{{GATE}}}[5m]))", "log lines lost"),
            ),
            width=6,
        ),
        Panel(
            "Policy learned",
            "Answers that it knows by now and, dashed, standard deviations that preemptions have added to its margin.",
            Unit.WHOLE,
            (
                Query(f"max by (instance) (kvbudget_learned_answers{{{ENGINE}}})", "{{instance}} answers"),
                Query(
                    f"max by (instance) (kvbudget_learned_margin{{{ENGINE}}})",
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
            (Query(f"max by (instance) (kvbudget_shared_prefix_blocks{{{ENGINE}}})", "{{instance}}"),),
            width=6,
        ),
    ),
)
