"""What a running gate takes over from changed settings."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kvbudget.edge.budget.reload import take_over
from kvbudget.edge.instances.settings import InstanceSettings
from kvbudget.gate.policies import Policy
from kvbudget.gate.tenants.settings import ClassLimits, TenantLimits
from kvbudget.units import Blocks, Tokens

Play = Callable[..., None]


def with_gate(stand: Any, **changed: Any) -> Any:
    settings = stand.service.settings
    return replace(settings, gate=replace(settings.gate, **changed))


def test_margin_context_policy_and_queue_limits_change_while_it_runs(play: Play) -> None:
    async def scene(stand: Any) -> None:
        gate = stand.service.gate
        wanted = with_gate(
            stand, margin_blocks=12, max_context=Tokens(100), policy=Policy.TRAJECTORY, queue_requests=3, queue_ns=10**9
        )
        changed, later = take_over(stand.service, wanted)
        assert set(changed) == {"margin_blocks", "max_context", "policy", "queue_requests", "queue_ns"}
        assert later == []
        assert (gate.ledger.capacity_blocks, gate.max_context) == (20, 100)
        assert (gate.config.policy, gate.config.queue_requests) == (Policy.TRAJECTORY, 3)
        assert (await stand.chat(max_tokens=200)).status_code == 200  # clamped to the new cap, as before
        assert stand.engine.requests[-1]["max_tokens"] < 100
        assert take_over(stand.service, wanted) == ([], [])

    play(scene)


def test_limits_of_tenants_and_classes_and_the_risk_change_while_it_runs(play: Play) -> None:
    async def scene(stand: Any) -> None:
        gate = stand.service.gate
        assert (await stand.chat(headers={"x-kvbudget-tenant": "acme"})).status_code == 200
        rest = gate.learned.margin.rest
        wanted = with_gate(
            stand,
            tenants={"acme": TenantLimits(max_blocks=Blocks(1))},
            classes={-5: ClassLimits(reserved_blocks=3)},
            epsilon=0.2,
            enough_answers=9.0,
            worthwhile_wait_ns=7,
        )
        changed, later = take_over(stand.service, wanted)
        assert set(changed) == {"tenants", "classes", "epsilon", "enough_answers", "worthwhile_wait_ns"}
        assert later == []
        refused = await stand.chat(headers={"x-kvbudget-tenant": "acme"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "tenant_limit_exceeded")
        assert (await stand.chat()).status_code == 200
        assert gate.learned.margin.rest < rest
        assert gate.learned.enough_answers == 9.0
        assert "acme" in stand.service.reception.identities.tenants

    play(scene, {"count": 10})


def test_a_pool_set_by_hand_holds_beyond_the_next_look_at_the_engine(play: Play) -> None:
    async def scene(stand: Any) -> None:
        changed, _ = take_over(stand.service, replace(stand.service.settings, pool_blocks=20))
        assert changed == ["pool_blocks"]
        stand.service._looked(await stand.service.backend.look())
        assert stand.service.gate.ledger.usable_blocks == 20
        take_over(stand.service, replace(stand.service.settings, pool_blocks=None))
        assert stand.service.gate.ledger.usable_blocks == 32  # the engine's own word again

    play(scene)


def test_what_is_bound_at_start_is_named_and_stays(play: Play) -> None:
    async def scene(stand: Any) -> None:
        wanted = replace(
            with_gate(stand, margin_blocks=1), port=1, tokenizer="bound", default_max_tokens=1, overload_status=503
        )
        changed, later = take_over(stand.service, wanted)
        assert changed == ["margin_blocks"]
        assert set(later) == {"port", "tokenizer", "default_max_tokens", "overload_status"}
        assert stand.service.settings.port == 0

    play(scene)


def test_who_waits_and_can_no_longer_be_served_is_told(play: Play) -> None:
    async def scene(stand: Any) -> None:
        import asyncio

        stand.engine.hold = True
        first = asyncio.create_task(stand.chat(max_tokens=400))
        await stand.until(lambda: len(stand.engine.requests) == 1)
        second = asyncio.create_task(stand.chat(max_tokens=400))
        await stand.until(lambda: len(stand.service.gate.queue) == 1)
        take_over(stand.service, with_gate(stand, margin_blocks=25))
        assert (await second).status_code == 400
        stand.engine.release.set()
        assert (await first).status_code == 200  # what was promised before is kept

    play(scene)


def test_what_is_said_of_instances_changes_while_they_run_but_not_which_they_are(play: Play) -> None:
    async def scene(stand: Any) -> None:
        service = stand.service
        (url,) = [one.settings.url for one in service.instances]
        drained = replace(service.settings, instances=(InstanceSettings(url, drain=True, pool_blocks=7),))
        assert take_over(service, drained) == (["instances"], [])
        assert service.gate.ledger.usable_blocks == 7
        assert (await stand.chat()).status_code == 503
        back = replace(service.settings, instances=(InstanceSettings(url),))
        assert take_over(service, back) == (["instances"], [])
        assert (await stand.chat()).status_code == 200
        two = replace(back, instances=(InstanceSettings(url), InstanceSettings("http://127.0.0.1:1")))
        assert take_over(service, two) == ([], ["instances"])

    play(scene)
