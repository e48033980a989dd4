"""Decides which kind of file the lengths of requests are read from, and makes a workload of it.

- `azure`, `mooncake`, `jsonl`: traces, read by the parsers that replay them (traces.py).
- `usage`: JSON lines with the lengths in any of the usual spellings: usage logs of OpenAI's form, gateway logs.
- `vllm`: a log of `vllm serve --enable-log-requests --enable-log-outputs` with VLLM_LOGGING_LEVEL=DEBUG.
- `histogram`: a saved /metrics of vLLM with its two histograms of lengths.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

from kvbudget.edge.lengths.histogram import LINE_START as HISTOGRAM
from kvbudget.edge.lengths.histogram import workload_from_metrics
from kvbudget.edge.lengths.usage import requests_from_usage
from kvbudget.edge.lengths.vllm_log import MARKS, requests_from_log
from kvbudget.edge.traces import TraceRequest, load_trace
from kvbudget.errors import BadValueError
from kvbudget.planner.workload.mix import Workload

FORMATS = ("azure", "mooncake", "jsonl", "usage", "vllm", "histogram")
_MOST_BYTES = 1 << 30
_HEAD_LINES = 200


def read_workload(path: Path, trace_format: str | None = None) -> Workload:
    """The lengths of a file; `trace_format` None: told from its first lines.

    Raises BadValueError for a file that cannot be read, damage (its line is named), or no requests in it.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise BadValueError(f"{path}: larger than {_MOST_BYTES} bytes", fix="give a part of it")
        found = trace_format or _guess(path)
        if found in ("azure", "mooncake", "jsonl"):
            return _of_trace(load_trace(path, found), path)
        if found == "histogram":
            return workload_from_metrics(path.read_text(encoding="utf-8"), str(path))
        if found not in FORMATS:
            raise BadValueError(f"trace format {found[:40]!r} is not known", fix=f"use one of {', '.join(FORMATS)}")
        parse: Callable[[Iterable[str], str], Workload] = requests_from_usage if found == "usage" else requests_from_log
        with path.open(encoding="utf-8-sig", errors="replace" if found == "vllm" else "strict") as file:
            workload = parse(file, str(path))
    except OSError as error:
        raise BadValueError(f"{path}: {error.strerror or error}", fix="give a readable file") from None
    except UnicodeDecodeError as error:
        raise BadValueError(f"{path}: not UTF-8 at byte {error.start}", fix="give a text file") from None
    if not workload.requests:
        raise BadValueError(f"{path}: no requests in it", fix=f"check that it is one of {', '.join(FORMATS)}")
    return workload


def _of_trace(requests: list[TraceRequest], path: Path) -> Workload:
    hashes = tuple(request.hash_ids for request in requests)
    return Workload(
        tuple((request.prompt_tokens, request.output_tokens) for request in requests),
        "trace",
        path.name,
        tuple(request.arrival_ns / 1e9 for request in requests),
        hashes if any(hashes) else (),
    )


def _guess(path: Path) -> str:
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        head = [line for _, line in zip(range(_HEAD_LINES), file, strict=False)]
    first = next((line for line in head if line.strip()), "")
    if "ContextTokens" in first and "GeneratedTokens" in first:
        return "azure"
    if '"input_length"' in first and '"timestamp"' in first:
        return "mooncake"
    if '"prompt_tokens"' in first and '"output_tokens"' in first and '"arrival_s"' in first:
        return "jsonl"
    if first.lstrip().startswith("{"):
        return "usage"
    if first.startswith("#") or any(line.startswith(HISTOGRAM) for line in head):
        return "histogram"
    if any(mark in line for line in head for mark in MARKS):
        return "vllm"
    raise BadValueError(
        f"{path}: its first lines show none of the known forms", fix=f"it must be one of {', '.join(FORMATS)}"
    )
