"""`kvbudget replay`: open-loop load from a trace against a real endpoint, with the simulator's report."""

import argparse
import asyncio
import json
import resource
import signal
import sys
from collections.abc import Coroutine, Mapping
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvbudget.cli.main import EXIT_INTERRUPTED
from kvbudget.cli.output import written_out
from kvbudget.cli.reshaping import add_reshaping, reshaping_of
from kvbudget.edge.traces.read import FORMATS, load_trace
from kvbudget.errors import BadValueError, UnsupportedError
from kvbudget.extras import install

if TYPE_CHECKING:
    from kvbudget.edge.replay.run import ReplaySettings

EPILOG = """examples:
  kvbudget replay --trace azure-conv.csv --url http://127.0.0.1:8800 --max-requests 500 --rate-scale 0.5
  kvbudget replay --trace mooncake.jsonl --spread-arrivals 3 --window 8192 --url http://127.0.0.1:8800 \\
      --metrics-url http://127.0.0.1:8000/metrics --slo-ttft 10 --slo-gap 0.5 --json

Requests leave at their recorded times, whatever became of those before (open loop). Without --max-tokens each client
declares exactly what the trace's answer took and the engine is told to ignore its end-of-sequence token; with it, every
client declares that many and the model ends by itself. Ctrl-C (or SIGTERM) gives the report so far.

exit: 0 good, 1 requests failed (refusals and time-outs are no failures) or none finished, 2 usage, no endpoint or
stdout that cannot be written, 130 stopped by Ctrl-C or SIGTERM, after the report so far.
"""
_OWN_FILES = 64  # descriptors beside the load's connections


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    trace = parser.add_argument_group("trace")
    trace.add_argument("--trace", type=Path, required=True, metavar="FILE", help="CSV or JSON lines")
    trace.add_argument("--trace-format", choices=FORMATS, help="default: told from the first line")
    add_reshaping(
        trace,
        max_requests="only the first N",
        max_tokens="what every client declares",
        spread="scatter equal stamps over S seconds (Mooncake: 3)",
    )
    target = parser.add_argument_group("endpoint")
    target.add_argument("--url", required=True, help="http://HOST:PORT of a gate or an engine")
    target.add_argument("--model", help="default: the first under /v1/models")
    target.add_argument("--endpoint", choices=("chat", "completions"), default="chat", help="default chat")
    target.add_argument("--stream-share", type=float, default=1.0, metavar="X", help="0 to 1 (default 1)")
    target.add_argument("--header", action="append", default=[], metavar="'NAME: VALUE'", help="repeatable; API keys")
    target.add_argument("--metrics-url", help="the engine's /metrics (default: URL/metrics)")
    target.add_argument(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="hold answers to max_tokens (default: unless --max-tokens is given)",
    )
    client = parser.add_argument_group("clients")
    client.add_argument("--timeout", type=float, default=120.0, metavar="S", help="patience a request (default 120)")
    client.add_argument(
        "--retries", type=int, default=0, metavar="N", help="after 429/503, as Retry-After says (default 0)"
    )
    client.add_argument("--concurrency-limit", type=int, default=2000, metavar="N", help="safety bound (default 2000)")
    client.add_argument("--slo-ttft", type=float, metavar="S", help="first token within S seconds")
    client.add_argument("--slo-gap", type=float, metavar="S", help="no later gap longer than S seconds")
    client.add_argument("--seed", type=int, default=0, help="texts, stream share, spreading (default 0)")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def run(args: argparse.Namespace) -> int:
    """0 good, 1 failures or nothing finished, 130 stopped early."""
    requests = load_trace(args.trace, args.trace_format, reshaping_of(args))
    try:
        from kvbudget.edge.replay.run import replay
    except ImportError as error:
        raise UnsupportedError(f"replay needs {error.name}", fix=install("gate")) from None
    settings = _settings(args)
    _raise_open_files(settings.concurrency_limit)

    stop = asyncio.Event()

    async def stoppable() -> dict[str, object]:
        loop = asyncio.get_running_loop()
        for name in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(name, stop.set)
        return await replay(requests, settings, stop=stop, say=_say)

    report = _run_loop(stoppable())
    with written_out():
        if args.json:
            print(json.dumps(report, allow_nan=False))
        else:
            _print_table(report)
    if stop.is_set():
        return EXIT_INTERRUPTED
    return 1 if report["failed"] or not report["finished"] else 0


def _settings(args: argparse.Namespace) -> "ReplaySettings":
    from kvbudget.edge.replay.endpoint import Patience
    from kvbudget.edge.replay.report import Slo
    from kvbudget.edge.replay.run import ReplaySettings

    for name in ("slo_ttft", "slo_gap"):
        value = getattr(args, name)
        if value is not None and not 0 < value < inf:
            raise BadValueError(f"{name}: {value} is not a time above 0 s")
    return ReplaySettings(
        url=args.url,
        model=args.model,
        chat=args.endpoint == "chat",
        stream_share=args.stream_share,
        concurrency_limit=args.concurrency_limit,
        seed=args.seed,
        exact_output=args.max_tokens is None if args.ignore_eos is None else args.ignore_eos,
        patience=Patience(args.timeout, args.retries),
        slo=Slo(args.slo_ttft, args.slo_gap),
        metrics_url=args.metrics_url,
        headers=dict(_header(text) for text in args.header),
    )


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip() or not text.isprintable():
        raise BadValueError("header: not in the form NAME: VALUE", fix="write --header 'authorization: Bearer KEY'")
    return name.strip().lower(), value.strip()


def _raise_open_files(connections: int) -> None:
    """Every request in flight holds a connection. Raises BadValueError when the system's hard limit is below that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _OWN_FILES
    if soft >= wanted or soft == resource.RLIM_INFINITY:
        return
    if hard not in (resource.RLIM_INFINITY,) and hard < wanted:
        raise BadValueError(
            f"concurrency-limit: {connections} connections need more than the {hard} open files that are allowed",
            fix=f"give at most {hard - _OWN_FILES}, or raise the limit (ulimit -Hn)",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _run_loop(main: Coroutine[Any, Any, dict[str, object]]) -> dict[str, object]:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    report: dict[str, object] = uvloop.run(main)
    return report


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _print_table(report: Mapping[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    noun = "request" if report["requests"] == 1 else "requests"
    table = Table(title=f"{report['requests']} {noun} in {report['elapsed_s']:.1f} s", show_header=False)
    for label, text in _rows(report):
        table.add_row(label, text)
    console = Console()
    console.print(table)
    for note in report["notes"]:
        console.print(f"note: {note}", markup=False, highlight=False)


def _rows(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    endings = ("finished", "refused", "timed_out", "failed", "not_sent", "interrupted")
    rows = [(name.replace("_", " "), f"{report[name]:,}") for name in endings if report[name] or name == "finished"]
    rows += [
        ("statuses", ", ".join(f"{code}: {count:,}" for code, count in report["statuses"].items()) or "-"),
        ("errors", "; ".join(f"{error} ({count:,})" for error, count in report["errors"].items()) or "-"),
        ("goodput", f"{report['goodput_tokens_per_s']:,.1f} tokens/s"),
        ("within SLO", "-" if report["slo_fraction"] is None else f"{report['slo_fraction']:.1%} of all requests"),
        ("first token", _seconds(report["ttft_s"])),
        ("gap", _seconds(report["gap_s"])),
        ("whole answer", _seconds(report["total_s"])),
        ("preemptions", "unknown" if report["preemptions"] is None else f"{report['preemptions']:,}"),
        ("mean pool use", "unknown" if report["pool_use_mean"] is None else f"{report['pool_use_mean']:.1%}"),
        ("prompt lengths", _lengths(report["prompt_tokens"])),
        ("sent late by", _seconds(report["generator"]["late_s"])),
    ]
    return rows


def _seconds(quantiles: Mapping[str, float | None]) -> str:
    return ", ".join(f"{name} {value:.3f} s" for name, value in quantiles.items() if value is not None) or "-"


def _lengths(tokens: Mapping[str, int]) -> str:
    if not tokens["compared"]:
        return "not confirmed: the endpoint gave no usage"
    same = tokens["compared"] - tokens["differing"]
    return f"{same:,} of {tokens['compared']:,} as the trace says, by the endpoint's usage"
