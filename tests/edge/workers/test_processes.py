"""`kvbudget serve --workers 2` as processes: one port, one pool, one admin port; what dies comes again."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvbudget.edge.engine.server import RunningEngine, start_engine
from kvbudget.edge.engine.settings import EngineSettings
from ledger_servers import running
from worker_gate import Gate, gone, serving

POOL = 64
Scene = Callable[[Gate, RunningEngine], Awaitable[None]]
pytestmark = pytest.mark.timeout(180)


def play(scene: Scene, folder: Path, *flags: str, step_s: float = 0.005, workers: int = 2) -> None:
    async def run() -> None:
        pool = EngineSettings(num_blocks=POOL + 1, block_size=16, max_model_len=1024, step_cost_s=step_s)
        engine = await start_engine(pool)
        try:
            more = ("--backend", engine.url, "--policy", "worst-case", "--tokenizer", "bound", *flags)
            async with serving(folder, *more, workers=workers) as gate:
                await scene(gate, engine)
        finally:
            await engine.close()

    asyncio.run(run())


async def complete(gate: Gate, max_tokens: int = 16, **more: object) -> httpx.Response:
    ask = {"model": "embedded", "prompt": "hi", "max_tokens": max_tokens, "ignore_eos": True, **more}
    return await gate.client.post("/v1/completions", json=ask)


async def stream(gate: Gate, max_tokens: int, began: asyncio.Event | None = None) -> str:
    """The whole stream, or what came of it before it was cut."""
    ask = {"model": "embedded", "prompt": "hi", "max_tokens": max_tokens, "ignore_eos": True, "stream": True}
    text = ""
    try:
        async with gate.client.stream("POST", "/v1/completions", json=ask) as answer:
            async for part in answer.aiter_text():
                text += part
                if began is not None:
                    began.set()
    except httpx.HTTPError:
        pass
    return text


async def reserved_by_worker(gate: Gate) -> list[int]:
    return [one["pool"]["reserved_blocks"] for one in (await gate.json("/v1/state"))["workers"]]


def test_both_serve_one_port_and_one_admin_port_tells_of_both(tmp_path: Path) -> None:
    async def scene(gate: Gate, engine: RunningEngine) -> None:
        assert gate.ready["workers"] == 2
        answers = await asyncio.gather(*[complete(gate) for _ in range(40)])
        assert {answer.status_code for answer in answers} == {200}
        assert (await gate.json("/ready"))["ready"] is True
        metrics = (await gate.admin.get("/metrics")).text.splitlines()
        assert 'kvbudget_requests_total{outcome="finished"} 40.0' in metrics
        assert 'kvbudget_worker_up{worker="0"} 1.0' in metrics
        assert 'kvbudget_worker_up{worker="1"} 1.0' in metrics
        assert "kvbudget_prompt_tokens_count 40.0" in metrics
        state = await gate.json("/v1/state")
        assert [one["worker"] for one in state["workers"]] == [0, 1]
        assert state["pool"]["usable_blocks"] == POOL
        pids = await gate.pids()
        assert await gate.ended() == 0
        await gone(pids)
        assert not list(tmp_path.glob("kvbudget-*"))

    play(scene, tmp_path)


def worst_blocks(engine: RunningEngine) -> int:
    """What all that is in the engine can come to hold."""
    return sum(-(-(one.prompt_tokens + one.max_new_tokens) // 16) for one in engine.engine._requests.values())


def test_under_overload_both_together_never_let_in_more_than_the_pool_and_all_are_served(tmp_path: Path) -> None:
    async def scene(gate: Gate, engine: RunningEngine) -> None:
        most = 0

        async def watch() -> None:
            nonlocal most
            while True:
                most = max(most, worst_blocks(engine))
                await asyncio.sleep(0.001)

        watching = asyncio.create_task(watch())
        answers = await asyncio.gather(*[complete(gate, 20 + 37 * n % 300) for n in range(120)])
        watching.cancel()
        assert {answer.status_code for answer in answers} == {200}
        assert POOL // 2 < most <= POOL
        assert engine.engine.preemptions == 0
        assert await reserved_by_worker(gate) == [0, 0]
        assert await gate.ended() == 0
        lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]  # whole ones, of both
        assert [line["outcome"] for line in lines] == ["finished"] * 120

    play(scene, tmp_path, "--access-log", str(tmp_path / "log"), "--queue-tokens", "1m", step_s=0.001)


def test_a_killed_worker_frees_its_blocks_leaves_the_others_alone_and_is_started_again(tmp_path: Path) -> None:
    async def scene(gate: Gate, engine: RunningEngine) -> None:
        streams = [asyncio.create_task(stream(gate, 150)) for _ in range(6)]  # 60 of 64 blocks, two seconds and more

        async def all_in() -> bool:
            return sum(await reserved_by_worker(gate)) == 60

        await gate.until(all_in)
        reserved = await reserved_by_worker(gate)
        victim = reserved.index(min(blocks for blocks in reserved if blocks)) if min(reserved) else int(not reserved[0])
        await gate.admin.post("/v1/mode", json={"shadow": False})
        os.kill((await gate.pids())[victim], signal.SIGKILL)

        async def again() -> bool:
            stands = (await gate.json("/health"))["workers"]
            return bool(stands[victim]["restarts"] == 1 and all(one["up"] for one in stands))

        texts = await asyncio.gather(*streams)
        whole = [text for text in texts if text.endswith("data: [DONE]\n\n")]
        assert len(whole) == reserved[1 - victim] // 10  # the other's streams, to their end
        await gate.until(again)
        answer = await complete(gate, 16 * POOL - 8)  # all of the pool can be had
        assert answer.status_code == 200, answer.text
        assert f'kvbudget_worker_restarts_total{{worker="{victim}"}} 1.0' in (await gate.admin.get("/metrics")).text
        assert await gate.ended() == 0

    play(scene, tmp_path, "--lease-seconds", "60", step_s=0.02)


def test_what_was_switched_by_hand_holds_for_a_worker_that_takes_another_s_place(tmp_path: Path) -> None:
    async def scene(gate: Gate, engine: RunningEngine) -> None:
        told = (await gate.admin.post("/v1/mode", json={"shadow": True})).json()
        assert told["shadow"] is True
        assert [one["answer"]["shadow"] for one in told["workers"]] == [True, True]
        assert (await gate.admin.post("/v1/mode", json={"shadow": 1})).status_code == 400
        os.kill((await gate.pids())[0], signal.SIGKILL)

        async def again() -> bool:
            workers = (await gate.json("/v1/state"))["workers"]
            return len(workers) == 2 and all(one["shadow"] for one in workers)

        await gate.until(again)
        instance = (await gate.json("/v1/instances"))["instances"][0]["name"]
        drained = await gate.admin.post(f"/v1/instances/{instance}/drain", json={})
        assert [one["answer"]["draining"] for one in drained.json()["workers"]] == [True, True]
        assert (await gate.json("/v1/instances"))["instances"][0]["draining"] is True
        assert (await gate.admin.get("/ready")).status_code == 503

    play(scene, tmp_path)


def test_sigterm_drains_all_without_a_cut_stream(tmp_path: Path) -> None:
    async def scene(gate: Gate, engine: RunningEngine) -> None:
        began = [asyncio.Event() for _ in range(8)]
        streams = [asyncio.create_task(stream(gate, 60, event)) for event in began]
        await asyncio.gather(*[event.wait() for event in began])
        assert all(await reserved_by_worker(gate)), "both should have some"
        pids = await gate.pids()
        gate.process.send_signal(signal.SIGTERM)
        texts = await asyncio.gather(*streams)
        assert all(text.endswith("data: [DONE]\n\n") for text in texts)
        assert await asyncio.wait_for(gate.process.wait(), 30) == 0
        await gone(pids)

    play(scene, tmp_path, step_s=0.02, workers=2)


def test_a_second_signal_ends_all_at_once_and_says_so_by_the_exit_code(tmp_path: Path) -> None:
    async def scene(gate: Gate, engine: RunningEngine) -> None:
        began = asyncio.Event()
        cut = asyncio.create_task(stream(gate, 900, began))
        await began.wait()
        gate.process.send_signal(signal.SIGTERM)
        await gate.told("draining")
        assert await gate.ended() == 1
        assert "[DONE]" not in await cut

    play(scene, tmp_path, step_s=0.05)


def test_a_reload_goes_to_all_or_to_none(tmp_path: Path) -> None:
    config = tmp_path / "kvbudget.toml"

    def write(text: str) -> None:
        config.write_text(text)

    async def caps(gate: Gate) -> set[int]:
        return {one["pool"]["max_context"] for one in (await gate.json("/v1/state"))["workers"]}

    async def scene(gate: Gate, engine: RunningEngine) -> None:
        assert await caps(gate) == {800}
        write(BUDGET.format(cap='"nonsense"'))
        gate.process.send_signal(signal.SIGHUP)
        await gate.told("the old settings stay in all workers")
        refused = await gate.admin.post("/v1/reload", json={})
        assert refused.status_code == 400
        assert await caps(gate) == {800}
        write(BUDGET.format(cap=700))
        gate.process.send_signal(signal.SIGHUP)

        async def taken() -> bool:
            return await caps(gate) == {700}

        await gate.until(taken)
        write(BUDGET.format(cap=600))
        told = (await gate.admin.post("/v1/reload", json={})).json()
        assert told["changed"] == ["max_context"]
        assert [one["status"] for one in told["workers"]] == [200, 200]
        assert await caps(gate) == {600}

    write(BUDGET.format(cap=800))
    play(scene, tmp_path, "--config", str(config))


BUDGET = """schema = "kvbudget.budget/1"
[gate]
max-context = {cap}
"""


def test_no_worker_outlives_its_parent(tmp_path: Path) -> None:
    async def scene(gate: Gate, engine: RunningEngine) -> None:
        pids = await gate.pids()
        assert await gate.ended(signal.SIGKILL) == -signal.SIGKILL
        await gone(pids)

    play(scene, tmp_path)


def test_a_worker_s_pages_can_be_chosen_and_say_whose_they_are(tmp_path: Path) -> None:
    async def scene(gate: Gate, engine: RunningEngine) -> None:
        page = await gate.admin.get("/live", params={"worker": 1})
        assert "Worker 1 of 2" in page.text
        assert page.headers["content-security-policy"]
        live = await gate.admin.get("/api/live")  # with the cookie of that page
        assert live.headers["x-kvbudget-worker"] == "1"
        assert live.json()["schema"] == "kvbudget.live/1"
        async with gate.admin.stream("GET", "/api/live/stream") as events:
            async for line in events.aiter_lines():
                if line.startswith("data: "):
                    break
        assert (await gate.admin.get("/ledger")).status_code == 200
        assert (await gate.admin.get("/nothing")).status_code == 404
        root = await gate.admin.get("/", headers={"accept": "text/html"}, follow_redirects=False)
        assert root.headers["location"] == "/live"

    play(scene, tmp_path)


def test_a_port_that_another_gate_has_is_refused(tmp_path: Path) -> None:
    async def scene(gate: Gate, engine: RunningEngine) -> None:
        port = gate.ready["gate"].rpartition(":")[2]
        for workers in ("2", "1"):
            command = [sys.executable, "-m", "kvbudget", "serve", "--backend", engine.url, "--workers", workers]
            other = await asyncio.create_subprocess_exec(
                *command, "--port", port, "--admin-port", "0", stderr=asyncio.subprocess.PIPE
            )
            _, errors = await asyncio.wait_for(other.communicate(), 60)
            assert other.returncode == 2
            assert b"cannot listen on" in errors

    play(scene, tmp_path)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--tokenizer", "/nowhere/at/all"], "/nowhere/at/all"),
        (["--host", "unix:/run/gate.sock"], "for TCP only"),
        (["--workers", "1000"], "above 256"),
        (["--workers", "0"], "is not within 1"),
        (["--config", "/nowhere/kvbudget.toml"], "/nowhere/kvbudget.toml"),
    ],
)
def test_what_no_worker_can_serve_with_ends_all_and_is_said_once(flags: list[str], told: str) -> None:
    command = [sys.executable, "-m", "kvbudget", "serve", "--backend", "http://127.0.0.1:9", "--workers", "2"]
    ended = subprocess.run(
        [*command, "--port", "0", "--admin-port", "0", *flags], capture_output=True, text=True, timeout=100, check=False
    )
    assert ended.returncode == 2
    assert ended.stderr.count(told) == 1, ended.stderr


def test_the_embedded_engine_runs_once_for_all(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path, "--embedded-engine") as gate:
            answers: list[Any] = await asyncio.gather(*[complete(gate, 4) for _ in range(10)])
            assert {answer.status_code for answer in answers} == {200}
            instances = [one["backend"]["url"] for one in (await gate.json("/v1/state"))["workers"]]
            assert len(set(instances)) == 1
            assert await gate.ended(signal.SIGINT) == 0

    asyncio.run(run())


def test_with_a_shared_ledger_elsewhere_the_workers_go_by_that(tmp_path: Path) -> None:
    async def scene(gate: Gate, engine: RunningEngine) -> None:
        answers = await asyncio.gather(*[complete(gate, 20 + 37 * n % 300) for n in range(40)])
        assert {answer.status_code for answer in answers} == {200}
        assert engine.engine.preemptions == 0
        metrics = (await gate.admin.get("/metrics")).text
        assert "kvbudget_ledger_calls_total" not in metrics  # those are of a ledger of one's own
        assert "kvbudget_ledger_errors_total 0.0" in metrics
        server.stop()  # for good: within the lease the gate refuses

        async def refused() -> bool:
            return (await complete(gate)).status_code == 503

        await gate.until(refused)
        assert await gate.ended() == 0

    with running("valkey", tmp_path / "valkey") as server:
        play(
            scene,
            tmp_path,
            "--ledger",
            f"unix://{server.socket_path}",
            "--lease-seconds",
            "2",
            "--queue-tokens",
            "1m",
            step_s=0.001,
        )


def test_signing_out_at_the_one_admin_port_ends_what_a_worker_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVBUDGET_ADMIN_TOKEN", "s3cret")

    async def scene(gate: Gate, engine: RunningEngine) -> None:
        assert (await gate.admin.post("/login", json={"token": "s3cret"})).status_code == 200
        assert await gate.json("/api/pages") == {"pages": ["/ledger", "/simulate", "/live"], "session": True}
        forecast = await gate.json("/v1/forecast")
        assert forecast["instances"][0]["drain"]["free_blocks"] == POOL
        async with asyncio.timeout(30), gate.admin.stream("GET", "/api/live/stream") as answer:
            looks = 0
            async for line in answer.aiter_lines():  # to its end, which comes by signing out
                looks += line == "event: now"
                if looks == 1 and line == "event: now":
                    assert (await gate.admin.post("/logout", json={})).status_code == 200
            assert looks
        assert await gate.ended() == 0
        assert "Traceback" not in gate.errors.read_text()

    play(scene, tmp_path)
