"""Saved files and logs: what each is, is decided by what is in it."""

import asyncio
import gzip
import os
import time
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from kvbudget.edge.control.admin import GAUGES
from kvbudget.edge.engine.server import start_engine
from kvbudget.edge.engine.settings import EngineSettings
from kvbudget.edge.metrics import GateMetrics
from kvbudget.edge.observing.observe import Observer, observe
from kvbudget.edge.service import ServiceSettings, start_service
from kvbudget.engines.metrics import gate
from kvbudget.engines.window import Observation
from kvbudget.errors import InputError

OLDER = (
    'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5\nvllm:num_requests_running{engine="0",model_name="m"} 3\n'
    'vllm:num_preemptions_total{engine="0",model_name="m"} '
    '100\nvllm:prompt_tokens_total{engine="0",model_name="m"} 1000\n'
)
NEWER = OLDER.replace("} 0.5", "} 0.75").replace("} 100\n", "} 104\n").replace("} 1000\n", "} 1500\n")
GATE = 'kvbudget_pool_blocks{instance="a"} 64\nkvbudget_queue_requests 2\n'
LOG = (
    "INFO 03-19 07:00:01 [utils.py:326] non-default args: {'model': 'm', 'max_num_seqs': 12, 'block_size': 32}\n"
    "INFO 03-19 07:00:09 [kv_cache_utils.py:849] GPU KV cache size: 2,080 tokens\n"
)
SERVES = (
    "INFO 03-19 07:08:57 [loggers.py:259] Engine 000: Avg prompt throughput: 5.0 tokens/s, Avg generation throughput: "
    "1.0 tokens/s, Running: 4 reqs, Waiting: 1 reqs, GPU KV cache usage: 64.6%, Prefix cache hit rate: 24.0%\n"
)


def put(folder: Path, **texts: str) -> list[str]:
    for name, text in texts.items():
        (folder / name).write_text(text)
    return [str(folder / name) for name in texts]


def test_two_saved_scrapes_are_one_window_in_either_order(tmp_path: Path) -> None:
    older, newer = put(tmp_path, a=OLDER, b=NEWER)
    for sources in ((older, newer), (newer, older)):
        (window,) = observe(sources, 60.0).engines
        assert (window.window_s, window.counts.preemptions, window.last.usage) == (60, 4, 0.75)
        assert any("newer first" in note for note in window.notes) == (sources[0] == newer)
    assert observe((older, newer)).engines[0].window_s is None
    assert observe((newer,)).engines[0].since_start


def test_a_third_scrape_makes_a_longer_window(tmp_path: Path) -> None:
    sources = put(tmp_path, a=OLDER, b=NEWER, c=NEWER.replace("} 104\n", "} 110\n"))
    (window,) = observe(sources, 60.0).engines
    assert [look.at_s for look in window.looks] == [0, 30, 60]
    assert window.counts.preemptions == 10


def test_one_file_given_twice_is_one_scrape_and_shows_no_standstill(tmp_path: Path) -> None:
    (path,) = put(tmp_path, older=OLDER)
    (tmp_path / "link").symlink_to(path)
    for twin in (path, str(tmp_path / "." / "older"), str(tmp_path / "link")):
        seen = observe([path, twin], environment={})
        assert len(seen.engines[0].looks) == 1
        assert "given twice" in seen.problems[0]


def test_a_million_tiny_gzip_members_are_read_in_the_time_of_their_bytes(tmp_path: Path) -> None:
    path = tmp_path / "members.gz"
    path.write_bytes(gzip.compress(OLDER.encode()) + gzip.compress(b"a 1\n") * 400_000)
    began = time.process_time()
    assert observe([str(path)], environment={}).engines[0].last.running == 3
    assert time.process_time() - began < 20


def test_saved_scrapes_of_others_stand_alone(tmp_path: Path) -> None:
    sources = put(tmp_path, a=OLDER, g=GATE, n=OLDER.replace('"m"', '"n"'), s="sglang:token_usage 0.5\n", b=NEWER)
    observation = observe(sources, 60.0)
    assert [(window.engine, window.since_start) for window in observation.engines] == [
        ("vllm", False), ("vllm", True), ("sglang", True),
    ]  # fmt: skip
    assert [one.instance for one in observation.gates] == ["a"]
    assert len(observation.sources) == 4


def test_gzip_and_pipes_are_read(tmp_path: Path) -> None:
    packed = tmp_path / "a.prom.gz"
    packed.write_bytes(gzip.compress(OLDER.encode()) + gzip.compress(b"# more\n"))
    assert observe([str(packed)]).engines[0].last.usage == 0.5
    packed.write_bytes(gzip.compress(OLDER.encode())[:-6])
    assert observe([str(packed)]).engines[0].last.usage == 0.5
    reading, writing = os.pipe()
    os.write(writing, OLDER.encode())
    os.close(writing)
    try:
        assert observe([f"/dev/fd/{reading}"]).engines[0].last.usage == 0.5
    finally:
        os.close(reading)


def test_a_log_is_known_by_its_lines_and_completes_metrics(tmp_path: Path) -> None:
    log, start, metrics = put(tmp_path, log=LOG + SERVES, start=LOG, prom=NEWER)
    (alone,) = observe([log]).engines
    assert (alone.last.running, alone.limits.max_num_seqs) == (4, 12)
    for other in (log, start):
        (window,) = observe([metrics, other]).engines
        assert (window.last.usage, window.limits.max_num_seqs, window.limits.smallest_block) == (0.75, 12, 32)
        assert window.limits.pool is not None
        assert not any(line.startswith("max_num_seqs") for line in window.missing)
    assert len(observe([metrics, log]).sources) == 2


def test_logs_of_two_engines_with_other_limits_complete_nothing(tmp_path: Path) -> None:
    sources = put(tmp_path, prom=NEWER, one=LOG, two=LOG.replace("12", "24"))
    assert observe(sources).engines[0].limits.max_num_seqs is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hello\nworld\n", "begins with 'hello'"),
        ("", "is empty"),
        ("\0\1\2", "no text"),
        ("# HELP node_load1 x\nnode_load1 5\n", "no metric of an engine"),
        ("[core]\nkey = 1\n", "neither metrics nor the log"),
    ],
)
def test_what_is_no_source_is_refused_with_what_was_seen(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        observe(put(tmp_path, x=text))


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    for source in (str(tmp_path), str(tmp_path / "missing"), "ftp://x/metrics"):
        with pytest.raises(InputError):
            observe([source])
    (good,) = put(tmp_path, a=OLDER)
    observation = observe([good, str(tmp_path / "missing")])
    assert len(observation.engines) == 1
    assert "missing" in observation.problems[0]


def test_the_embedded_engine_is_observed_while_it_works() -> None:
    """It has vLLM's names; what passes while the observer waits is what its clients ask."""

    def watched(url: str) -> Observation:
        with httpx.Client(base_url=url) as client:

            def work(_: float) -> None:
                client.post("/v1/completions", json={"prompt": "hello", "max_tokens": 5}).raise_for_status()

            return Observer([url], 0.01, {}, sleep=work).observe()

    async def main() -> Observation:
        settings = EngineSettings(num_blocks=65, block_size=32, max_model_len=1024, served_model_name="tiny")
        running = await start_engine(settings)
        try:
            return await asyncio.to_thread(watched, running.url)
        finally:
            await running.close()

    (window,) = asyncio.run(main()).engines
    assert (window.engine, window.model, window.last.running, window.last.waiting) == ("vllm", "tiny", 0, 0)
    pool = window.limits.pool
    assert pool is not None
    assert (pool.num_blocks, pool.block_size, window.limits.max_model_len) == (65, 32, 1024)
    assert window.limits.prefix_caching is False
    assert (window.counts.generation_tokens, window.counts.finished["length"], window.counts.aborted) == (5, 1, 0)
    assert window.output_lengths is not None
    assert (window.output_lengths.count, window.output_lengths.total) == (1, 5)


def test_the_gate_exports_every_name_that_is_read_of_it() -> None:
    registry = CollectorRegistry(auto_describe=False)
    metrics = GateMetrics()
    metrics.shadow_refusals["queue_full"] = 1
    registry.register(metrics)
    exported = generate_latest(registry).decode()
    for name in gate.COUNTERS:
        assert f"\n{name}" in exported
    assert set(gate.GAUGES) <= set(GAUGES)


def test_where_a_gate_takes_requests_its_admin_port_is_named() -> None:
    async def run() -> str:
        settings = ServiceSettings("http://127.0.0.1:1", port=0, admin_port=0, tokenizer="bound")
        service = await start_service(settings, look_for_s=0)
        try:
            with pytest.raises(InputError) as refused:
                await asyncio.to_thread(Observer([service.url], 0.01, {}).observe)
            return str(refused.value)
        finally:
            await service.close()

    told = asyncio.run(run())
    assert "this is where a gate takes requests" in told
    assert "http://HOST:8801/metrics" in told
