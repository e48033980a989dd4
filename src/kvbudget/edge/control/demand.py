"""Decides what demand is at a gate, minute by minute, and what is foretold of it on the admin port.

Demand is what would have to be in flight to serve everybody now, in tokens of the pool (blocks times block size):
what is promised to the living, what those who wait count for in the queue, and what was refused for lack of room, each
at the size that it would have been promised and for as long as it would have lived. It goes on where an engine's usage
gauge ends at 1. A client that comes again after a refusal counts again.

Looked at every few seconds by a task of its own; the data path only adds one number to another per refusal.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any, NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric

from kvbudget.diagnose.forecast.forecaster import Forecast, Forecaster
from kvbudget.diagnose.forecast.interval import NOMINAL
from kvbudget.edge.repeated import Repeated
from kvbudget.edge.request.gateway import Gateway
from kvbudget.gate.fleet.member import Member
from kvbudget.gate.waiting.prospect import free_blocks_in

SCHEMA = "kvbudget.live_forecast/1"
EVERY_S = 5.0
HORIZON_MINUTES = 30
_KEPT_MINUTES = 120  # shown; the forecaster keeps what it needs itself
_NS_PER_MINUTE = 60 * 10**9
DRAINS_S = {"free_blocks_in_10_s": 10, "free_blocks_in_60_s": 60}
FORECAST_GAUGES = {
    "kvbudget_demand_tokens": (
        "Tokens that would have to be in flight to serve everybody: promised, waiting, and refused for lack of room in "
        "the last minute for as long as they would have lived."
    ),
    "kvbudget_forecast_saturation_probability": (
        "Probability that demand reaches 95 % of the pool within the next 30 minutes; 1 while it does."
    ),
    "kvbudget_forecast_alarm": "1 if that is likely enough to be worth a warning, else 0.",
    "kvbudget_forecast_demand_tokens": (
        "The highest demand expected within the next 30 minutes (bound=expected), and the bounds of its 90 % interval "
        "(low, high)."
    ),
}
_LABELS = {"kvbudget_forecast_demand_tokens": ["instance", "bound"]}


class Demand(NamedTuple):
    """Of one instance, in tokens: `promised` to the living, `waiting` in the queue, `refused` for lack of room."""

    promised: int
    waiting: int
    refused: int

    @property
    def tokens(self) -> int:
        """All of it."""
        return self.promised + self.waiting + self.refused


class Watched:
    """One instance, minute by minute. `capacity_tokens`: of its pool, now."""

    def __init__(self, name: str, capacity_tokens: Callable[[], int]) -> None:
        self.name = name
        self.capacity_tokens = capacity_tokens
        self.forecaster: Forecaster | None = None
        self.forecast: Forecast | None = None
        self.minutes: deque[int | None] = deque(maxlen=_KEPT_MINUTES)
        self.refused = 0  # tokens in flight on average, had those of the last whole minute been let in
        self._sum = self._looks = 0

    def look(self, now: Demand) -> None:
        """What it is at one moment of the minute."""
        self._sum += now.promised + now.waiting
        self._looks += 1

    def minute_over(self, minute: int, refused: int) -> None:
        """The mean of the minute goes to the forecaster; a minute without engine is one that nothing is known of."""
        self.refused = refused
        tokens = self._sum // self._looks + refused if self._looks else None
        self._sum = self._looks = 0
        self.minutes.append(tokens)
        capacity = self.capacity_tokens()
        if capacity <= 0:
            return
        if self.forecaster is None:
            self.forecaster = Forecaster(capacity, HORIZON_MINUTES)
        elif self.forecaster.capacity_tokens != capacity:
            self.forecaster.resize(capacity)
        self.forecast = self.forecaster.observe(minute, tokens)

    def document(self, demand: Demand) -> dict[str, Any]:
        """As JSON; tokens are integers."""
        return {
            "name": self.name,
            "capacity_tokens": self.capacity_tokens(),
            "demand_tokens": demand.tokens,
            "demand": demand._asdict(),
            "forecast": None if self.forecast is None else _told(self.forecast),
            "score": None if self.forecaster is None else _score(self.forecaster),
            "minutes": list(self.minutes),
        }


class _OfMember(Watched):
    """An instance behind this gate."""

    def __init__(self, member: Member) -> None:
        super().__init__(member.name, lambda: capacity_tokens(member))
        self.member = member


class DemandWatch:
    """Demand of all instances behind one gateway, and what is foretold of it."""

    def __init__(self, gateway: Gateway, now_ns: Callable[[], int], *, every_s: float = EVERY_S) -> None:
        self._gateway = gateway
        self._now_ns = now_ns
        self._looking = Repeated("demand", self.look, every_s, "demand could not be looked at", at_once=False)
        self._watched: list[_OfMember] = []
        self._heed_members()
        self._minute = now_ns() // _NS_PER_MINUTE
        self._refused_before = gateway.metrics.refused_block_tokens

    def start(self) -> None:
        """Look every few seconds from now on, until `close`."""
        self._looking.start()

    async def close(self) -> None:
        """May be called in any state."""
        await self._looking.close()

    def _heed_members(self) -> None:
        """Some may have come or gone."""
        members = self._gateway.fleet.members
        if [one.member for one in self._watched] != members:
            known = {id(one.member): one for one in self._watched}
            self._watched = [known.get(id(member)) or _OfMember(member) for member in members]

    def look(self) -> None:
        """One look at all instances, and at the forecast when a minute is over."""
        self._heed_members()
        minute = self._now_ns() // _NS_PER_MINUTE
        if minute > self._minute:
            refused = self._refused_tokens(minute - self._minute)
            for one in self._watched:
                one.minute_over(self._minute, refused.get(one.member.name, 0))
            self._minute = minute
        for one in self._watched:
            if one.member.gate.backend_up:
                one.look(self._demand(one))

    def families(self) -> list[Metric]:
        """The gauges above; of an instance without forecast only its demand."""
        return families_of([(one, self._demand(one)) for one in self._watched])

    def document(self) -> dict[str, Any]:
        """All of it as JSON; tokens are integers, `drain` is in blocks."""
        return {
            "schema": SCHEMA,
            "horizon_minutes": HORIZON_MINUTES,
            "instances": [self._document_of(one) for one in self._watched],
        }

    def _document_of(self, one: _OfMember) -> dict[str, Any]:
        gate, now_ns = one.member.gate, self._now_ns()
        return {
            **one.document(self._demand(one)),
            "drain": {
                "pool_blocks": gate.ledger.pool_blocks,
                "free_blocks": gate.free_blocks(),
                **{name: free_blocks_in(gate, s * 10**9, now_ns) for name, s in DRAINS_S.items()},
            },
        }

    def _demand(self, one: _OfMember) -> Demand:
        gate = one.member.gate
        promised = (gate.promised_blocks() + gate.promises.elsewhere_blocks) * gate.ledger.layout.groups[0].block_size
        return Demand(promised, gate.queue.tokens, one.refused)

    def _refused_tokens(self, minutes: int) -> dict[str, int]:
        """By instance, what was refused since the last minute, had it been in flight: the share that each could have
        taken. A refusal is of all instances."""
        total = self._gateway.metrics.refused_block_tokens
        new, self._refused_before = total - self._refused_before, total
        takers = [one.member for one in self._watched if one.member.in_service]
        capacity = sum(capacity_tokens(member) for member in takers)
        found = {}
        for member in takers if new and capacity else ():
            gate = member.gate
            lived_ns = gate.expectation.used_share * gate.expectation.ns_per_token  # for each token that was asked for
            blocks = new * lived_ns / (minutes * _NS_PER_MINUTE) * capacity_tokens(member) / capacity
            found[member.name] = int(blocks * gate.ledger.layout.groups[0].block_size)
        return found


def families_of(watched: Iterable[tuple[Watched, Demand]]) -> list[Metric]:
    """The gauges above; of an instance without forecast only its demand."""
    families = {
        name: GaugeMetricFamily(name, text, labels=_LABELS.get(name, ["instance"]))
        for name, text in FORECAST_GAUGES.items()
    }
    for one, demand in watched:
        name, forecast = one.name, one.forecast
        families["kvbudget_demand_tokens"].add_metric([name], demand.tokens)
        if forecast is None:
            continue
        families["kvbudget_forecast_saturation_probability"].add_metric([name], forecast.probability)
        families["kvbudget_forecast_alarm"].add_metric([name], float(forecast.alarm))
        for bound, value in (("low", forecast.low), ("expected", forecast.expected), ("high", forecast.high)):
            families["kvbudget_forecast_demand_tokens"].add_metric([name, bound], value)
    return [family for family in families.values() if family.samples]


def capacity_tokens(member: Member) -> int:
    """What its pool holds."""
    return member.gate.ledger.usable_blocks * member.gate.ledger.layout.groups[0].block_size


def _told(forecast: Forecast) -> dict[str, Any]:
    told = {name: round(value) if name in _TOKENS else value for name, value in asdict(forecast).items()}
    told["probability"] = round(forecast.probability, 4)
    told["alarm_above"] = round(forecast.alarm_above, 4)
    return told


_TOKENS = ("tokens", "capacity_tokens", "limit_tokens", "expected", "low", "high")


def _score(forecaster: Forecaster) -> dict[str, object]:
    coverage, truths = forecaster.coverage
    return {
        **{name: figures._asdict() for name, figures in forecaster.scores().items()},
        "interval": {"nominal": NOMINAL, "coverage": coverage, "truths": truths},
    }
