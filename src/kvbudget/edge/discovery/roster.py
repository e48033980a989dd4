"""Decides from the answers of one source who joins and who leaves: never all at once because an answer was empty.

A source that fails, or names nobody, says nothing of engines that ran a moment ago: their own health does. What is
told to be going is another matter.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Final, NamedTuple

MOST_FOUND: Final = 64
"""Engines of one source: each is looked at all the time, and tried for every request."""


class Standing(Enum):
    """What a source says of an engine."""

    READY = "ready"
    UNREADY = "unready"  # not yet, or not just now: no reason to join, and none to leave
    GOING = "going"  # it has been told to stop


class Found(NamedTuple):
    """An engine, by its address."""

    url: str
    standing: Standing = Standing.READY


class Change(NamedTuple):
    """What an answer changes. `empty`: it named nobody; `left_out`: engines beyond MOST_FOUND."""

    joining: tuple[str, ...]
    leaving: tuple[str, ...]
    empty: bool
    left_out: int


class Roster:
    """Who is known of one source. `misses`: answers in a row that do not name an engine until it leaves."""

    def __init__(self, misses: int = 1) -> None:
        self._misses = misses
        self.known: dict[str, int] = {}  # url -> answers in a row without it

    def heard(self, found: Sequence[Found]) -> Change:
        """Take in an answer; of an engine that it names twice, going counts before ready before unready."""
        told = {one.url: one.standing for one in sorted(found, key=lambda one: _ORDER[one.standing])}
        going = [url for url in self.known if told.get(url) is Standing.GOING]
        for url in going:
            del self.known[url]
        named = [url for url, standing in told.items() if standing is not Standing.GOING]
        if not named:
            return Change((), tuple(going), empty=not told, left_out=0)
        missing = [url for url in self.known if url not in told]
        for url in named:
            if url in self.known:
                self.known[url] = 0
        for url in missing:
            self.known[url] += 1
        gone = [url for url in missing if self.known[url] >= self._misses]
        for url in gone:
            del self.known[url]
        new = sorted(url for url in named if url not in self.known and told[url] is Standing.READY)
        joining = new[: max(0, MOST_FOUND - len(self.known))]
        self.known.update(dict.fromkeys(joining, 0))
        return Change(tuple(joining), (*going, *gone), empty=False, left_out=len(new) - len(joining))


_ORDER: Final = {Standing.UNREADY: 0, Standing.READY: 1, Standing.GOING: 2}
