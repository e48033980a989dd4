"""Decides what several sources tell together: a log completes what metrics do not export, sources are told apart."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from kvbudget.engines.window import EngineWindow, Limits, Observation


class Told(NamedTuple):
    """What one source told. `is_log`: it knows the limits of its engine better than its metrics do."""

    observation: Observation
    is_log: bool = False


def combined(told: Sequence[Told], problems: Sequence[str] = ()) -> Observation:
    """One observation of all. A log of an engine whose metrics are there as well is no engine of its own."""
    measured = [one.observation for one in told if not one.is_log]
    logs = [window for one in told if one.is_log for window in one.observation.engines]
    several = sum(bool(one.engines) for one in measured) > 1
    engines = [_completed(_placed(window, one.sources, several), logs) for one in measured for window in one.engines]
    known = {window.engine for window in engines}
    alone = [(one.observation, window) for one in told if one.is_log for window in one.observation.engines]
    alone = [(one, window) for one, window in alone if window.engine not in known]
    apart = len({id(one) for one, _ in alone}) + bool(engines) > 1
    return Observation(
        engines=(*engines, *(_placed(window, one.sources, apart) for one, window in alone)),
        gates=tuple(gate for one in measured for gate in one.gates),
        sources=tuple(source for one in told for source in one.observation.sources),
        problems=(*(problem for one in told for problem in one.observation.problems), *problems),
    )


def _placed(window: EngineWindow, sources: Sequence[str], several: bool) -> EngineWindow:
    if not several or not sources:
        return window
    return replace(window, where=",".join(part for part in (sources[0], window.where) if part))


def _completed(window: EngineWindow, logs: Sequence[EngineWindow]) -> EngineWindow:
    """With the limits of the log of such an engine; of two different logs nobody knows which one is its own."""
    own = [log for log in logs if log.engine == window.engine]
    if not own or any(log.limits != own[0].limits for log in own):
        return window
    log = own[0]
    limits = _filled(window.limits, log.limits)
    missing = tuple(
        line for line in window.missing if limits.max_num_seqs is None or not line.startswith("max_num_seqs ")
    )
    return replace(
        window,
        limits=limits,
        version=window.version or log.version,
        model=window.model or log.model,
        missing=missing,
        notes=(*window.notes, "limits that the metrics do not tell are those of the log"),
        extra={**{name: value for name, value in log.extra.items() if name not in window.extra}, **window.extra},
    )


def _filled(told: Limits, log: Limits) -> Limits:
    return Limits(
        pool=told.pool or log.pool,
        max_num_seqs=told.max_num_seqs or log.max_num_seqs,
        max_num_batched_tokens=told.max_num_batched_tokens or log.max_num_batched_tokens,
        max_model_len=told.max_model_len or log.max_model_len,
        prefix_caching=log.prefix_caching if told.prefix_caching is None else told.prefix_caching,
        smallest_block=told.smallest_block or log.smallest_block,
        largest_block=told.largest_block or log.largest_block,
    )
