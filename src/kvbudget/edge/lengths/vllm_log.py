"""Decides what lengths a vLLM log tells: of each request its prompt ids and output ids are counted, never kept.

vLLM 0.32 `entrypoints/serve/utils/request_logger.py`: "Request ID details: prompt: ..., prompt_token_ids: [...]" and
"Generated response ID ... details: output_token_ids: [...]" are written at DEBUG only; at INFO there is "Received
request ID: params: SamplingParams(... max_tokens=N ...)". Up to 0.10 "Received request ID: prompt: ..., params: ...,
prompt_token_ids: [...]" was written at INFO. Where no output was logged, max_tokens is taken: what the client may use.
"""

from collections.abc import Iterable

from kvbudget.errors import BadValueError
from kvbudget.planner.workload.mix import Workload
from kvbudget.units import Tokens, is_digits

_REQUEST, _RECEIVED, _GENERATED = "Request ", "Received request ", "Generated response "
MARKS = (_RECEIVED, _GENERATED, "prompt_token_ids: [")
_MOST_REQUESTS = 2_000_000


def requests_from_log(lines: Iterable[str], source: str) -> Workload:
    """Requests whose prompt and output (or max_tokens) lengths are both in the log, in its order.

    Raises BadValueError where the log says nothing of prompts: it was not written at DEBUG.
    """
    prompts: dict[str, int] = {}
    outputs: dict[str, int] = {}
    declared: dict[str, int] = {}
    received = 0
    for line in lines:
        if _GENERATED in line:
            name = _name(line, _GENERATED)
            count = _listed(line, "output_token_ids: [")
            if count is not None:
                outputs[name] = outputs.get(name, 0) + count if "(streaming delta)" in line else count
            continue
        start = _RECEIVED if _RECEIVED in line else _REQUEST if _REQUEST in line and " details: prompt" in line else ""
        if not start:
            continue
        name = _name(line, start)
        received += 1
        count = _listed(line, "prompt_token_ids: [")
        if count is not None and len(prompts) < _MOST_REQUESTS:
            prompts[name] = count
        most = _after(line, "max_tokens=")
        if most is not None:
            declared[name] = most
    if received and not prompts:
        raise BadValueError(
            f"{source}: requests are logged without their prompts' tokens",
            fix="run vLLM with --enable-log-requests --enable-log-outputs and VLLM_LOGGING_LEVEL=DEBUG, without "
            "--max-log-len; or give a usage log",
        )
    found = []
    for name, prompt in prompts.items():
        output = outputs.get(name, declared.get(name))
        if output is not None:
            found.append((Tokens(max(1, prompt)), Tokens(max(1, output))))
    if prompts and not found:
        raise BadValueError(f"{source}: no request's output is logged", fix="run vLLM with --enable-log-outputs")
    return Workload(tuple(found), "trace", source)


def _name(line: str, start: str) -> str:
    rest = line.partition(start)[2]
    return rest.split(" ", 1)[0].rstrip(":\n")


def _listed(line: str, opening: str) -> int | None:
    """Numbers in the last list of that name: a prompt's own text, which may hold anything, comes before it."""
    at = line.rfind(opening)
    if at < 0:
        return None
    inside, closed, _ = line[at + len(opening) :].partition("]")
    return (inside.count(",") + 1 if inside.strip() else 0) if closed else None


def _after(line: str, opening: str) -> int | None:
    at = line.rfind(opening)
    digits = line[at + len(opening) :].partition(",")[0].strip() if at >= 0 else ""
    return int(digits) if is_digits(digits) and len(digits) <= 10 else None
