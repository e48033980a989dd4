"""What a real vLLM tells of itself is read whole: its /metrics over a window, and the lines of its log."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from kvbudget.edge.observing.observe import Observer, observe

if TYPE_CHECKING:
    from tests.engine.conftest import Engine, EngineFactory, Prompts

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]

REQUESTS, OUTPUT = 4, 16
FLAGS = ("--max-num-seqs=12", "--max-num-batched-tokens=512")


def test_every_field_that_vllm_exports_is_read_with_what_it_was_started_with(
    vllm: "Engine", prompts: "Prompts", eventually: Callable[..., float], figures: list[str]
) -> None:
    prompt = prompts.of(100, "readings")
    before = vllm.metric("request_success_total")

    def work(_: float) -> None:
        """All that passes within the window: the same prompt again and again, so that it is found in the cache."""
        for _request in range(REQUESTS):
            body = {"model": "tiny", "prompt": prompt, "max_tokens": OUTPUT, "ignore_eos": True}
            vllm.http.post(f"{vllm.url}/v1/completions", json=body).raise_for_status()
        eventually(
            lambda: vllm.metric("request_success_total") == before + REQUESTS and vllm.requests_inside() == 0,
            "all requests are counted",
        )

    observation = Observer([vllm.url], 0.5, {}, sleep=work).observe()
    (window,) = observation.engines
    assert (window.engine, window.model, window.where, window.restarted) == ("vllm", "tiny", "", False)
    assert window.version is not None
    assert window.version.startswith("0.32")
    assert window.window_s is not None
    for look in window.looks:
        assert None not in (look.at_s, look.usage, look.running, look.waiting, look.deferred)
    counts = window.counts
    assert counts.generation_tokens == REQUESTS * OUTPUT
    assert counts.prompt_tokens is not None
    assert counts.prompt_tokens > 0
    assert counts.prefix_queries is not None
    assert counts.prefix_hits is not None
    assert 0 < counts.prefix_hits <= counts.prefix_queries
    assert (counts.preemptions, counts.failed, counts.aborted) == (0, 0, 0)
    assert (counts.finished["length"], counts.finished["stop"]) == (REQUESTS, 0)
    assert set(counts.rejected) == {"max_num_queued_reqs", "max_num_queued_tokens"}
    limits = window.limits
    assert limits.pool is not None
    assert (limits.pool.num_blocks, limits.pool.usable_blocks, limits.pool.block_size) == (65, 64, 32)
    assert (limits.pool.tokens, limits.max_model_len, limits.prefix_caching) == (2080, 1024, True)
    assert (limits.smallest_block, limits.largest_block) == (32, 32)
    told = {
        "queue": window.queue_s, "ttft": window.ttft_s, "e2e": window.e2e_s, "prompts": window.prompt_lengths,
        "outputs": window.output_lengths, "max_tokens": window.max_tokens,
    }  # fmt: skip
    assert {name: None if one is None else one.count for name, one in told.items()} == dict.fromkeys(told, REQUESTS)
    assert window.gap_s is not None
    assert window.gap_s.count == REQUESTS * (OUTPUT - 1)
    assert window.max_tokens is not None
    assert window.max_tokens.mean == OUTPUT
    assert window.step_tokens is not None
    assert window.step_tokens.count >= OUTPUT
    assert window.extra["prompt_tokens_local_cache_hit"] == counts.prefix_hits
    assert [line.partition(" ")[0] for line in window.missing] == ["max_num_seqs"]
    assert window.notes == ()
    figures.append(
        f"readings: every field of vLLM's /metrics; {counts.prefix_hits:g} of {counts.prefix_queries:g} tokens cached"
    )


def test_the_log_of_a_real_engine_tells_its_limits_and_its_load(
    start_engine: "EngineFactory", prompts: "Prompts", eventually: Callable[..., float]
) -> None:
    with start_engine("vllm-readings", *FLAGS) as engine:
        body = {"model": "tiny", "prompt": prompts.of(100, "log"), "max_tokens": OUTPUT, "ignore_eos": True}

        def both() -> str:
            return engine.output.read_text(errors="replace") + engine.log.read_text(errors="replace")

        def working() -> bool:
            engine.http.post(f"{engine.url}/v1/completions", json=body).raise_for_status()
            return "generation throughput" in both()

        eventually(working, "a periodic line", within_s=40.0)
        log = engine.log if "generation throughput" in engine.log.read_text(errors="replace") else engine.output
        start = next(
            path for path in (engine.output, engine.log) if "KV cache size" in path.read_text(errors="replace")
        )
        (alone,) = observe([str(log)]).engines
        (window,) = observe([engine.url, str(start)], 0.0).engines
    assert (alone.engine, alone.last.waiting) == ("vllm", 0)
    assert alone.last.usage is not None
    assert alone.counts.generation_tokens
    assert (window.limits.max_num_seqs, window.limits.max_num_batched_tokens) == (12, 512)
    assert window.missing == ()
