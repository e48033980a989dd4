"""What the chart starts, as a process: found by an API server, ready, drained by SIGTERM with nothing cut off."""

import asyncio
import json
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path
from typing import Any

import httpx

from charts import pods, rendered
from fake_api_server import FakeApiServer, endpoint, slice_of
from kvbudget.edge.engine.server import start_engine
from kvbudget.edge.engine.settings import EngineSettings

HERE = {
    "--host=0.0.0.0": "--host=127.0.0.1",
    "--admin-host=0.0.0.0": "--admin-host=127.0.0.1",
    "--port=8800": "--port=0",
    "--admin-port=8801": "--admin-port=0",
}


def arguments(home: Path) -> list[str]:
    """Those of the chart, with ports that are free and folders that are ours."""
    ((_, pod), *_) = pods(rendered(home, "--set", "backends={k8s://llm/vllm}"))
    (container,) = pod["containers"]
    told = [HERE.get(argument, argument).replace("/state/", f"{home}/") for argument in container["args"]]
    assert set(HERE.values()) < set(told)
    return [*container["command"][1:], *told, "--json"]


def test_a_pods_life(tmp_path: Path) -> None:
    command = arguments(tmp_path)

    async def life() -> None:
        api = FakeApiServer()
        url = await api.start()
        engine = await start_engine(EngineSettings(step_cost_s=0.02, num_blocks=257, max_model_len=1024))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "kvbudget", *command, stdout=PIPE, stderr=DEVNULL,
            env={"KVBUDGET_KUBERNETES_API": url, "PATH": "", "PYTHONPATH": ":".join(sys.path)},
        )  # fmt: skip
        try:
            async with asyncio.timeout(90), httpx.AsyncClient(timeout=30) as client:
                assert process.stdout is not None
                ready = json.loads(await process.stdout.readline())
                assert (ready["backend_up"], ready["instances"]) == (False, [])
                gate, admin = ready["gate"], ready["admin"]
                assert await status(client, f"{admin}/health") == 200, "alive, though nobody has been found"
                assert await status(client, f"{admin}/ready") == 503
                api.put(slice_of("vllm-1", int(engine.url.rpartition(":")[2]), endpoint("127.0.0.1")))
                await until(client, f"{admin}/ready", 200)
                long = asyncio.create_task(client.post(f"{gate}/v1/chat/completions", json=ask(150)))
                await until_running(client, f"{admin}/v1/state")
                process.send_signal(signal.SIGTERM)
                await until(client, f"{admin}/ready", 503)
                assert (await client.get(f"{admin}/ready")).json()["problem"] == "draining"
                refused = await client.post(f"{gate}/v1/chat/completions", json=ask(5))
                assert (refused.status_code, "retry-after" in refused.headers) == (503, True), "the port is open still"
                assert (await long).status_code == 200
                assert await process.wait() == 0, "nothing was cut off"
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            await engine.close()
            await api.stop()

    asyncio.run(life())


def ask(tokens: int) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hello"}], "max_tokens": tokens, "ignore_eos": True}


async def status(client: httpx.AsyncClient, url: str) -> int:
    return (await client.get(url)).status_code


async def until(client: httpx.AsyncClient, url: str, wanted: int) -> None:
    while await status(client, url) != wanted:
        await asyncio.sleep(0.02)


async def until_running(client: httpx.AsyncClient, url: str) -> None:
    while not (await client.get(url)).json()["reservations"]:
        await asyncio.sleep(0.02)
