"""What stands between the load and the mock engine: nothing, nginx, the kvbudget gate (with a ledger in Redis as well),
or an aiohttp twin."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import peers
import rig

COMPILED = rig.REPOSITORY / ".cache" / "compiled"
NGINX_INSTALL = "apt-get install --yes nginx-light"
REDIS_INSTALL = "apt-get install --yes redis-server"


@contextmanager
def direct(engine_port: int, core: int, folder: Path) -> Iterator[rig.Stack]:
    yield rig.Stack("direct", engine_port, None)


@contextmanager
def nginx(engine_port: int, core: int, folder: Path) -> Iterator[rig.Stack]:
    """One worker, kept-alive upstream connections, no response buffering, no access log."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        raise rig.RigError(f"nginx is not installed: {NGINX_INSTALL}")
    home = folder / "nginx"
    home.mkdir()
    port = rig.free_port()
    config = home / "nginx.conf"
    config.write_text(_nginx_config(engine_port, port, home))
    command = [program, "-p", str(home), "-c", str(config), "-e", str(home / "error.log")]
    with rig.running(command, core, log=home / "out.log") as process:
        rig.wait_until_answering(port, process, "nginx", home / "error.log")
        yield rig.Stack("nginx", port, process.pid)


def _nginx_config(engine_port: int, port: int, home: Path) -> str:
    user = "user root;\n" if os.geteuid() == 0 else ""
    return f"""{user}daemon off;
worker_processes 1;
pid {home}/nginx.pid;
error_log {home}/error.log warn;
events {{ worker_connections 20000; }}
http {{
  access_log off;
  keepalive_requests 1000000000;
  client_body_temp_path {home}/body; proxy_temp_path {home}/proxy; fastcgi_temp_path {home}/fastcgi;
  uwsgi_temp_path {home}/uwsgi; scgi_temp_path {home}/scgi;
  client_max_body_size 16m;
  client_body_buffer_size 256k;
  upstream engine {{ server 127.0.0.1:{engine_port}; keepalive 512; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://engine;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 300s;
    }}
  }}
}}
"""


@contextmanager
def gate(engine_port: int, core: int, folder: Path) -> Iterator[rig.Stack]:
    """`kvbudget serve` with its ledger on a pool that is never full, prompts counted by the proved bound."""
    with _gate("kvbudget gate", {}, engine_port, core, folder) as stack:
        yield stack


@contextmanager
def compiled_gate(engine_port: int, core: int, folder: Path) -> Iterator[rig.Stack]:
    """The same, its hot path compiled by `make compile`."""
    _check_compiled()
    with _gate("gate, compiled", {"PYTHONPATH": str(COMPILED)}, engine_port, core, folder) as stack:
        yield stack


def _check_compiled() -> None:
    if not (COMPILED / ".ready").exists():
        raise rig.RigError("not compiled: make compile")


@contextmanager
def ledger_gate(engine_port: int, core: int, folder: Path) -> Iterator[rig.Stack]:
    """The same with its pool in a Redis, of which it has a slice. Redis runs on the load's core and is not counted."""
    with (
        _redis(folder / "redis") as url,
        gate_of("gate, Redis ledger", {}, engine_port, core, folder, "--ledger", url) as stack,
    ):
        yield stack


@contextmanager
def compiled_ledger_gate(engine_port: int, core: int, folder: Path) -> Iterator[rig.Stack]:
    """That, compiled."""
    _check_compiled()
    name, environment = "gate, Redis ledger, compiled", {"PYTHONPATH": str(COMPILED)}
    with (
        _redis(folder / "redis-compiled") as url,
        gate_of(name, environment, engine_port, core, folder, "--ledger", url) as stack,
    ):
        yield stack


@contextmanager
def _redis(home: Path) -> Iterator[str]:
    """An empty redis-server that keeps nothing on disk; its address."""
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        raise rig.RigError(f"redis-server is not installed: {REDIS_INSTALL}")
    home.mkdir()
    port = rig.free_port()
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(home)]
    with rig.running(command, rig.choose_cores().load, log=home / "redis.log"):
        yield f"redis://127.0.0.1:{port}"


@contextmanager
def counting_gate(tokenizer: str, compiled: bool, engine_port: int, core: int, folder: Path) -> Iterator[rig.Stack]:
    """A gate that counts with that tokenizer: a model's folder, or `bound`."""
    environment = {"PYTHONPATH": str(COMPILED)} if compiled else {}
    name = f"gate with {Path(tokenizer).name}{', compiled' if compiled else ''}"
    with _gate(name, environment, engine_port, core, folder, tokenizer) as stack:
        yield stack


@contextmanager
def _gate(
    name: str, environment: dict[str, str], engine_port: int, core: int, folder: Path, tokenizer: str = "bound"
) -> Iterator[rig.Stack]:
    with gate_of(name, environment, engine_port, core, folder, "--tokenizer", tokenizer) as stack:
        yield stack


@contextmanager
def gate_of(
    name: str, environment: dict[str, str], engine_port: int, core: int | Sequence[int], folder: Path, *flags: str
) -> Iterator[rig.Stack]:
    """A gate with more flags, on one core or on those."""
    # fmt: off
    command = [
        sys.executable, "-m", "kvbudget", "serve",
        "--backend", f"http://127.0.0.1:{engine_port}", "--tokenizer", "bound",
        "--pool-blocks", str(rig.NUM_GPU_BLOCKS), "--block-size", str(rig.BLOCK_SIZE),
        "--max-context", str(rig.MAX_MODEL_LEN), "--max-num-seqs", "20000",
        "--host", "127.0.0.1", "--port", "0", "--admin-port", "0", "--json", *flags,
    ]
    # fmt: on
    log = folder / f"{name}.log"
    with rig.running(command, core, log=log, pipe=True, environment=environment) as process:
        port, admin = _ports_of_ready_line(process, log)
        rig.wait_until_answering(port, process, "the gate", log)
        yield rig.Stack(name, port, process.pid, admin)


def _ports_of_ready_line(process: subprocess.Popen[str], log: Path) -> tuple[int, str]:
    try:
        ready = json.loads(rig.first_line(process.stdout, process, "kvbudget serve"))
        return int(str(ready["gate"]).rstrip("/").rpartition(":")[2]), str(ready["admin"]).rstrip("/")
    except (rig.RigError, ValueError, KeyError) as error:
        end = log.read_text()[-2000:]
        raise rig.RigError(f"kvbudget serve gave no ready line ({error}); the end of its log:\n{end}") from None


@contextmanager
def aiohttp_twin(engine_port: int, core: int, folder: Path) -> Iterator[rig.Stack]:
    """A plain aiohttp server with an aiohttp client behind it: what a gateway costs that is written the usual way."""
    with _script("aiohttp twin", ["aiohttp_twin.py", str(engine_port)], core, folder) as stack:
        yield stack


@contextmanager
def bare_forwarder(engine_port: int, core: int, folder: Path) -> Iterator[rig.Stack]:
    """The floor: uvloop and httptools, and no gate between them."""
    with _script("bare forwarder", ["bare_forwarder.py", str(engine_port)], core, folder) as stack:
        yield stack


@contextmanager
def blind_forwarder(engine_port: int, core: int, folder: Path) -> Iterator[rig.Stack]:
    """Below the floor: uvloop alone, bytes copied from one connection to its other one."""
    with _script("blind copier", ["bare_forwarder.py", str(engine_port), "--blind"], core, folder) as stack:
        yield stack


@contextmanager
def _script(name: str, words: list[str], core: int, folder: Path) -> Iterator[rig.Stack]:
    log = folder / f"{name}.log"
    command = [sys.executable, str(rig.HERE / words[0]), *words[1:]]
    with rig.running(command, core, log=log, pipe=True) as process:
        port = int(rig.first_line(process.stdout, process, name))
        rig.wait_until_answering(port, process, name, log)
        yield rig.Stack(name, port, process.pid)


STACKS: dict[str, peers.Start] = {
    "direct": direct,
    "nginx": nginx,
    "gate": gate,
    "compiled": compiled_gate,
    "ledger": ledger_gate,
    "compiled-ledger": compiled_ledger_gate,
    "bare": bare_forwarder,
    "blind": blind_forwarder,
    "aiohttp": aiohttp_twin,
    **peers.PEERS,
}
OURS = ("kvbudget gate", "gate, compiled", "gate, Redis ledger", "gate, Redis ledger, compiled")
FLOOR = ("bare forwarder", "blind copier")
ORDER = ("direct", "nginx", *OURS, *FLOOR, *peers.PEERS, "aiohttp twin")
