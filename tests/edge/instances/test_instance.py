"""What a look at an engine leads to: stuck, restarted, used by others, limits of its own."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kvbudget.edge.http.limits import UpstreamLimits
from kvbudget.edge.instances.instance import STUCK, Instance
from kvbudget.edge.instances.settings import InstanceSettings
from kvbudget.engines.readings import EnginePool, EngineReading
from kvbudget.gate.events import BackendChanged
from kvbudget.gate.fleet.events import HeldElsewhere, Restarted, Serves
from kvbudget.gate.fleet.fleet import Fleet
from kvbudget.gate.fleet.options import FleetConfig
from kvbudget.gate.fleet.readings import LOOKS_AGREE, LOOKS_STUCK
from kvbudget.gate.gate import GateConfig
from kvbudget.units import Blocks, Tokens

POOL = EnginePool(Blocks(101), Blocks(100), Tokens(16), None, None, None, None, True, True)
IDLE = EngineReading(POOL, 0.0, 0, 0, 0)


class Watched:
    """An instance, and what it tells."""

    def __init__(self, **settings: Any) -> None:
        self.instance = Instance(
            InstanceSettings("http://127.0.0.1:1", **settings), GateConfig(), FleetConfig(), UpstreamLimits()
        )
        self.told: list[Any] = []
        self.fleet = Fleet([self.instance.member], FleetConfig())
        self.lost = self.recalled = 0
        self.instance.push = self._push
        self.instance.lost = lambda member: setattr(self, "lost", self.lost + 1)
        self.instance.recall = lambda member: setattr(self, "recalled", self.recalled + 1)

    def _push(self, member: Any, event: Any) -> None:
        self.told.append(event)
        self.fleet.handle_at(member, event, 0)

    def look(self, reading: EngineReading | None = IDLE, **facts: Any) -> None:
        given = {"up": True, "pool": POOL, "reading": reading, **facts}
        self.instance.backend.facts = replace(self.instance.backend.facts, **given)
        self.instance.looked(self.instance.backend.facts)

    def kinds(self) -> list[str]:
        return [type(event).__name__ for event in self.told]


def on(scene: Callable[[Watched], None], **settings: Any) -> None:
    async def run() -> None:
        scene(Watched(**settings))

    asyncio.run(run())


def test_a_scheduler_that_makes_no_progress_is_taken_out_and_comes_back() -> None:
    def scene(one: Watched) -> None:
        stuck = replace(IDLE, waiting=3)
        for _ in range(LOOKS_STUCK - 1):
            one.look(stuck)
        assert one.told[-1] == BackendChanged(True)
        one.look(stuck)
        one.look(stuck)
        assert one.instance.backend.facts.problem == STUCK
        assert (one.recalled, one.told[-1]) == (1, BackendChanged(False)), "whoever got nothing yet goes elsewhere"
        one.look(IDLE)
        assert one.told[-1] == BackendChanged(True)

    on(scene)


def test_another_process_has_lost_what_the_old_one_had() -> None:
    def scene(one: Watched) -> None:
        for started in (1.0, 1.0, 2.0, 2.0):
            one.look(replace(IDLE, started=started))
        assert (one.lost, one.kinds().count("Restarted"), Restarted() in one.told) == (1, 1, True)

    on(scene)


def test_what_others_hold_is_told_when_it_changes() -> None:
    def scene(one: Watched) -> None:
        for _ in range(LOOKS_AGREE + 2):
            one.look(replace(IDLE, usage=0.5, running=4))
        told = [event for event in one.told if isinstance(event, HeldElsewhere)]
        assert told == [HeldElsewhere(48)], "half of the pool, but for what no rule counts"
        assert one.instance.member.gate.free_blocks() == 52
        one.look(IDLE)
        assert one.told[-1] == HeldElsewhere(0)

    on(scene)


@pytest.mark.parametrize("reading", [None, replace(IDLE, usage=None, running=None, waiting=None)])
def test_a_look_that_tells_nothing_takes_nothing_away(reading: EngineReading | None) -> None:
    def scene(one: Watched) -> None:
        one.look(replace(IDLE, usage=0.5, running=4))
        before = one.kinds()
        for _ in range(10):
            one.look(reading)
        assert one.kinds() == before
        assert one.instance.member.gate.backend_up

    on(scene)


def test_models_and_limits_of_the_engine_are_taken_over() -> None:
    def scene(one: Watched) -> None:
        one.look(models=("m", "m-lora"), max_num_seqs=4)
        assert Serves(frozenset({"m", "m-lora"})) in one.told
        assert one.instance.member.gate.config.max_num_seqs == 4

    on(scene, max_num_seqs=9)


def test_other_settings_hold_at_once() -> None:
    def scene(one: Watched) -> None:
        one.look()
        settings = replace(one.instance.settings, max_context=Tokens(99), drain=True, weight=2.0, aliases={"a": "m"})
        one.instance.reconfigure(settings, GateConfig(max_num_seqs=7))
        gate = one.instance.member.gate
        assert (gate.config.max_num_seqs, gate.config.max_context) == (7, 99)
        assert (one.instance.member.options.weight, one.kinds()[-1]) == (2.0, "Drained")
        assert one.instance.backend.own_name("a") == "m"
        one.instance.reconfigure(replace(settings, block_size=32, pool_blocks=50), GateConfig())
        assert one.told[-1].usable_blocks == 50
        assert one.told[-1].layout.groups[0].block_size == 32

    on(scene)
