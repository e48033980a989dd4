"""Which loads and engines the benchmark runs: the scenarios of the product, and others that no figure was chosen by."""

from collections.abc import Iterator
from typing import NamedTuple

from kvbudget.pool.groups import Group, LayerKind, Layout, uniform_layout
from kvbudget.simulate.chance import Chance
from kvbudget.simulate.cost import DEFAULT_COST, StepCost
from kvbudget.simulate.load import TraceRequest
from kvbudget.simulate.scenarios import BLOCK_SIZE, SCENARIOS, Scenario
from kvbudget.simulate.settings import ClientHabits, EngineSizes, Settings
from kvbudget.units import Blocks, Bytes, Tokens

_SLOW = StepCost(base_ns=22_000_000, prefill_ns=180_000, decode_ns=60_000, context_ns=150)
_HYBRID = Layout((
    Group(LayerKind.FULL, 8, Tokens(16), Bytes(1)),
    Group(
        LayerKind.SLIDING, 24, Tokens(16), Bytes(1),
        most_tokens=Tokens(1024 + 8192), extra_blocks=Blocks(1), window=Tokens(1024),
    ),
))  # fmt: skip


class Load(NamedTuple):
    """A scenario with the engine on which it runs."""

    scenario: Scenario
    cost: StepCost = DEFAULT_COST
    layout: Layout = uniform_layout(BLOCK_SIZE)
    max_num_seqs: int = 256
    async_scheduling: bool = False
    max_num_batched_tokens: int = 8192

    def settings(self) -> Settings:
        """Everything else is left at its default."""
        scenario = self.scenario
        sizes = EngineSizes(
            self.layout,
            scenario.num_blocks,
            scenario.max_model_len,
            max_num_seqs=self.max_num_seqs,
            async_scheduling=self.async_scheduling,
            max_num_batched_tokens=self.max_num_batched_tokens,
            cost=self.cost,
        )
        return Settings(sizes, clients=ClientHabits(retries=scenario.retries))


def load_of(name: str) -> Load:
    """A scenario of the product by its name, or one of the others."""
    return Load(SCENARIOS[name]) if name in SCENARIOS else OTHERS[name]


def _lognormal(chance: Chance, median: float, sigma: float, least: int, most: int) -> int:
    return min(most, max(least, round(median * chance.lognormvariate(0.0, sigma))))


def _arrivals(chance: Chance, requests: int, per_s: float) -> Iterator[int]:
    at_ns = 0
    for _ in range(requests):
        at_ns += int(chance.expovariate(per_s) * 1e9)
        yield at_ns


def _slow_card(chance: Chance, requests: int) -> Iterator[TraceRequest]:
    for at_ns in _arrivals(chance, requests, 2.2):
        prompt, output = _lognormal(chance, 900, 0.8, 16, 6000), _lognormal(chance, 250, 0.9, 2, 2000)
        yield TraceRequest(at_ns, Tokens(prompt), Tokens(2000), Tokens(output))


def _short_chat(chance: Chance, requests: int) -> Iterator[TraceRequest]:
    """The places of the engine are scarce, its blocks are not."""
    for at_ns in _arrivals(chance, requests, 60.0):
        prompt, output = _lognormal(chance, 150, 0.6, 8, 2000), _lognormal(chance, 250, 0.6, 4, 1000)
        yield TraceRequest(at_ns, Tokens(prompt), Tokens(1000), Tokens(output))


def _undeclared(chance: Chance, requests: int) -> Iterator[TraceRequest]:
    for at_ns in _arrivals(chance, requests, 11.0):
        prompt, output = _lognormal(chance, 600, 0.9, 16, 6000), _lognormal(chance, 300, 0.8, 4, 2000)
        yield TraceRequest(at_ns, Tokens(prompt), Tokens(output), Tokens(output), declared=False)


def _exact(chance: Chance, requests: int) -> Iterator[TraceRequest]:
    """Every client declares just what its answer takes."""
    for at_ns in _arrivals(chance, requests, 10.5):
        prompt, output = _lognormal(chance, 600, 0.9, 16, 6000), _lognormal(chance, 300, 0.8, 4, 2000)
        yield TraceRequest(at_ns, Tokens(prompt), Tokens(output), Tokens(output))


def _two_kinds(chance: Chance, requests: int) -> Iterator[TraceRequest]:
    """One tenant chats, the other has long documents summarised; both declare the same."""
    for at_ns in _arrivals(chance, requests, 9.0):
        if chance.random() < 0.7:
            lengths, tenant = (chance.randint(30, 300), chance.randint(30, 250)), "chat"
        else:
            lengths, tenant = (chance.randint(2500, 6000), chance.randint(200, 700)), "documents"
        yield TraceRequest(at_ns, Tokens(lengths[0]), Tokens(1024), Tokens(lengths[1]), tenant)


def _sudden(chance: Chance, requests: int) -> Iterator[TraceRequest]:
    """After a third of the requests answers are three times as long from one moment to the next, then half as long."""
    for number, at_ns in enumerate(_arrivals(chance, requests, 9.5)):
        factor = 1.0 if 3 * number < requests else 3.0 if 3 * number < 2 * requests else 0.5
        prompt, output = _lognormal(chance, 600, 0.9, 16, 6000), _lognormal(chance, 200 * factor, 0.8, 4, 2000)
        yield TraceRequest(at_ns, Tokens(prompt), Tokens(2048), Tokens(output))


def _two_modes(chance: Chance, requests: int) -> Iterator[TraceRequest]:
    """Four of five answers are short, the fifth is very long, and nothing tells them apart beforehand."""
    for at_ns in _arrivals(chance, requests, 7.5):
        output = chance.randint(1500, 4000) if chance.random() < 0.2 else chance.randint(20, 200)
        yield TraceRequest(at_ns, Tokens(_lognormal(chance, 400, 0.8, 16, 4000)), Tokens(4096), Tokens(output))


OTHERS = {
    load.scenario.name: load
    for load in (
        Load(
            Scenario("slow-card", "four times slower steps", _slow_card, 300),
            _SLOW,
            max_num_seqs=128,
            max_num_batched_tokens=2048,
        ),
        Load(Scenario("short-chat", "places are scarce, not blocks", _short_chat, 2000, 16385), max_num_seqs=96),
        Load(Scenario("undeclared", "nobody names a max_tokens", _undeclared, 500)),
        Load(Scenario("exact", "everybody declares what it takes", _exact, 500)),
        Load(Scenario("two-kinds", "two tenants of different habits", _two_kinds, 500)),
        Load(Scenario("sudden", "lengths jump up and down", _sudden, 600)),
        Load(Scenario("two-modes", "short or very long, not to be told apart", _two_modes, 400)),
        Load(Scenario("hybrid", "full and sliding layers", _sudden, 500, 6001), layout=_HYBRID),
        Load(Scenario("async", "asynchronous scheduling", _two_modes, 400), async_scheduling=True),
    )
}
