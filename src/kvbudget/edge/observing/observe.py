"""Decides what each SOURCE of a diagnosis is, by its content, and brings all of them into one observation: entry here.

`observe(sources, window_s)` once; `Observer` again and again, for who watches.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple
from urllib.parse import urlsplit

from kvbudget.edge.fetching import address_of
from kvbudget.edge.observing.asking import Asker
from kvbudget.edge.observing.files import Saved, saved
from kvbudget.edge.observing.live import Clock, Live, Sleep
from kvbudget.edge.observing.prometheus import PROMETHEUS_WINDOW_S, is_prometheus, observation_of_prometheus
from kvbudget.engines.combined import Told, combined
from kvbudget.engines.logs.periodic.read import LOG_WINDOW_S, observation_of_log
from kvbudget.engines.metrics.observation import (
    given_newer_first,
    observation_of_scrapes,
    same_engines,
    scrape_of,
)
from kvbudget.engines.metrics.span import Scrape
from kvbudget.engines.window import Observation
from kvbudget.errors import BadValueError, InputError, printable

LIVE_WINDOW_S = 10.0
MAX_SOURCES = 64
_FIX = "give the URL of an engine's /metrics, of a gate's admin port or of a Prometheus server, a saved file or a log"


def observe(
    sources: Sequence[str], window_s: float | None = None, environment: Mapping[str, str] | None = None
) -> Observation:
    """What all sources tell. `window_s` None: 10 s of a live address, 600 s of a Prometheus server or a log.

    Of saved metrics it is the time between two files. Sources that fail are told as problems; raises InputError when
    none is left.
    """
    return Observer(sources, window_s, environment).observe()


class Observer:
    """The same sources again and again: each window of a live address begins where the last one ended.

    A window of 0 waits for nothing: at first it tells of all since the engine's start, then of what was since the last.
    """

    def __init__(
        self,
        sources: Sequence[str],
        window_s: float | None = None,
        environment: Mapping[str, str] | None = None,
        *,
        clock: Clock = time.monotonic,
        sleep: Sleep = time.sleep,
        wall_clock: Clock = time.time,
    ) -> None:
        """Raises BadValueError for no source, too many, or an address that is none."""
        if not 0 < len(sources) <= MAX_SOURCES:
            raise BadValueError(f"{len(sources)} sources, and 1 to {MAX_SOURCES} are observed", fix=_FIX)
        if window_s is not None and not 0 <= window_s <= 86_400 * 31:
            raise BadValueError(f"a window of {window_s:g} s", fix="give 0 to 31 days, in seconds")
        self._window_s = window_s
        asker = Asker(os.environ if environment is None else environment)
        means = _Means(asker, window_s, clock, sleep, wall_clock)
        self._files = [source for source in sources if not _is_url(source)]
        self._remote = [_Remote(source, means) for source in sources if _is_url(source)]

    def observe(self) -> Observation:
        """The next window; it takes as long as the longest of the live addresses."""
        told: list[Told] = []
        errors: list[InputError] = []
        for one in self._answers():
            if isinstance(one, InputError):
                errors.append(one)
            else:
                told.append(Told(one))
        files = self._saved(errors)
        self._metrics([file for file in files if file.is_metrics], told, errors)
        self._logs([file for file in files if not file.is_metrics], told, errors)
        if not told:
            raise errors[0]
        return combined(told, [str(error) for error in errors])

    def _answers(self) -> list[Observation | InputError]:
        """Of all addresses over the same window. One alone is asked in this thread: Ctrl-C ends its wait."""
        if len(self._remote) < 2:
            return [_caught(remote.observe) for remote in self._remote]
        with ThreadPoolExecutor(len(self._remote)) as threads:
            return list(threads.map(_caught, [remote.observe for remote in self._remote]))

    def _saved(self, errors: list[InputError]) -> list[Saved]:
        found: list[Saved] = []
        seen: set[str] = set()
        for path in self._files:
            place = os.path.realpath(path)
            if place in seen:  # two looks at one moment would show that nothing moves
                twice = f"{printable(path, 200)} is given twice: that is one scrape, not two"
                errors.append(BadValueError(twice, fix="save a second one some seconds later"))
                continue
            seen.add(place)
            try:
                found.append(saved(path))
            except InputError as error:
                errors.append(error)
        return found

    def _metrics(self, files: Sequence[Saved], told: list[Told], errors: list[InputError]) -> None:
        """Files of the same engine belong together, older first; those of others stand alone."""
        groups: list[list[tuple[Saved, Scrape]]] = []
        for file in files:
            scrape = scrape_of(file.text)
            own = next((group for group in groups if same_engines(group[0][1], scrape)), None)
            if own is None:
                groups.append([(file, scrape)])
            else:
                own.append((file, scrape))
        for group in groups:
            result = _caught(partial(self._of_files, group))
            if isinstance(result, InputError):
                errors.append(result)
            else:
                told.append(Told(result))

    def _of_files(self, group: Sequence[tuple[Saved, Scrape]]) -> Observation:
        scrapes = [scrape for _, scrape in group]
        shown = ", ".join(file.shown for file, _ in group)
        notes = []
        if len(scrapes) > 1 and given_newer_first(scrapes[0], scrapes[-1]):
            scrapes.reverse()
            notes.append("the files were given newer first: read the other way round")
        stamps = [scrape.stamp_s for scrape in scrapes]
        window_s, first = self._window_s, stamps[0]
        if window_s:
            at: list[float | None] = [window_s * index / max(1, len(scrapes) - 1) for index in range(len(scrapes))]
        elif first is not None and len(set(stamps)) == len(stamps) and None not in stamps:
            at = [None if stamp is None else stamp - first for stamp in stamps]
        else:
            at = [None] * len(scrapes)
        dated = [scrape._replace(at_s=at_s) for scrape, at_s in zip(scrapes, at, strict=True)]
        return observation_of_scrapes(dated, source=shown, notes=notes)

    def _logs(self, files: Sequence[Saved], told: list[Told], errors: list[InputError]) -> None:
        window_s = LOG_WINDOW_S if self._window_s is None else self._window_s
        for file in files:
            try:
                told.append(Told(observation_of_log(file.text, window_s, source=file.shown), is_log=True))
            except InputError as error:
                begins = printable(file.text.lstrip().partition("\n")[0], 60)
                errors.append(
                    BadValueError(
                        f"{file.shown}: neither metrics nor the log of an engine ({error.message}); "
                        f"it begins with {begins!r}",
                        fix=_FIX,
                    )
                )


class _Means(NamedTuple):
    """What all addresses are observed with."""

    asker: Asker
    window_s: float | None
    clock: Clock
    sleep: Sleep
    wall_clock: Clock


class _Remote:
    """An address, and what it turned out to be when it was first asked."""

    def __init__(self, source: str, means: _Means) -> None:
        self._shown = printable(source, 120) if "@" not in source else "the URL"
        parts = address_of(source, self._shown, fix="write http://HOST:PORT/metrics, or a Prometheus server's address")
        self._base = f"{parts.scheme}://{parts.netloc}"
        self._path = parts.path.rstrip("/")
        self._query = f"?{parts.query}" if parts.query else ""
        self._means = means
        self._live: Live | None = None
        self._prometheus = ""

    def observe(self) -> Observation:
        means = self._means
        if self._live is None and not self._prometheus:
            self._prometheus = self._prometheus_base()
        if self._prometheus:
            over_s = means.window_s or PROMETHEUS_WINDOW_S
            return observation_of_prometheus(self._prometheus, self._shown, means.asker, over_s, means.wall_clock)
        if self._live is None:
            url = f"{self._base}{self._path or '/metrics'}{self._query}"
            self._live = Live(url, self._shown, means.asker, means.clock, means.sleep)
        return self._live.over(LIVE_WINDOW_S if means.window_s is None else means.window_s)

    def _prometheus_base(self) -> str:
        """A path that ends in metrics is meant so; any other may be that of a Prometheus server: "" if it is not."""
        if self._path.endswith("metrics") or self._query:
            return ""
        base = self._base + self._path.partition("/api/v1")[0].removesuffix("/graph").removesuffix("/query")
        return base if is_prometheus(base, self._means.asker) else ""


def _is_url(source: str) -> bool:
    return urlsplit(source[:2048]).scheme in ("http", "https") if "://" in source[:10] else False


def _caught(work: Callable[[], Observation]) -> Observation | InputError:
    try:
        return work()
    except InputError as error:
        return error
