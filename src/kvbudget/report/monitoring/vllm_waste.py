"""Decides when a vLLM wastes what it has: prefixes that are never found again, a pool that is far too large, old names.

A hit rate of 0 has three causes that its metrics do not tell apart, so the alert names all of them.
"""

from typing import Final

from kvbudget.report.monitoring.alert import Alert, Scene, Severity
from kvbudget.report.monitoring.vllm_scenes import BY, BY_MODEL, MODEL, prefix

WASTE: Final = (
    Alert(
        "KvbudgetPrefixCacheUnused",
        "vllm",
        Severity.INFO,
        f"sum {BY_MODEL} (increase(vllm:prefix_cache_queries_total[1h])) > 100000\n"
        f"and sum {BY_MODEL} (increase(vllm:prefix_cache_hits_total[1h])) == 0",
        10,
        "{{ $labels.instance }} looked {{ $value | humanize }} prompt tokens up within an hour and found none.",
        "Nothing is shared; or what is shared is shorter than a block (784 tokens on some hybrids); or it is evicted"
        " before it is asked for again.",
        "Free: kvbudget diagnose tells the three apart; put what is the same in all prompts first.",
        Scene("an hour of prompts without a hit", prefix("0+50000x12", "0x12"), "100m",
              ("KvbudgetPrefixCacheUnused",), 10),
        "e1:8000 looked 300k prompt tokens up within an hour and found none.",
        MODEL,
        (
            Scene("one in a hundred is found", prefix("0+50000x12", "0+500x12"), "100m", (), 10),
            Scene("little was asked", prefix("0+10000x12", "0x12"), "100m", (), 10),
            Scene("hardly anything was asked", prefix("0+200x12", "0x12"), "100m", (), 10),
        ),
    ),
    Alert(
        "KvbudgetPrefixCacheCollapsed",
        "vllm",
        Severity.WARNING,
        "instance_model:vllm_prefix_hits:ratio_rate30m < 0.5 * instance_model:vllm_prefix_hits:ratio_rate1d\n"
        "and instance_model:vllm_prefix_hits:ratio_rate1d > 0.2\n"
        f"and sum {BY_MODEL} (increase(vllm:prefix_cache_queries_total[30m])) > 10000",
        15,
        "Prefix cache hits of {{ $labels.instance }} fell to {{ $value | humanizePercentage }}, less than half of the"
        " day's.",
        "Prompts changed at their beginning (a date, an id), or the pool no longer leaves room for what is shared.",
        "Free: what was deployed when it fell? Move what changes to the end of the prompt.",
        Scene("60 % for eleven hours, then 10 %", prefix("0+5000x78", "0+3000x66 198000+500x12"), "760m",
              ("KvbudgetPrefixCacheCollapsed",), 10),
        "Prefix cache hits of e1:8000 fell to 10%, less than half of the day's.",
        MODEL,
        (
            Scene("10 %, then 2 %", prefix("0+5000x78", "0+500x66 33000+100x12"), "760m", (), 10),
            Scene("60 %, then 10 %, of hardly anything", prefix("0+2000x78", "0+1200x66 79200+200x12"), "760m", (), 10),
            Scene("60 %, then 40 %", prefix("0+50000x78", "0+30000x66 1980000+20000x12"), "760m", (), 10),
        ),
    ),
    Alert(
        "KvbudgetOverProvisioned",
        "vllm",
        Severity.INFO,
        f"max {BY_MODEL} (max_over_time(vllm:kv_cache_usage_perc[1d])) < 0.3\n"
        f"and max {BY_MODEL} (vllm:kv_cache_usage_perc offset 1d) >= 0\n"
        f"and sum {BY_MODEL} (increase(vllm:request_success_total[1d])) > 1000",
        60,
        "{{ $labels.instance }} never held more than {{ $value | humanizePercentage }} of its KV pool in a day"
        " of work.",
        "The pool is far larger than what is asked of it.",
        "Money: a smaller card, a longer context, more models on it; kvbudget plan tells what fits.",
        Scene("18 % at the most, all day",
              {f"vllm:kv_cache_usage_perc{{{BY}}}": "0.18x160",
               f'vllm:request_success_total{{{BY}, finished_reason="stop"}}': "0+14x160"}, "1500m",
              ("KvbudgetOverProvisioned",), 10),
        "e1:8000 never held more than 18% of its KV pool in a day of work.",
        MODEL,
        (
            Scene("a quiet day with a peak",
                  {f"vllm:kv_cache_usage_perc{{{BY}}}": "0.18x70 0.8 0.18x90",
                   f'vllm:request_success_total{{{BY}, finished_reason="stop"}}': "0+100x160"}, "1500m", (), 10),
            Scene("a day with a few hundred requests",
                  {f"vllm:kv_cache_usage_perc{{{BY}}}": "0.18x160",
                   f'vllm:request_success_total{{{BY}, finished_reason="stop"}}': "0+4x160"}, "1500m", (), 10),
            Scene("started five hours ago",
                  {f"vllm:kv_cache_usage_perc{{{BY}}}": "0.18x30",
                   f'vllm:request_success_total{{{BY}, finished_reason="stop"}}': "0+100x30"}, "300m", (), 10),
            Scene("nobody asked anything",
                  {f"vllm:kv_cache_usage_perc{{{BY}}}": "0.1x160",
                   f'vllm:request_success_total{{{BY}, finished_reason="stop"}}': "5x160"}, "1500m", (), 10),
        ),
        "over_provisioned",
    ),
    Alert(
        "KvbudgetOldMetricNames",
        "vllm",
        Severity.INFO,
        "count by (instance) (vllm:gpu_cache_usage_perc) unless on (instance) (vllm:kv_cache_usage_perc)",
        10,
        "{{ $labels.instance }} is a vLLM of before mid-2025, whose pool is called gpu_cache_usage_perc.",
        "These dashboards and rules do not see its pool.",
        "Free: kvbudget diagnose reads the old names; a newer vLLM has the new ones.",
        Scene("a vLLM of 0.8", {'vllm:gpu_cache_usage_perc{instance="e1:8000", model_name="m"}': "0.4x30"}, "13m",
              ("KvbudgetOldMetricNames",)),
        "e1:8000 is a vLLM of before mid-2025, whose pool is called gpu_cache_usage_perc.",
        {"instance": "e1:8000"},
        (
            Scene("a version that has both",
                  {'vllm:gpu_cache_usage_perc{instance="e1:8000", model_name="m"}': "0.4x30",
                   'vllm:kv_cache_usage_perc{instance="e1:8000", model_name="m"}': "0.4x30"}, "13m"),
        ),
    ),
)  # fmt: skip
