"""Decides what /metrics of the embedded engine says: vLLM 0.32's names, labels and buckets (`v1/metrics/loggers.py`).

Gauges are read from the engine when they are asked for, so unlike vLLM's they never lag. As observed on vLLM 0.32,
clients that leave are not counted in `request_success_total`; the engine's own `kvbudget_engine_aborts_total` counts
them.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from kvbudget.edge.engine.replies import Sequence
from kvbudget.edge.engine.settings import EngineSettings
from kvbudget.simulate.paged_engine import FinishReason, PagedEngine

_TTFT_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
    *(160.0, 640.0, 2560.0),
)
_TOKEN_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_REQUEST_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0),
    *(1920.0, 7680.0),
)
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_REASONS = ("stop", "length", "abort", "error", "repetition")
# Labels of cache_config_info that say nothing about this engine; vLLM writes Python's None.
_CACHE_NONE = (
    *("num_gpu_blocks_override", "kv_cache_memory_bytes", "mamba_block_size", "mamba_page_size_padded"),
    *("sliding_window", "kv_cache_layout", "kv_offloading_size", "prefix_cache_retention_interval", "num_cpu_blocks"),
)


class _Histogram:
    """Counts per bucket; an observation costs one bisection, where a client library would take a lock and a scan."""

    __slots__ = ("_bounds", "_counts", "_sum", "name", "text")

    def __init__(self, name: str, text: str, bounds: Iterable[float]) -> None:
        self.name = name
        self.text = text
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def family(self, labels: dict[str, str]) -> HistogramMetricFamily:
        family = HistogramMetricFamily(self.name, self.text, labels=list(labels))
        buckets, seen = [], 0
        for bound, count in zip((*map(float, self._bounds), float("inf")), self._counts, strict=True):
            seen += count
            buckets.append(("+Inf" if bound == float("inf") else str(bound), float(seen)))
        family.add_metric(list(labels.values()), buckets, self._sum)
        return family


class EngineMetrics(Collector):
    """Counts what the driver tells it and reads the rest from the engine at each scrape."""

    def __init__(self, engine: PagedEngine, settings: EngineSettings) -> None:
        self._engine = engine
        self._settings = settings
        self._success = dict.fromkeys(_REASONS, 0)
        lengths = _one_two_five(settings.max_model_len)
        self._ttft = _Histogram("vllm:time_to_first_token_seconds", "Time to first token.", _TTFT_S)
        self._gap = _Histogram("vllm:inter_token_latency_seconds", "Time between two tokens of a request.", _TOKEN_S)
        self._per_token = _Histogram(
            "vllm:request_time_per_output_token_seconds", "Mean time per token after the first.", _TOKEN_S
        )
        self._e2e = _Histogram("vllm:e2e_request_latency_seconds", "Arrival to last token.", _REQUEST_S)
        self._queue = _Histogram("vllm:request_queue_time_seconds", "Arrival to first scheduling.", _REQUEST_S)
        self._inference = _Histogram("vllm:request_inference_time_seconds", "First scheduling to end.", _REQUEST_S)
        self._prefill = _Histogram("vllm:request_prefill_time_seconds", "First scheduling to first token.", _REQUEST_S)
        self._decode = _Histogram("vllm:request_decode_time_seconds", "First token to last token.", _REQUEST_S)
        self._prompt = _Histogram("vllm:request_prompt_tokens", "Prompt tokens per request.", lengths)
        self._generation = _Histogram("vllm:request_generation_tokens", "Generated tokens per request.", lengths)
        self._step = _Histogram("vllm:iteration_tokens_total", "Tokens per step.", _STEP_TOKENS)

    def step(self, scheduled_tokens: int) -> None:
        """A step with that many tokens is over."""
        self._step.observe(scheduled_tokens)

    def first_token(self, seconds: float) -> None:
        """A sequence got its first token, so long after it arrived."""
        self._ttft.observe(seconds)

    def next_token(self, seconds: float) -> None:
        """A sequence got a further token, so long after the one before."""
        self._gap.observe(seconds)

    def finished(self, reason: FinishReason, sequence: Sequence) -> None:
        """A sequence ended by itself; its times are complete."""
        self._success[reason.value] += 1
        self._e2e.observe(sequence.last_token_at - sequence.arrived_at)
        self._queue.observe(sequence.scheduled_at - sequence.arrived_at)
        self._inference.observe(sequence.last_token_at - sequence.scheduled_at)
        self._prefill.observe(sequence.first_token_at - sequence.scheduled_at)
        decode_s = sequence.last_token_at - sequence.first_token_at
        self._decode.observe(decode_s)
        if sequence.tokens > 1:
            self._per_token.observe(decode_s / (sequence.tokens - 1))
        self._prompt.observe(sequence.prompt_tokens)
        self._generation.observe(sequence.tokens)

    def collect(self) -> Iterator[Metric]:
        """All families, as prometheus_client asks for them."""
        engine = self._engine
        labels = {"engine": "0", "model_name": self._settings.served_model_name}
        yield _gauge("vllm:num_requests_running", "Requests in execution.", labels, engine.num_running)
        yield _gauge("vllm:num_requests_waiting", "Requests waiting for room.", labels, engine.num_waiting)
        by_reason = GaugeMetricFamily(
            "vllm:num_requests_waiting_by_reason", "Requests waiting, by reason.", labels=[*labels, "reason"]
        )
        by_reason.add_metric([*labels.values(), "capacity"], engine.num_waiting)
        by_reason.add_metric([*labels.values(), "deferred"], 0)
        yield by_reason
        yield _gauge(
            "vllm:kv_cache_usage_perc", "Share of the KV pool that is held; 1 is all of it.", labels, engine.usage
        )
        yield _counter("vllm:num_preemptions", "Preemptions.", labels, engine.preemptions)
        yield _counter("vllm:prompt_tokens", "Prompt tokens processed.", labels, engine.total_prompt_tokens)
        yield _counter("vllm:generation_tokens", "Tokens generated.", labels, engine.total_generation_tokens)
        yield _counter("vllm:prefix_cache_queries", "Tokens looked up; there is no prefix cache.", labels, 0)
        yield _counter("vllm:prefix_cache_hits", "Tokens found; there is no prefix cache.", labels, 0)
        success = CounterMetricFamily(
            "vllm:request_success", "Requests that ended by themselves.", labels=[*labels, "finished_reason"]
        )
        for reason, count in self._success.items():
            success.add_metric([*labels.values(), reason], count)
        yield success
        for histogram in (
            *(self._ttft, self._gap, self._per_token, self._e2e, self._queue, self._inference, self._prefill),
            *(self._decode, self._prompt, self._generation, self._step),
        ):
            yield histogram.family(labels)
        info = self._cache_config()
        family = GaugeMetricFamily("vllm:cache_config_info", "The KV cache's settings.", labels=list(info))
        family.add_metric(list(info.values()), 1)
        yield family
        yield _counter("kvbudget_engine_aborts", "Sequences that their client gave up.", labels, engine.aborted)

    def _cache_config(self) -> dict[str, str]:
        settings = self._settings
        # As vLLM reports it (`get_kv_cache_capacity`): the null block is counted in.
        concurrency = settings.num_blocks / settings.layout.blocks_for(settings.max_model_len)
        block = str(settings.block_size)
        return {
            "block_size": block,
            "cache_dtype": "auto",
            "cache_hit_alignment_tokens": block,
            "effective_attention_block_size": block,
            "enable_prefix_caching": "False",
            "engine": "0",
            "gpu_memory_utilization": "0.92",
            "hash_block_size": block,
            "is_attention_free": "False",
            "kv_cache_dtype_skip_layers": "[]",
            "kv_cache_max_concurrency": str(concurrency),
            "kv_cache_size_tokens": str(int(concurrency * settings.max_model_len)),
            "kv_offloading_backend": "native",
            "kv_sharing_fast_prefill": "False",
            "mamba_cache_dtype": "auto",
            "mamba_cache_mode": "none",
            "mamba_ssm_cache_dtype": "auto",
            "num_gpu_blocks": str(settings.num_blocks),
            "prefix_caching_hash_algo": "sha256",
            "prefix_match_unit": block,
            "user_specified_block_size": "True",
            **dict.fromkeys(_CACHE_NONE, "None"),
        }


def _gauge(name: str, text: str, labels: dict[str, str], value: float) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family


def _counter(name: str, text: str, labels: dict[str, str], value: float) -> CounterMetricFamily:
    """`name` without `_total`, which the exposition adds."""
    family = CounterMetricFamily(name, text, labels=list(labels))
    family.add_metric(list(labels.values()), value)
    return family


def _one_two_five(largest: int) -> list[float]:
    """1, 2, 5, 10, 20, ... up to `largest`: vLLM's buckets for lengths (`build_1_2_5_buckets`)."""
    buckets: list[float] = []
    decade = 1
    while True:
        for digit in (1, 2, 5):
            if digit * decade > largest:
                return buckets
            buckets.append(digit * decade)
        decade *= 10
