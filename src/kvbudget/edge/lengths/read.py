"""Decides which kind of file the lengths of requests are read from, and makes a workload of it.

- `azure`, `mooncake`, `jsonl`: traces, read by the parsers that replay them (traces.py).
- `usage`: JSON lines with the lengths in any of the usual spellings: usage logs of OpenAI's form, gateway logs.
- `csv`: a plain table with a column of prompt lengths and one of output lengths.
- `vllm`: a log of `vllm serve --enable-log-requests --enable-log-outputs` with VLLM_LOGGING_LEVEL=DEBUG.
- `histogram`: a saved /metrics of vLLM with its two histograms of lengths.
"""

from collections.abc import Iterable
from itertools import chain, islice, pairwise
from operator import add
from pathlib import Path
from typing import cast

from kvbudget.edge.given_file import given_lines, utf8_only
from kvbudget.edge.lengths.histogram import LINE_START as HISTOGRAM
from kvbudget.edge.lengths.histogram import workload_from_metrics
from kvbudget.edge.lengths.table import WANTED, is_aside, is_table, requests_from_table
from kvbudget.edge.lengths.usage import requests_from_usage
from kvbudget.edge.lengths.vllm_log import MARKS, requests_from_log
from kvbudget.edge.traces.azure import Columns, azure_columns
from kvbudget.edge.traces.read import parse_trace
from kvbudget.errors import BadValueError
from kvbudget.planner.workload.mix import Workload
from kvbudget.simulate.load import TraceRequest
from kvbudget.units import Tokens

FORMATS = ("azure", "mooncake", "jsonl", "usage", "csv", "vllm", "histogram")
_HEAD_LINES = 200
_EXPOSITION = ("# HELP", "# TYPE")  # how /metrics begins; any other comment may stand before anything


def read_workload(path: Path, trace_format: str | None = None) -> Workload:
    """The lengths of a file; `trace_format` None: told from its first lines.

    Raises BadValueError for a file that cannot be read, damage (its line is named), or no requests in it.
    """
    try:
        with given_lines(str(path), fix="give a file with the lengths of requests") as lines:
            head = list(islice(lines, _HEAD_LINES))
            found = trace_format or _guess(head, path)
            workload = _read(chain(head, lines), found, path)
    except OSError as error:
        raise BadValueError(f"{path}: {error.strerror or error}", fix="give a readable file") from None
    if not workload.requests:
        raise BadValueError(f"{path}: no requests in it", fix=f"check that it is one of {', '.join(FORMATS)}")
    return workload


def _read(lines: Iterable[str], found: str, path: Path) -> Workload:
    if found == "vllm":
        return requests_from_log(lines, str(path))
    if found == "azure":  # other bytes in its three columns are damage that it names itself
        return _of_columns(azure_columns(lines, str(path)), path)
    lines = utf8_only(lines, str(path))
    if found in ("mooncake", "jsonl"):
        return _of_trace(parse_trace(lines, found, str(path)), path)
    if found == "usage":
        return requests_from_usage(lines, str(path))
    if found == "csv":
        return requests_from_table(lines, str(path))
    if found == "histogram":
        return workload_from_metrics("\n".join(lines), str(path))
    raise BadValueError(f"trace format {found[:40]!r} is not known", fix=f"use one of {', '.join(FORMATS)}")


def _of_columns(columns: Columns, path: Path) -> Workload:
    """A recorded length of 0 becomes 1: an engine always has one token of each. Rows without any token are errors
    that somebody recorded, no requests, and are left out."""
    arrivals, prompts, outputs = columns
    if prompts and min(prompts) < 1 and 0 in map(add, prompts, outputs):
        kept = [at for at, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)) if prompt or output]
        arrivals, prompts, outputs = ([column[at] for at in kept] for column in columns)
        columns = Columns(arrivals, prompts, outputs)
    if any(later < earlier for earlier, later in pairwise(arrivals)):
        order = sorted(range(len(arrivals)), key=arrivals.__getitem__)
        arrivals, prompts, outputs = ([column[at] for at in order] for column in columns)
    if arrivals and (min(prompts) < 1 or min(outputs) < 1):
        prompts, outputs = ([max(1, length) for length in column] for column in (prompts, outputs))
    requests = cast(tuple[tuple[Tokens, Tokens], ...], tuple(zip(prompts, outputs, strict=True)))
    return Workload(requests, "trace", path.name, tuple((arrival - arrivals[0]) / 1e9 for arrival in arrivals))


def _of_trace(requests: list[TraceRequest], path: Path) -> Workload:
    requests = sorted(requests, key=lambda request: request.arrival_ns)
    hashes = tuple(request.hash_ids for request in requests)
    return Workload(
        tuple((request.prompt_tokens, request.output_tokens) for request in requests),
        "trace",
        path.name,
        tuple((request.arrival_ns - requests[0].arrival_ns) / 1e9 for request in requests),
        hashes if any(hashes) else (),
    )


def _guess(head: list[str], path: Path) -> str:
    first = next((line for line in head if line.strip()), "")
    if "ContextTokens" in first and "GeneratedTokens" in first:
        return "azure"
    if '"input_length"' in first and '"timestamp"' in first:
        return "mooncake"
    if '"prompt_tokens"' in first and '"output_tokens"' in first and '"arrival_s"' in first:
        return "jsonl"
    if first.lstrip().startswith("{"):
        return "usage"
    if is_table(next((line for line in head if not is_aside(line)), "")):
        return "csv"
    if first.startswith(_EXPOSITION) or any(line.startswith(HISTOGRAM) for line in head):
        return "histogram"
    if any(mark in line for line in head for mark in MARKS):
        return "vllm"
    raise BadValueError(
        f"{path}: its first lines show none of the known forms",
        fix=f"it must be one of {', '.join(FORMATS)}; {WANTED}",
    )
