"""Decides which engines one or several scrapes of the same address tell of, and what they tell: the entry here.

`observation_of(older, newer, seconds)` for two texts; `observation_of_scrapes` for many, as of a Prometheus server.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import NamedTuple

from kvbudget.engines.metrics import dynamo, gate, llamacpp, lmdeploy, sglang, tgi, trtllm, vllm
from kvbudget.engines.metrics.exposition import Exposition, parsed
from kvbudget.engines.metrics.span import STARTED, Parted, Scrape, Span, agrees, identities, told_apart
from kvbudget.engines.readings import Sums
from kvbudget.engines.window import EngineWindow, Observation
from kvbudget.errors import UnsupportedError


class Reader(NamedTuple):
    """Of one engine: how its names begin, the gauges that each engine has, its counters, and what makes a window.

    `within`: labels of the core gauges that do not tell one engine from another. `prepared`: brings a scrape of several
    ranks into one of none.
    """

    prefixes: tuple[str, ...]
    core: tuple[str, ...]
    counters: tuple[str, ...]
    window: Callable[[Span], EngineWindow]
    within: tuple[str, ...] = ()
    prepared: Callable[[Scrape], Scrape] = lambda scrape: scrape


_DYNAMO = Reader(dynamo.PREFIXES, dynamo.CORE, dynamo.COUNTERS, dynamo.window, dynamo.WITHIN)
_READERS: tuple[Reader, ...] = (
    Reader(vllm.PREFIXES, vllm.CORE, vllm.COUNTERS, vllm.window),
    Reader(
        *(sglang.PREFIXES, sglang.CORE, sglang.COUNTERS, sglang.window),
        within=(sglang.REPLICA, "priority"),
        prepared=sglang.of_all_ranks,
    ),
    Reader(tgi.PREFIXES, tgi.CORE, tgi.COUNTERS, tgi.window),
    Reader(llamacpp.PREFIXES, llamacpp.CORE, llamacpp.COUNTERS, llamacpp.window),
    Reader(trtllm.PREFIXES, trtllm.CORE, trtllm.COUNTERS, trtllm.window),
    Reader(
        *(trtllm.TRITON_PREFIXES, trtllm.TRITON_CORE, trtllm.TRITON_COUNTERS, trtllm.triton_window),
        within=trtllm.TRITON_WITHIN,
    ),
    Reader(lmdeploy.PREFIXES, lmdeploy.CORE, lmdeploy.COUNTERS, lmdeploy.window),
)
KNOWN = ("vLLM", "SGLang", "TGI", "llama.cpp", "TensorRT-LLM", "Triton", "LMDeploy", "Dynamo", "kvbudget's gate")
_PREFIXES = (*(prefix for reader in (*_READERS, _DYNAMO) for prefix in reader.prefixes), gate.PREFIX, STARTED)
# Of all names that are read, as a regular expression of a Prometheus server, colon or not.
NAMED = "|".join(f"(ray_)?{prefix.removesuffix('_')}[:_].*" for prefix in _PREFIXES if prefix != STARTED)
_HALF = 0.5


def observation_of(older: str | None, newer: str, seconds: float | None = None, *, source: str = "") -> Observation:
    """What two scrapes of /metrics tell, or one alone: then counts are those since the engine's start.

    `seconds` between them, None where it is not known; time stamps in the texts tell it too. Two that were given newer
    first are swapped, with a note. Raises UnsupportedError when no engine that we know is in `newer`.
    """
    texts = [newer] if older is None else [older, newer]
    scrapes = [_scrape(parsed(text, is_wanted)) for text in texts]
    notes: list[str] = []
    if len(scrapes) == 2:
        if given_newer_first(scrapes[0], scrapes[1]):
            scrapes.reverse()
            notes.append("the two scrapes were given newer first: read the other way round")
        if seconds is None and scrapes[0].stamp_s is not None and scrapes[1].stamp_s is not None:
            seconds = scrapes[1].stamp_s - scrapes[0].stamp_s or None
        times = (None, None) if seconds is None else (0.0, abs(seconds))
        scrapes = [scrape._replace(at_s=at_s) for scrape, at_s in zip(scrapes, times, strict=True)]
    return observation_of_scrapes(scrapes, source=source, notes=notes)


def observation_of_scrapes(scrapes: Sequence[Scrape], *, source: str = "", notes: Sequence[str] = ()) -> Observation:
    """The same of many, oldest first. Raises UnsupportedError when no engine is in the newest."""
    engines = [window for reader in _READERS for window in _windows(reader, scrapes)]
    around = _windows(_DYNAMO, scrapes)
    engines = [dynamo.beside(window, around[0]) for window in engines] if engines and around else engines or around
    gates = gate.windows(scrapes)
    if not engines and not gates:
        seen = sorted({sample.name for sample in scrapes[-1].samples})[:3]
        raise UnsupportedError(
            (f"{source}: " if source else "")
            + f"no metric of an engine that is known{', only ' + ', '.join(seen) if seen else ''}",
            fix=f"give the /metrics of the engine itself; known are {', '.join(KNOWN)}",
        )
    return Observation(
        engines=tuple(replace(window, notes=(*notes, *window.notes)) for window in engines),
        gates=tuple(gates),
        sources=(source,) if source else (),
    )


def is_wanted(name: str) -> bool:
    """Whether a plain name may be one that is read here."""
    return name.startswith(_PREFIXES)


def same_engines(older: Scrape, newer: Scrape) -> bool:
    """Whether two scrapes may be of the same engine or gate: its kind, and no label of its core gauges, differs."""
    kinds = [
        {prefix for prefix in _PREFIXES if any(sample.name.startswith(prefix) for sample in scrape.samples)}
        for scrape in (older, newer)
    ]
    if not (kinds[0] & kinds[1]) - {STARTED}:
        return False
    for reader in (*_READERS, _DYNAMO):
        found = [identities(reader.prepared(scrape), reader.core, reader.within) for scrape in (older, newer)]
        if found[0] and found[1]:
            return any(agrees(one, other) for one in found[0] for other in found[1])
    return True


def scrape_of(text: str, at_s: float | None = None) -> Scrape:
    """One text as a scrape at a moment of the caller's clock."""
    return _scrape(parsed(text, is_wanted))._replace(at_s=at_s)


def _scrape(told: Exposition) -> Scrape:
    return Scrape(told.samples, None, told.helps, told.at_s)


def _windows(reader: Reader, scrapes: Sequence[Scrape]) -> list[EngineWindow]:
    if not any(sample.name.startswith(reader.prefixes) for sample in scrapes[-1].samples):
        return []
    scrapes = [reader.prepared(scrape) for scrape in scrapes]
    newest = scrapes[-1]
    found = identities(newest, reader.core, reader.within)
    if not found and reader.core != vllm.CORE:
        return []  # such as Triton without its TensorRT-LLM backend
    names = {name for scrape in scrapes for one in identities(scrape, reader.core, reader.within) for name in one}
    parted = [Parted(scrape, names) for scrape in scrapes]
    windows = []
    for identity, where in zip(found or [{}], told_apart(found or [{}]), strict=True):
        of_it = [part.of(identity) for part in parted]
        seen = [scrape for scrape in of_it if any(sample.name.startswith(reader.prefixes) for sample in scrape.samples)]
        span = Span(seen, reader.counters, names, _siblings(identity, found))
        window = reader.window(span)
        totals = window if span.alone else reader.window(Span(seen[-1:], reader.counters, names, span.siblings))
        windows.append(replace(_dated(window, span, where), totals=totals.counts))
    return [windows[0], *(_without_the_server_s(window, newest, found) for window in windows[1:])]


def _siblings(identity: Mapping[str, str], found: Sequence[Mapping[str, str]]) -> int:
    """Engines of the same server: they differ in the label `engine` alone."""
    own = {**identity, "engine": ""}
    return max(1, sum({**other, "engine": ""} == own for other in found))


def _dated(window: EngineWindow, span: Span, where: str) -> EngineWindow:
    first, last = span.scrapes[0].at_s, span.scrapes[-1].at_s
    seconds = None if span.alone or first is None or last is None else last - first
    notes = list(window.notes)
    if span.restarted:
        what = ", ".join(span.fell[:3]) or STARTED
        notes.append(f"counters began anew within the window ({what}): counted from 0 there")
    return replace(
        window, where=where, window_s=seconds, since_start=span.alone, restarted=span.restarted, notes=tuple(notes)
    )


def _without_the_server_s(window: EngineWindow, newest: Scrape, found: Sequence[dict[str, str]]) -> EngineWindow:
    """What the server counts for all its engines is told with the first alone: else it would be counted twice."""
    if not window.counts.rejected:
        return window
    told = [sample for sample in newest.samples if sample.name.startswith("vllm_admission_rejections")]
    if any(sum(agrees(sample.labels, identity) for identity in found) > 1 for sample in told):
        return replace(window, counts=replace(window.counts, rejected={}))
    return window


def given_newer_first(older: Scrape, newer: Scrape) -> bool:
    """Whether two scrapes are the wrong way round: time stamps or starts tell it, or all counters that differ fell.

    A restart lets them fall too, but then to little: half of all that was counted is not reached again.
    """
    starts = [Sums(scrape.samples).most(STARTED) for scrape in (older, newer)]
    if older.stamp_s is not None and newer.stamp_s is not None and older.stamp_s != newer.stamp_s:
        return older.stamp_s > newer.stamp_s
    before, after = (
        {(one.name, tuple(sorted(one.labels.items()))): one.value for one in scrape.samples if _only_grows(one.name)}
        for scrape in (older, newer)
    )
    pairs = [(before.get(series, -inf), value) for series, value in after.items()]
    fell = [(was, now) for was, now in pairs if now < was < inf]
    if starts[0] is not None and starts[1] is not None and starts[0] != starts[1]:
        return starts[0] > starts[1]
    if not fell or any(now > was > -inf for was, now in pairs):
        return False
    return starts[0] is not None or sum(now for _, now in fell) > _HALF * sum(was for was, _ in fell)


def _only_grows(name: str) -> bool:
    return name.endswith(("_total", "_count", "_bucket"))
