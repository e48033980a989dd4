"""Decides what a Prometheus server is asked for: the metrics that we read, over a window, each instance apart.

Its HTTP API: /api/v1/status/buildinfo tells that it is one, /api/v1/query_range gives values on a grid of moments;
VictoriaMetrics, Thanos and Mimir answer the same.
"""

import math
import time
from collections.abc import Callable

from kvbudget.edge.observing.asking import Answer, Asker, refused
from kvbudget.engines.metrics.exposition import shown as printed
from kvbudget.engines.metrics.observation import NAMED, observation_of_scrapes
from kvbudget.engines.metrics.span import STARTED, Scrape
from kvbudget.engines.readings import Sample, plain_name
from kvbudget.engines.window import Observation
from kvbudget.errors import BadValueError, printable

PROMETHEUS_WINDOW_S = 600.0
STEPS = 12  # moments at which all counters are asked for
LEAST_STEP_S = 5.0
MAX_SERIES = 100_000
_EVERYTHING = f'{{__name__=~"{NAMED}"}}'
_STARTS = f"{STARTED} and on (job, instance) group by (job, instance) ({_EVERYTHING})"


def is_prometheus(base: str, asker: Asker) -> bool:
    """Whether a Prometheus server, or what speaks its API, answers at this address."""
    document = asker.get(f"{base}/api/v1/status/buildinfo").document
    return isinstance(document, dict) and document.get("status") == "success" and "data" in document


def observation_of_prometheus(
    base: str, shown: str, asker: Asker, window_s: float, clock: Callable[[], float] = time.time
) -> Observation:
    """What its series of the last `window_s` seconds tell. Raises BadValueError, UnsupportedError."""
    ends_s = math.floor(clock())
    step_s = max(LEAST_STEP_S, window_s / STEPS)
    moments: dict[float, list[Sample]] = {}
    for query, needed in ((_EVERYTHING, True), (_STARTS, False)):
        answer = asker.get(f"{base}/api/v1/query_range", _range(query, ends_s - window_s, ends_s, step_s))
        series = _series(answer, shown, needed=needed)
        for labels, values in series:
            name = plain_name(labels.pop("__name__", ""))
            for at_s, value in values:
                moments.setdefault(at_s, []).append(Sample(name or STARTED, labels, value))
    first = min(moments, default=0.0)
    scrapes = [Scrape(tuple(moments[at_s]), at_s - first) for at_s in sorted(moments)]
    if not scrapes:
        raise BadValueError(
            f"{shown} has no series of an engine or a gate in the last {window_s:g} s",
            fix="check that it scrapes them, or give the engine's own /metrics",
        )
    return observation_of_scrapes(scrapes, source=shown)


def _range(query: str, start_s: float, end_s: float, step_s: float) -> dict[str, str]:
    return {"query": query, "start": f"{start_s:.3f}", "end": f"{end_s:.3f}", "step": f"{step_s:.3f}"}


def _series(answer: Answer, shown: str, *, needed: bool) -> list[tuple[dict[str, str], list[tuple[float, float]]]]:
    document = answer.document
    data = document.get("data") if isinstance(document, dict) else None
    result = data.get("result") if isinstance(data, dict) else None
    if not isinstance(result, list):
        if not needed:
            return []  # some of those that speak the API do not know all of the language
        if answer.status == 200:
            raise BadValueError(f"{shown} answered no result: {printable(answer.text, 100)}", fix="check the address")
        raise refused(shown, answer)
    if len(result) > MAX_SERIES:
        raise BadValueError(f"{shown} has more than {MAX_SERIES} series of engines", fix="ask one for fewer engines")
    return [told for one in result if (told := _one_series(one)) is not None]


def _one_series(one: object) -> tuple[dict[str, str], list[tuple[float, float]]] | None:
    metric = one.get("metric") if isinstance(one, dict) else None
    values = one.get("values") if isinstance(one, dict) else None
    if not isinstance(metric, dict) or not isinstance(values, list):
        return None
    found = []
    for pair in values:
        try:
            at_s, value = pair
            found.append((float(at_s), float(value)))
        except (TypeError, ValueError):
            continue
    return {str(name): printed(str(value)) for name, value in metric.items()}, found
