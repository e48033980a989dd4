"""Decides what is wrong with each engine behind the gate, by the rules of `kvbudget diagnose`, whenever somebody asks.

The looks that the gate takes anyway are kept as they came; they are read only when the admin port is asked, in a
thread, so that no request waits for it.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from kvbudget.diagnose.enough import lacking
from kvbudget.diagnose.finding import Diagnosis, document
from kvbudget.diagnose.verdict import diagnose
from kvbudget.edge.instances.backend import Backend
from kvbudget.edge.request.gateway import Gateway
from kvbudget.engines.metrics.observation import observation_of_scrapes, scrape_of
from kvbudget.engines.metrics.span import Scrape
from kvbudget.engines.window import GateWindow, Observation
from kvbudget.errors import InputError
from kvbudget.gate.fleet.member import Member

SCHEMA = "kvbudget.findings/1"
WINDOW_S = 60.0
_STRIDE_S = 14.0  # between two looks that are kept; the newest is always there
_LOOKS = 3
_NS = 1_000_000_000


class _Asked(NamedTuple):
    """What a thread is given: nothing that the gate goes on changing."""

    name: str
    up: bool
    problem: str
    scrapes: tuple["_Kept", ...]
    gate: GateWindow
    max_num_seqs: int | None


class _Kept:
    """A look as it came; parsed once, when it is first needed."""

    __slots__ = ("at_s", "scrape", "text")

    def __init__(self, at_s: float, text: str) -> None:
        self.at_s = at_s
        self.text = text
        self.scrape: Scrape | None = None

    def parsed(self) -> Scrape:
        """The samples in it."""
        if self.scrape is None:
            self.scrape = scrape_of(self.text, self.at_s)
            self.text = ""
        return self.scrape


class Findings:
    """What was found of each instance when it was last asked for: `latest`, by name."""

    def __init__(self, gateway: Gateway, now_ns: Callable[[], int]) -> None:
        self._gateway = gateway
        self._now_ns = now_ns
        self._kept: dict[str, deque[_Kept]] = {}
        self._judged: dict[
            str, tuple[float, bool]
        ] = {}  # by name: the newest look that was judged, and whether it was up
        self._lock = asyncio.Lock()
        self.latest: dict[str, Diagnosis] = {}
        self._followed: dict[str, Backend] = {}
        self._follow()

    def _follow(self) -> None:
        """Those that there are now: some may come and go."""
        backends = self._gateway.backends
        for name in [name for name, backend in self._followed.items() if backends.get(name) is not backend]:
            for told in (self._followed, self._kept, self._judged, self.latest):
                told.pop(name, None)
        for name, backend in backends.items():
            if name not in self._followed:
                self._followed[name], self._kept[name] = backend, deque()
                backend.on_scrape = self._heard(name)

    def _heard(self, name: str) -> Callable[[str], None]:
        kept = self._kept[name]

        def heard(text: str) -> None:
            now_s = self._now_ns() / _NS
            if len(kept) > 1 and kept[-1].at_s - kept[-2].at_s < _STRIDE_S:
                kept.pop()
            kept.append(_Kept(now_s, text))
            while len(kept) > 2 and now_s - kept[1].at_s >= WINDOW_S:
                kept.popleft()

        return heard

    async def refresh(self) -> Mapping[str, Diagnosis]:
        """Judge what came since the last time."""
        async with self._lock:
            self._follow()
            asked = [one for member in self._gateway.fleet.members if (one := self._asked(member)) is not None]
            if asked:
                self.latest.update(await asyncio.to_thread(_judged, asked))
        return self.latest

    def _asked(self, member: Member) -> _Asked | None:
        backend, kept = self._gateway.backends[member.name], self._kept[member.name]
        newest = kept[-1].at_s if kept else 0.0
        state = newest, member.gate.backend_up
        if self._judged.get(member.name) == state and member.name in self.latest:
            return None
        self._judged[member.name] = state
        if not backend.facts.up:
            kept.clear()
        return _Asked(
            member.name,
            backend.facts.up,
            backend.facts.problem,
            _three(kept),
            _gate_window(member, backend),
            backend.facts.max_num_seqs,
        )

    def document(self) -> dict[str, object]:
        """kvbudget.findings/1."""
        instances = [{"instance": name, **document(found)} for name, found in self.latest.items()]
        return {"schema": SCHEMA, "instances": instances}


def _three(kept: deque[_Kept]) -> tuple[_Kept, ...]:
    """The oldest, the middle one, the newest: what stands still does so in these, and each costs a millisecond."""
    return tuple(kept) if len(kept) <= _LOOKS else (kept[0], kept[len(kept) // 2], kept[-1])


def _judged(asked: list[_Asked]) -> dict[str, Diagnosis]:
    return {one.name: _diagnosis(one) for one in asked}


def _diagnosis(asked: _Asked) -> Diagnosis:
    scrapes = [kept.parsed() for kept in asked.scrapes]
    if not asked.up or not scrapes:
        why = asked.problem or "it has not been looked at yet"
        away = lacking(f"the engine is not there to be judged ({why})", ("a look at it once it is up",), {})
        return Diagnosis(away.code, (away,))
    try:
        seen = observation_of_scrapes(scrapes)
    except InputError as error:
        seen = Observation(problems=(str(error),))
    return diagnose(Observation(seen.engines, (asked.gate,), seen.sources, seen.problems), asked.max_num_seqs)


def _gate_window(member: Member, backend: Backend) -> GateWindow:
    gate, reading = member.gate, backend.facts.reading
    usable = gate.ledger.usable_blocks
    held = None if reading is None or reading.usage is None else round(reading.usage * usable)
    return GateWindow(
        instance=member.name,
        pool_blocks=usable,
        promised_blocks=gate.promised_blocks() + gate.promises.elsewhere_blocks,
        held_blocks=held,
        elsewhere_blocks=member.elsewhere_blocks,
        margin_blocks=gate.ledger.margin_blocks,
        queue_requests=len(gate.queue),
        queue_tokens=gate.queue.tokens,
        policy=gate.config.policy.value,
    )
