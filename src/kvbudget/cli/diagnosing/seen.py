"""Decides what a SOURCE is (a file or two, a live /metrics), and reads it into an Observation."""

import time
from collections import deque
from collections.abc import Callable, Sequence

from kvbudget.edge.budget.report import text_of
from kvbudget.engines.metrics.observation import observation_of, observation_of_scrapes, scrape_of
from kvbudget.engines.metrics.span import Scrape
from kvbudget.engines.window import Observation
from kvbudget.errors import BadValueError, InputError

_MOST_SCRAPES = 240


def observe(sources: Sequence[str], window_s: float | None) -> Observation:
    """What the sources tell. A live /metrics is scraped twice, `window_s` apart. Raises InputError."""
    if len(sources) > 2:
        raise BadValueError(f"{len(sources)} sources, at most two files", fix="give the older and the newer scrape")
    if len(sources) == 1 and is_live(sources[0]):
        older = text_of(sources[0])
        began = time.monotonic()
        time.sleep(window_s or 10.0)
        newer = text_of(sources[0])
        return observation_of(older, newer, time.monotonic() - began, source=sources[0])
    texts = [text_of(source) for source in sources]
    older_text = texts[0] if len(texts) == 2 else None
    return observation_of(older_text, texts[-1], window_s, source=" and ".join(sources))


def is_live(source: str) -> bool:
    """Whether it is an address that can be asked again."""
    return source.startswith(("http://", "https://"))


class Lookout:
    """Scrapes live sources again and again, and keeps those of the last `window_s` seconds."""

    def __init__(
        self,
        sources: Sequence[str],
        window_s: float,
        *,
        read: Callable[[str], str] = text_of,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises BadValueError for a source that cannot be asked again."""
        for source in sources:
            if not is_live(source):
                raise BadValueError(
                    f"--watch: {source[:200]!r} is no URL, and a file does not change", fix="give the URL of /metrics"
                )
        self._window_s = window_s
        self._read = read
        self._now_s = now_s
        self._kept: dict[str, deque[Scrape]] = {source: deque(maxlen=_MOST_SCRAPES) for source in sources}

    def look(self) -> Observation:
        """What all of them tell by now. Raises InputError where none can be read."""
        seen, problems = [], []
        for source, kept in self._kept.items():
            try:
                text = self._read(source)
            except InputError as error:
                problems.append(error)
                continue
            now = self._now_s()
            kept.append(scrape_of(text, now))
            while len(kept) > 2 and now - (kept[0].at_s or now) > self._window_s:
                kept.popleft()
            seen.append(observation_of_scrapes(list(kept), source=source))
        if problems and not seen:
            raise problems[0]
        return Observation(
            engines=tuple(window for one in seen for window in one.engines),
            gates=tuple(gate for one in seen for gate in one.gates),
            sources=tuple(source for one in seen for source in one.sources),
            problems=tuple(str(problem) for problem in problems),
        )
