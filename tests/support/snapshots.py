"""Texts of /metrics as engines write them, from a few figures: for tests of readings and findings together."""

from collections.abc import Mapping, Sequence
from typing import Any

BASE: dict[str, Any] = {
    "usage": 0.4, "running": 8, "waiting": 0, "preemptions": 0, "hits": 80_000, "queries": 100_000,
    "prompt": 100_000, "generated": 500_000, "stop": 900, "length": 90, "abort": 1, "blocks": 2_500, "block": 16,
}  # fmt: skip


def vllm(changes: Mapping[str, Any] | None = None, /, *, old_names: bool = False, underscores: bool = False,
         labels: Sequence[tuple[str, str]] = (("engine", "0"), ("model_name", "m")), **more: Any) -> str:  # fmt: skip
    """A short scrape of vLLM. `deferred`, `rejected`, `steps`, `max_tokens`, `cached` are optional series; a figure of
    None leaves its series out."""
    f = {**BASE, **(changes or {}), **more}
    usage = "gpu_cache_usage_perc" if old_names else "kv_cache_usage_perc"
    prefix = "gpu_prefix_cache" if old_names and f.get("old_prefix") else "prefix_cache"
    lines: list[str] = []

    def add(name: str, value: Any, kind: str = "gauge", **extra: str) -> None:
        if value is None:
            return
        told = ",".join(f'{key}="{text}"' for key, text in (*extra.items(), *labels))
        if f"# TYPE vllm:{name} {kind}" not in lines and not name.endswith(("_bucket", "_sum", "_count")):
            lines.append(f"# TYPE vllm:{name} {kind}")
        lines.append(f"vllm:{name}{{{told}}} {value}")

    add(usage, f["usage"])
    add("num_requests_running", f["running"])
    add("num_requests_waiting", f["waiting"])
    add("num_preemptions_total", f["preemptions"], "counter")
    add(f"{prefix}_hits_total", f["hits"], "counter")
    add(f"{prefix}_queries_total", f["queries"], "counter")
    add("prompt_tokens_total", f["prompt"], "counter")
    add("generation_tokens_total", f["generated"], "counter")
    for reason in ("stop", "length", "abort", "error"):
        add("request_success_total", f.get(reason), "counter", finished_reason=reason)
    for reason, count in (f.get("rejected") or {}).items():
        add("admission_rejections_total", count, "counter", reason=reason)
    if f["blocks"] is not None:
        told = {"block_size": f["block"], "cache_dtype": "auto", "num_gpu_blocks": f["blocks"],
                "enable_prefix_caching": f.get("prefix_caching", True), **f.get("cache", {})}  # fmt: skip
        add("cache_config_info", 1, **{key: str(value) for key, value in told.items()})
    if f.get("deferred") is not None:
        add("num_requests_waiting_by_reason", f["waiting"] - f["deferred"], reason="capacity")
        add("num_requests_waiting_by_reason", f["deferred"], reason="deferred")
    for name, key in (("iteration_tokens_total", "steps"), ("request_params_max_tokens", "max_tokens"),
                      ("request_prompt_tokens", "prompts"), ("time_to_first_token_seconds", "ttft"),
                      ("request_queue_time_seconds", "queue")):  # fmt: skip
        for bound, count in (f.get(key) or {}).get("buckets", {}).items():
            add(f"{name}_bucket", count, le=bound)
        if f.get(key):
            add(f"{name}_sum", f[key]["sum"])
            add(f"{name}_count", f[key]["count"])
    add("prompt_tokens_cached_total", f.get("cached"), "counter")
    text = "\n".join(lines) + "\n"
    return text.replace("vllm:", "vllm_") if underscores else text
