"""`kvbudget serve`: the gate in front of an engine."""

import argparse
import asyncio
import gc
import importlib
import logging
import resource
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple

from kvbudget.cli.interrupts import ending_at_once
from kvbudget.cli.serving.flags import add_flags
from kvbudget.cli.serving.ready_line import Ready, ReadyLine, Told, ready_of, tell_when_ready, told_by_gate
from kvbudget.cli.serving.settings import budget_given, completed, settings_from, settings_of
from kvbudget.cli.serving.worker import Embedded, Worker, before_embedded
from kvbudget.errors import BadValueError, InputError, printable

if TYPE_CHECKING:  # --help must work without the libraries of the gate
    from kvbudget.edge.engine.server import RunningEngine
    from kvbudget.edge.service import GateService
    from kvbudget.edge.service_settings import ServiceSettings

EPILOG = """examples:
  kvbudget serve --embedded-engine
      try it: the gate before the embedded paged engine
  kvbudget serve --backend http://127.0.0.1:8000
      before a vLLM: pool, context cap and token counts are the engine's own
  kvbudget serve --backend http://10.0.0.7:8000 --backend http://10.0.0.8:8000
      before two: each with its own pool; models by name, long requests only where they fit
  kvbudget serve --backend k8s://llm/vllm:8000
      before the ready pods of a Kubernetes service: they come and go while the gate runs
  kvbudget serve --backend http://127.0.0.1:8000 --tokenizer ./Qwen3-8B --policy worst-case
      count with the model's tokenizer; promise every request its worst case
  kvbudget serve --backend http://127.0.0.1:8000 --tokenizer bound --pool-blocks 2048 --block-size 16
      an engine that tells nothing of itself
  kvbudget serve --config kvbudget.toml --backend http://127.0.0.1:8000
      pool, cap and limits of the reviewed budget; after an edit of its [gate]: kill -HUP

exit: 0 stopped by SIGINT or SIGTERM with nothing cut off, 1 requests had to be cut off, 2 wrong usage
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    add_flags(parser)


class Kind(NamedTuple):
    """What kind of gate runs. `prepare`: what of the settings it cannot use as they are; `start`: a running one, before
    an engine or while none is found; `told`: its ready line."""

    prepare: "Callable[[ServiceSettings], ServiceSettings]"
    start: "Callable[[ServiceSettings, Worker | None], Awaitable[GateService]]"
    told: Callable[[Ready], Told]


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM; 0 when drained, 1 when requests had to be cut off."""
    return run_gate(args, lambda _: HTTP)


def run_gate(given: argparse.Namespace, kind_of: "Callable[[argparse.Namespace], Kind]") -> int:
    """As `run`, of any kind of gate; `kind_of` gets the flags, all of them with a value."""
    log_to_stderr()
    budget = budget_given(given)
    args = completed(given, budget)
    kind = kind_of(args)
    settings = kind.prepare(settings_of(args, budget))
    if settings.workers > 1:
        from kvbudget.cli.serving.parent import serve_with_workers

        _raise_file_limit()
        return _run(serve_with_workers(args, settings, given))
    return _serve_here(args, settings, given, kind, None)


def serve_as(worker: Worker, args: argparse.Namespace, settings: "ServiceSettings", given: argparse.Namespace) -> int:
    """Serve with this process, which is one of several."""
    return _serve_here(args, settings, given, HTTP, worker)


def _serve_here(
    args: argparse.Namespace,
    settings: "ServiceSettings",
    given: argparse.Namespace,
    kind: Kind,
    worker: Worker | None,
) -> int:
    with ending_at_once():  # all that serving needs, before the loop runs
        importlib.import_module("kvbudget.edge.service")
        from kvbudget.edge.http.memory import keep_freed_memory

    _raise_file_limit()
    keep_freed_memory()
    return _run(_serve(args, settings, given, kind, worker))


def _run(serving: Coroutine[Any, Any, int]) -> int:
    try:
        with ending_at_once():
            import uvloop
    except ModuleNotFoundError as error:
        if error.name != "uvloop":
            raise
        logging.getLogger("kvbudget").warning("uvloop is not installed: the gate runs on asyncio, slower")
        return asyncio.run(serving)
    return uvloop.run(serving)


class _PrintableFormatter(logging.Formatter):
    """What files, engines and clients tell is logged as text that steers no terminal, and begins no line of the log:
    what goes on in another line, as a traceback does, is indented."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record)).replace("\n", "\n  ")


def log_to_stderr(who: str = "") -> None:
    """`who`: which process tells it, where there are several."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_PrintableFormatter(f"%(asctime)s %(levelname)s %(name)s: {who}%(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def _raise_file_limit() -> None:
    """As many descriptors as the system lets us have: each request takes two, and most shells allow 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else 1 << 20
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _start(settings: "ServiceSettings", worker: Worker | None) -> "GateService":
    from kvbudget.edge.service import start_service

    store, number = (None, None) if worker is None else (worker.store(), worker.number)
    return await start_service(settings, store=store, worker=number)


async def _serve(
    args: argparse.Namespace,
    settings: "ServiceSettings",
    given: argparse.Namespace,
    kind: Kind,
    worker: Worker | None,
) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    hurry = asyncio.Event()
    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, lambda: hurry.set() if stop.is_set() else stop.set())
    # A terminal that closes, or an operator's habit, must not end the gate.
    again = asyncio.Event()  # a SIGHUP that came too early
    loop.add_signal_handler(signal.SIGHUP, lambda: _reload(service, placed, given, again))
    if worker is not None:
        worker.watch(lambda: [event.set() for event in (stop, hurry)])  # type: ignore[func-returns-value]

    def placed(settings: "ServiceSettings") -> "ServiceSettings":
        """What this process goes by, of what flags and file say."""
        settings = kind.prepare(settings)
        if worker is not None:
            return worker.placed(settings)
        return settings if engine is None else before_embedded(settings, embedded_of(engine))

    engine: "RunningEngine | None" = None  # noqa: UP037 - only known to the type checker
    service: "GateService | None" = None  # noqa: UP037
    later: asyncio.Task[None] | None = None
    try:
        if args.embedded_engine and worker is None:
            engine = await start_demo_engine(args.max_num_seqs, args.max_num_batched_tokens)
        settings = placed(settings)
        starting = asyncio.ensure_future(kind.start(settings, worker))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not starting.done():  # told to stop before the engine was found
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            return 0
        service = starting.result()
        service.take_over = lambda: _take_over(service, placed, given)
        # What exists now lives to the end: keep the collector from looking at it again and again, and from running
        # after every 700 allocations, which a request alone makes. Flows break their cycles themselves.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        tell = ReadyLine(kind.told, as_json=args.json).tell if worker is None else worker.ready
        ready = ready_of(service)
        tell(ready)
        if not ready["ready"]:
            later = asyncio.create_task(tell_when_ready(lambda: ready_of(service), tell), name="tell when ready")
        if again.is_set():
            _reload(service, placed, given, again)
        await stop.wait()
        if later is not None:
            later.cancel()
        if worker is None:
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


def _reload(
    service: "GateService | None",
    placed: "Callable[[ServiceSettings], ServiceSettings]",
    given: argparse.Namespace,
    again: asyncio.Event,
) -> None:
    """SIGHUP: take over what the file says now. A bad file, or one that cannot be read, changes nothing. While the gate
    still starts, `again` keeps it for later."""
    log = logging.getLogger("kvbudget")
    path = getattr(given, "config", None)
    if path is None:
        log.warning("SIGHUP: started without --config, nothing to reload")
    elif service is None:
        again.set()
        log.info("SIGHUP: still starting; %s is read again once it has", path)
    else:
        try:
            changed, later = _take_over(service, placed, given)
        except InputError as error:
            log.error("SIGHUP: %s is not taken, the old settings stay: %s", path, error)
            return
        if changed:
            log.info("SIGHUP: %s taken: %s", path, ", ".join(changed))
        if later:
            log.warning("SIGHUP: these need a restart, the old ones stay: %s", ", ".join(later))
        if not changed and not later:
            log.info("SIGHUP: %s says what is in force, nothing to change", path)


def _take_over(
    service: "GateService", placed: "Callable[[ServiceSettings], ServiceSettings]", given: argparse.Namespace
) -> tuple[list[str], list[str]]:
    """(What changed, what needs a restart), by name. Raises InputError, and then nothing changed."""
    from kvbudget.edge.budget.reload import take_over

    if getattr(given, "config", None) is None:
        raise BadValueError("started without --config, nothing to reload", fix="start with --config kvbudget.toml")
    return take_over(service, placed(settings_from(given)))


async def start_demo_engine(max_num_seqs: int, max_num_batched_tokens: int) -> "RunningEngine":
    """The engine of `make run`: large enough to chat with, small enough to see it fill. What the gate is told of an
    engine's own settings, this one takes."""
    from kvbudget.edge.engine.server import start_engine
    from kvbudget.edge.engine.settings import EngineSettings

    pool = EngineSettings(
        num_blocks=513, block_size=16, max_model_len=4096, max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens, step_cost_s=0.01, token_cost_s=20e-6,
    )  # fmt: skip
    return await start_engine(pool)


def embedded_of(engine: "RunningEngine") -> Embedded:
    """What a gate before it goes by."""
    return Embedded(engine.url, engine.settings.max_num_seqs, engine.settings.max_num_batched_tokens)


HTTP = Kind(lambda settings: settings, _start, told_by_gate)
