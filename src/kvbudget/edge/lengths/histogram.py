"""Decides what lengths two histograms of /metrics tell: prompt and generated tokens of finished requests.

vLLM 0.32 `v1/metrics/loggers.py`: vllm:request_prompt_tokens and vllm:request_generation_tokens, buckets 1, 2, 5, 10,
... up to max_model_len. A histogram does not tell which prompt had which output: long ones are paired with long ones,
which is the careful case.
"""

from math import ceil, inf

from kvbudget.edge.traces.azure import MAX_LENGTH_TOKENS
from kvbudget.engines.logs.metrics import labels_of
from kvbudget.errors import BadValueError
from kvbudget.planner.workload.mix import Workload
from kvbudget.units import Tokens

_PROMPT, _OUTPUT = "vllm:request_prompt_tokens", "vllm:request_generation_tokens"
LINE_START = (_PROMPT, _OUTPUT)
_DRAWN = 1000


def workload_from_metrics(text: str, source: str) -> Workload:
    """A thousand requests drawn through the buckets, over all engines of the scrape. Raises BadValueError."""
    counted: dict[str, dict[float, float]] = {_PROMPT: {}, _OUTPUT: {}}
    for number, line in enumerate(text.splitlines(), 1):
        name = line.partition("{")[0].removesuffix("_bucket")
        if name not in counted or not line.startswith(f"{name}_bucket{{"):
            continue
        try:
            upper, count = float(labels_of(line)["le"]), float(line.rpartition("}")[2].split()[0])
        except (ValueError, KeyError, IndexError):
            upper = count = -1.0
        if not (upper >= 0 and 0 <= count < inf):
            raise BadValueError(f"{source}:{number}: damaged metric ({line[:80]!r})", fix="save /metrics again")
        counted[name][upper] = counted[name].get(upper, 0.0) + count
    prompts, outputs = (_drawn(counted[name], name, source) for name in (_PROMPT, _OUTPUT))
    return Workload(tuple(zip(prompts, outputs, strict=True)), "histogram", source)


def _drawn(buckets: dict[float, float], name: str, source: str) -> list[Tokens]:
    """Ascending lengths, straight inside a bucket (its lower bound is not in it).

    What is above the last finite bound is taken at that bound.
    """
    bounds = sorted(buckets)
    total = buckets[bounds[-1]] if bounds else 0.0
    if not 0 < total < inf:
        raise BadValueError(f"{source}: no requests in {name}", fix="scrape an engine that has served requests")
    drawn: list[Tokens] = []
    at, lower, below = 0, 0.0, 0.0
    for index in range(_DRAWN):
        rank = (index + 0.5) / _DRAWN * total
        while buckets[bounds[at]] < rank and at < len(bounds) - 1:
            lower, below = bounds[at], buckets[bounds[at]]
            at += 1
        upper, inside = bounds[at], buckets[bounds[at]] - below
        share = (rank - below) / inside if inside else 1.0
        length = lower if upper == inf else lower + (upper - lower) * share
        drawn.append(Tokens(max(1, min(MAX_LENGTH_TOKENS, ceil(length)))))
    return drawn
