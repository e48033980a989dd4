"""`kvbudget serve`: the gate in front of an engine."""

import argparse
import asyncio
import gc
import json
import logging
import resource
import signal
import sys
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from kvbudget.errors import BadValueError, UnsupportedError
from kvbudget.gate.gate import GateConfig
from kvbudget.gate.policies import Policy
from kvbudget.units import Tokens, parse_length, parse_size

if TYPE_CHECKING:  # --help must work without the libraries of the gate
    from kvbudget.edge.engine.server import RunningEngine
    from kvbudget.edge.service import GateService, ServiceSettings

EPILOG = """examples:
  kvbudget serve --embedded-engine
      try it: the gate before the embedded paged engine
  kvbudget serve --backend http://127.0.0.1:8000
      before a vLLM: pool, context cap and token counts are the engine's own
  kvbudget serve --backend http://127.0.0.1:8000 --tokenizer ./Qwen3-8B --policy worst-case
      count with the model's tokenizer; promise every request its worst case
  kvbudget serve --backend http://127.0.0.1:8000 --tokenizer bound --pool-blocks 2048 --block-size 16
      an engine that tells nothing of itself

exit: 0 stopped by SIGINT or SIGTERM with nothing cut off, 1 requests had to be cut off, 2 wrong usage
"""

_LOWEST = {"pool_blocks": 1, "block_size": 1, "max_num_seqs": 1, "max_num_batched_tokens": 1}
_LOWEST |= {"margin_blocks": 0, "queue_requests": 0, "queue_seconds": 0, "drain_seconds": 0}
_HIGHEST = 10**12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the contract, plus bounds of the edge."""
    where = parser.add_argument_group("engine")
    where.add_argument("--backend", action="append", metavar="URL", help="the engine, http://HOST:PORT")
    where.add_argument("--embedded-engine", action="store_true", help="start the embedded paged engine as the backend")
    where.add_argument(
        "--tokenizer",
        default="engine",
        metavar="PATH|engine|bound",
        help="count prompts by a folder's tokenizer.json and chat template, by the engine's /tokenize (default), "
        "or by the proved upper bound from bytes",
    )
    where.add_argument(
        "--pool-blocks", type=int, metavar="N", help="blocks that requests can use (default: ask the engine)"
    )
    where.add_argument("--block-size", type=int, metavar="N", help="tokens per block (default: ask the engine)")
    where.add_argument("--max-context", metavar="N", help="most tokens of one request (default: ask the engine)")
    where.add_argument(
        "--max-num-seqs", type=int, default=256, metavar="N", help="the engine's own setting (default 256)"
    )
    where.add_argument(
        "--max-num-batched-tokens",
        type=int,
        default=2048,
        metavar="N",
        help="the engine's own setting, bounds the prefill delay (default 2048, vLLM's smallest)",
    )
    admission = parser.add_argument_group("admission")
    admission.add_argument("--policy", default="trajectory", help="worst-case or trajectory (default)")
    admission.add_argument(
        "--margin-blocks", type=int, default=0, metavar="N", help="blocks kept back on purpose (default 0)"
    )
    admission.add_argument(
        "--queue-requests", type=int, default=1024, metavar="N", help="most requests that wait (default 1024)"
    )
    admission.add_argument("--queue-tokens", metavar="N", help="most tokens that wait (default: twice the pool)")
    admission.add_argument("--queue-seconds", type=float, default=30.0, metavar="S", help="longest wait (default 30)")
    admission.add_argument(
        "--default-max-tokens",
        default="2048",
        metavar="N",
        help="promised when a chat request names no max_tokens (default 2048)",
    )
    admission.add_argument(
        "--overload-status", type=int, default=429, metavar="CODE", help="instead of 429: 503 or 529"
    )
    admission.add_argument("--ledger", default="memory", help="memory (one gate); redis:// comes with a later version")
    edge = parser.add_argument_group("edge")
    edge.add_argument("--host", default="127.0.0.1", help="address of the data plane (default 127.0.0.1)")
    edge.add_argument("--port", type=int, default=8800, help="default 8800; 0 takes a free one")
    edge.add_argument("--admin-host", default="127.0.0.1", help="address of metrics and state (default 127.0.0.1)")
    edge.add_argument("--admin-port", type=int, default=8801, help="default 8801; 0 takes a free one")
    edge.add_argument("--max-body", default="16MiB", metavar="SIZE", help="largest request body (default 16MiB)")
    edge.add_argument(
        "--drain-seconds", type=float, default=30.0, metavar="S", help="on SIGTERM, wait so long (default 30)"
    )
    edge.add_argument("--json", action="store_true", help="the ready line as JSON")


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM; 0 when drained, 1 when requests had to be cut off."""
    settings = settings_from(args)
    _raise_file_limit()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        import uvloop

        return uvloop.run(_serve(args, settings))
    except ModuleNotFoundError as error:
        if error.name != "uvloop":
            raise
        logging.getLogger("kvbudget").warning("uvloop is not installed: the gate runs on asyncio, slower")
        return asyncio.run(_serve(args, settings))


def settings_from(args: argparse.Namespace) -> "ServiceSettings":
    """Parse, don't validate twice: flags become settings here and nowhere else. Raises InputError."""
    from kvbudget.edge.http.limits import ServerLimits
    from kvbudget.edge.service import ServiceSettings

    backends = args.backend or []
    if args.embedded_engine == bool(backends):
        raise BadValueError("give either --backend URL or --embedded-engine", fix="see kvbudget serve --help")
    if len(backends) > 1:
        raise UnsupportedError("several --backend: this version serves one engine", fix="run one gate per engine")
    if args.ledger != "memory":
        raise UnsupportedError(f"--ledger {args.ledger}: this version knows memory only", fix="leave the flag away")
    for flag, low in _LOWEST.items():
        value = getattr(args, flag)
        if value is not None and not low <= value <= _HIGHEST:  # nan is neither
            shown = flag.replace("_", "-")
            raise BadValueError(f"--{shown}: {value} is not within {low} and {_HIGHEST}", fix=f"give at least {low}")
    if args.overload_status not in (429, 503, 529):
        raise BadValueError(f"--overload-status: {args.overload_status}", fix="use 429, 503 or 529 (never 408)")
    return ServiceSettings(
        backend_url=_backend_url(backends[0]) if backends else "",
        tokenizer=args.tokenizer,
        pool_blocks=args.pool_blocks,
        block_size=args.block_size,
        gate=GateConfig(
            policy=_policy(args.policy),
            max_num_seqs=args.max_num_seqs,
            max_context=None if args.max_context is None else _tokens(args.max_context, "--max-context"),
            margin_blocks=args.margin_blocks,
            queue_requests=args.queue_requests,
            queue_tokens=None if args.queue_tokens is None else parse_length(args.queue_tokens, "--queue-tokens"),
            queue_ns=int(args.queue_seconds * 1e9),
            prefill_tokens_per_step=_prefill_tokens(args.max_num_batched_tokens, args.max_num_seqs),
        ),
        default_max_tokens=_tokens(args.default_max_tokens, "--default-max-tokens"),
        host=args.host,
        port=args.port,
        admin_host=args.admin_host,
        admin_port=args.admin_port,
        overload_status=args.overload_status,
        server_limits=ServerLimits(body_bytes=parse_size(args.max_body, "--max-body")),
    )


def _raise_file_limit() -> None:
    """As many descriptors as the system lets us have: each request takes two, and most shells allow 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else 1 << 20
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _serve(args: argparse.Namespace, settings: "ServiceSettings") -> int:
    from kvbudget.edge.service import start_service

    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    hurry = asyncio.Event()
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, lambda: hurry.set() if stop.is_set() else stop.set())
    # A terminal that closes, or an operator's habit, must not end the gate.
    told = "SIGHUP: this version reads no configuration file, nothing to reload"
    loop.add_signal_handler(signal.SIGHUP, lambda: logging.getLogger("kvbudget").warning(told))
    engine: "RunningEngine | None" = None  # noqa: UP037 - only known to the type checker
    service: "GateService | None" = None  # noqa: UP037
    try:
        if args.embedded_engine:
            engine = await _start_demo_engine()
            settings = _before_embedded(settings, engine)
        starting = asyncio.create_task(start_service(settings))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not starting.done():  # told to stop before the engine was found
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            return 0
        service = starting.result()
        # What exists now lives to the end: keep the collector from looking at it again and again, and from running
        # after every 700 allocations, which a request alone makes. Flows break their cycles themselves.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        _tell_ready(service, as_json=args.json)
        await stop.wait()
        print("draining; once more to stop at once", file=sys.stderr, flush=True)
        drain = asyncio.create_task(service.drain(args.drain_seconds))
        hurrying = asyncio.create_task(hurry.wait())
        await asyncio.wait({drain, hurrying}, return_when=asyncio.FIRST_COMPLETED)
        hurrying.cancel()
        clean = drain.done() and drain.result()
        drain.cancel()
    finally:
        if service is not None:
            await service.close()
        if engine is not None:
            await engine.close()
    return 0 if clean else 1


async def _start_demo_engine() -> "RunningEngine":
    """The engine of `make run`: large enough to chat with, small enough to see it fill."""
    from kvbudget.edge.engine.server import start_engine
    from kvbudget.edge.engine.settings import EngineSettings

    pool = EngineSettings(num_blocks=513, block_size=16, max_model_len=4096, step_cost_s=0.01, token_cost_s=20e-6)
    return await start_engine(pool)


def _before_embedded(settings: "ServiceSettings", engine: "RunningEngine") -> "ServiceSettings":
    from dataclasses import replace

    gate = replace(
        settings.gate,
        max_num_seqs=engine.settings.max_num_seqs,
        prefill_tokens_per_step=_prefill_tokens(engine.settings.max_num_batched_tokens, engine.settings.max_num_seqs),
    )
    return replace(settings, backend_url=engine.url, gate=gate)


def _tell_ready(service: "GateService", *, as_json: bool) -> None:
    facts, ledger = service.backend.facts, service.gate.ledger
    model = facts.models[0] if facts.models else ""
    ready: dict[str, object] = {
        "ready": True,
        "gate": service.url,
        "admin": service.admin_url,
        "backend": service.backend.url,
        "backend_up": service.gate.backend_up,
        "problem": facts.problem,
        "model": model,
        "usable_blocks": ledger.usable_blocks,
        "block_size": ledger.layout.groups[0].block_size,
        "max_context": service.gate.max_context,
        "max_num_seqs": service.gate.config.max_num_seqs,
        "policy": service.gate.config.policy.value,
        "counter": service.reception.counter.name,
    }
    if as_json:
        print(json.dumps(ready), flush=True)
        return
    ask = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 32}
    body = json.dumps({"model": model} | ask if model else ask)
    verb = "is ready" if service.gate.backend_up else "listens"
    state = (
        f"pool of {ledger.usable_blocks} blocks x {ready['block_size']} tokens, context cap {ready['max_context']}, "
        f"at most {ready['max_num_seqs']} sequences, policy {ready['policy']}, counting by {ready['counter']}"
        if service.gate.backend_up
        else f"NOT UP YET ({facts.problem}); requests get 503 until it is"
    )
    print(
        f"kvbudget {verb}: gate {service.url} before {service.backend.url}, admin {service.admin_url}\n"
        f"  engine: {state}\n"
        f"  try it: curl {service.url}/v1/chat/completions -H 'content-type: application/json' -d '{body}'\n"
        f"  look:   curl {service.admin_url}/v1/state",
        flush=True,
    )


def _policy(name: str) -> Policy:
    try:
        return Policy(name)
    except ValueError:
        known = ", ".join(policy.value for policy in Policy)
        raise UnsupportedError(f"--policy {name[:40]}: this version knows {known}", fix="choose one of them") from None


def _prefill_tokens(max_num_batched_tokens: int, max_num_seqs: int) -> int:
    """What a step leaves for prefill when every other sequence decodes one token."""
    return max(1, max_num_batched_tokens - max_num_seqs)


def _tokens(text: str, flag: str) -> Tokens:
    tokens = parse_length(text, flag)
    if tokens < 1:
        raise BadValueError(f"{flag}: {tokens} is below 1", fix="give at least 1")
    return tokens


def _backend_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise BadValueError(f"--backend {url[:80]}: {error}", fix="write http://HOST:PORT") from None
    if parts.scheme != "http" or not parts.hostname or parts.path not in ("", "/") or parts.query or parts.username:
        raise BadValueError(
            f"--backend {url[:80]}: not a plain http://HOST:PORT", fix="leave path and credentials away"
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"http://{host}:{port or 80}"
