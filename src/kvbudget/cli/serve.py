"""`kvbudget serve`: the gate in front of an engine."""

import argparse
import asyncio
import gc
import json
import logging
import resource
import signal
import sys
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import urlsplit

from kvbudget.errors import BadConfigError, BadValueError, InputError, UnsupportedError
from kvbudget.gate.gate import GateConfig
from kvbudget.gate.policies import Policy
from kvbudget.units import Tokens, parse_length, parse_size

if TYPE_CHECKING:  # --help must work without the libraries of the gate
    from kvbudget.edge.engine.server import RunningEngine
    from kvbudget.edge.service import GateService, ServiceSettings
    from kvbudget.pool.groups import Layout

EPILOG = """examples:
  kvbudget serve --embedded-engine
      try it: the gate before the embedded paged engine
  kvbudget serve --backend http://127.0.0.1:8000
      before a vLLM: pool, context cap and token counts are the engine's own
  kvbudget serve --backend http://127.0.0.1:8000 --tokenizer ./Qwen3-8B --policy worst-case
      count with the model's tokenizer; promise every request its worst case
  kvbudget serve --backend http://127.0.0.1:8000 --tokenizer bound --pool-blocks 2048 --block-size 16
      an engine that tells nothing of itself
  kvbudget serve --config kvbudget.toml --backend http://127.0.0.1:8000
      pool, cap and limits of the reviewed budget; after an edit of its [gate]: kill -HUP

exit: 0 stopped by SIGINT or SIGTERM with nothing cut off, 1 requests had to be cut off, 2 wrong usage
"""

_LOWEST = {"pool_blocks": 1, "block_size": 1, "max_num_seqs": 1, "max_num_batched_tokens": 1}
_LOWEST |= {"margin_blocks": 0, "queue_requests": 0, "queue_seconds": 0, "drain_seconds": 0}
_HIGHEST = 10**12
# What holds where neither a flag nor [gate] of the file says anything else: flags before file before these.
_DEFAULTS = {
    "backend": None,
    "embedded_engine": False,
    "tokenizer": "engine",
    "pool_blocks": None,
    "block_size": None,
    "max_context": None,
    "max_num_seqs": 256,
    "max_num_batched_tokens": 2048,
    "policy": "trajectory",
    "margin_blocks": 0,
    "queue_requests": 1024,
    "queue_tokens": None,
    "queue_seconds": 30.0,
    "default_max_tokens": "2048",
    "overload_status": 429,
    "ledger": "memory",
    "host": "127.0.0.1",
    "port": 8800,
    "admin_host": "127.0.0.1",
    "admin_port": 8801,
    "max_body": "16MiB",
    "drain_seconds": 30.0,
    "json": False,
    "config": None,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of the contract, plus bounds of the edge. What is not given stays out of the namespace: see _DEFAULTS."""
    parser.argument_default = argparse.SUPPRESS
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="read [gate] of this kvbudget.toml; flags given here win; SIGHUP reads it again",
    )
    where = parser.add_argument_group("engine")
    where.add_argument("--backend", action="append", metavar="URL", help="the engine, http://HOST:PORT")
    where.add_argument("--embedded-engine", action="store_true", help="start the embedded paged engine as the backend")
    where.add_argument(
        "--tokenizer",
        metavar="PATH|engine|bound",
        help="count prompts by a folder's tokenizer.json and chat template, by the engine's /tokenize (default), "
        "or by the proved upper bound from bytes",
    )
    where.add_argument(
        "--pool-blocks", type=int, metavar="N", help="blocks that requests can use (default: ask the engine)"
    )
    where.add_argument("--block-size", type=int, metavar="N", help="tokens per block (default: ask the engine)")
    where.add_argument("--max-context", metavar="N", help="most tokens of one request (default: ask the engine)")
    where.add_argument("--max-num-seqs", type=int, metavar="N", help="the engine's own setting (default 256)")
    where.add_argument(
        "--max-num-batched-tokens",
        type=int,
        metavar="N",
        help="the engine's own setting, bounds the prefill delay (default 2048, vLLM's smallest)",
    )
    admission = parser.add_argument_group("admission")
    admission.add_argument("--policy", help="worst-case or trajectory (default)")
    admission.add_argument("--margin-blocks", type=int, metavar="N", help="blocks kept back on purpose (default 0)")
    admission.add_argument("--queue-requests", type=int, metavar="N", help="most requests that wait (default 1024)")
    admission.add_argument("--queue-tokens", metavar="N", help="most tokens that wait (default: twice the pool)")
    admission.add_argument("--queue-seconds", type=float, metavar="S", help="longest wait (default 30)")
    admission.add_argument(
        "--default-max-tokens",
        metavar="N",
        help="promised when a chat request names no max_tokens (default 2048)",
    )
    admission.add_argument("--overload-status", type=int, metavar="CODE", help="instead of 429: 503 or 529")
    admission.add_argument("--ledger", help="memory (one gate); redis:// comes with a later version")
    edge = parser.add_argument_group("edge")
    edge.add_argument("--host", help="address of the data plane (default 127.0.0.1)")
    edge.add_argument("--port", type=int, help="default 8800; 0 takes a free one")
    edge.add_argument("--admin-host", help="address of metrics and state (default 127.0.0.1)")
    edge.add_argument("--admin-port", type=int, help="default 8801; 0 takes a free one")
    edge.add_argument("--max-body", metavar="SIZE", help="largest request body (default 16MiB)")
    edge.add_argument("--drain-seconds", type=float, metavar="S", help="on SIGTERM, wait so long (default 30)")
    edge.add_argument("--json", action="store_true", help="the ready line as JSON")


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM; 0 when drained, 1 when requests had to be cut off."""
    given = args
    args = completed(given)
    settings = settings_from(given)
    _raise_file_limit()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        import uvloop

        return uvloop.run(_serve(args, settings, given))
    except ModuleNotFoundError as error:
        if error.name != "uvloop":
            raise
        logging.getLogger("kvbudget").warning("uvloop is not installed: the gate runs on asyncio, slower")
        return asyncio.run(_serve(args, settings, given))


def completed(given: argparse.Namespace) -> argparse.Namespace:
    """Every flag with its value: what was given, else what [gate] of --config says, else the default.

    Raises BadConfigError for a file that cannot be read, is no budget, or whose [gate] holds what is no flag.
    """
    flags, path = vars(given), getattr(given, "config", None)
    from_file = _flags_of_file(path) if path is not None else {}
    if "backend" in flags or "embedded_engine" in flags:  # the one given here stands before another engine
        from_file = {name: value for name, value in from_file.items() if name not in ("backend", "embedded_engine")}
    return argparse.Namespace(**{**_DEFAULTS, **from_file, **flags})


def settings_from(given: argparse.Namespace) -> "ServiceSettings":
    """Parse, don't validate twice: flags become settings here and nowhere else. Raises InputError."""
    args = completed(given)
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
        layout=_layout(given, args),
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


def _layout(given: argparse.Namespace, args: argparse.Namespace) -> "Layout | None":
    """The groups of the budget, where its model has more than one kind of them; a --block-size given means one."""
    path = getattr(given, "config", None)
    if path is None or args.block_size is not None:
        return None
    from kvbudget.edge.budget.file import read_budget
    from kvbudget.planner.budget.record import layout_of

    return layout_of(read_budget(path))


def _flags_of_file(path: str) -> dict[str, object]:
    """[gate] as flags, judged by the same parser as the command line."""
    from kvbudget.edge.budget.file import read_budget
    from kvbudget.planner.budget.record import gate_settings

    def refuse(message: str) -> NoReturn:
        raise BadConfigError(f"{path[-200:]}: [gate]: {message}", fix="kvbudget serve --help names the flags")

    parser = argparse.ArgumentParser(prog="[gate]", add_help=False, allow_abbrev=False)
    add_arguments(parser)
    parser.error = refuse  # type: ignore[method-assign]
    arguments = []
    for name, value in gate_settings(read_budget(path)).items():
        flag = "--" + name.replace("_", "-")
        if name == "config" or isinstance(value, dict):
            refuse(f"{name} cannot stand there")
        if isinstance(value, bool):
            arguments += [flag] if value else []
        else:
            arguments += [f"{flag}={entry}" for entry in (value if isinstance(value, list) else [value])]
    return vars(parser.parse_args(arguments))


def _raise_file_limit() -> None:
    """As many descriptors as the system lets us have: each request takes two, and most shells allow 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else 1 << 20
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _serve(args: argparse.Namespace, settings: "ServiceSettings", given: argparse.Namespace) -> int:
    from kvbudget.edge.service import start_service

    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    hurry = asyncio.Event()
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, lambda: hurry.set() if stop.is_set() else stop.set())
    # A terminal that closes, or an operator's habit, must not end the gate.
    loop.add_signal_handler(signal.SIGHUP, lambda: _reload(service, engine, given))
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


def _reload(service: "GateService | None", engine: "RunningEngine | None", given: argparse.Namespace) -> None:
    """SIGHUP: take over what the file says now. A bad file, or one that cannot be read, changes nothing."""
    from kvbudget.edge.budget.reload import take_over

    log = logging.getLogger("kvbudget")
    path = getattr(given, "config", None)
    if path is None:
        log.warning("SIGHUP: started without --config, nothing to reload")
    elif service is None:
        log.warning("SIGHUP: still starting; %s was read a moment ago", path)
    else:
        try:
            settings = settings_from(given)
        except InputError as error:
            log.error("SIGHUP: %s is not taken, the old settings stay: %s", path, error)
            return
        if engine is not None:
            settings = _before_embedded(settings, engine)
        changed, later = take_over(service, settings)
        if changed:
            log.info("SIGHUP: %s taken: %s", path, ", ".join(changed))
        if later:
            log.warning("SIGHUP: these need a restart, the old ones stay: %s", ", ".join(later))
        if not changed and not later:
            log.info("SIGHUP: %s says what is in force, nothing to change", path)


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
