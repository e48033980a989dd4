"""What a simulated gate knows of common prefixes, and what it is worth."""

import random
from typing import Any

import pytest

from kvbudget.pool.groups import Group, LayerKind, Layout, uniform_layout
from kvbudget.pool.prefix import Sharing
from kvbudget.simulate.gate_prefixes import GatePrefixes
from kvbudget.simulate.instance import gate_of, gate_prefixes_of
from kvbudget.simulate.policies import contender
from kvbudget.simulate.run import simulate
from kvbudget.simulate.scenarios import scenario_named
from kvbudget.simulate.settings import EngineSizes, GateBounds, Settings
from kvbudget.units import Bytes, Tokens

WINDOWED = Layout((
    *uniform_layout(16).groups,
    Group(LayerKind.SLIDING, 1, Tokens(16), Bytes(16), most_tokens=Tokens(128), window=Tokens(64)),
))  # fmt: skip


def document(policy: str, sharing: Sharing, *, seed: int = 1, requests: int = 250) -> dict[str, Any]:
    scenario = scenario_named("shared-prompt")
    sizes = EngineSizes(uniform_layout(16), scenario.num_blocks, scenario.max_model_len)
    settings = Settings(sizes, GateBounds(sharing=sharing))
    load = scenario.load(random.Random(seed), requests)
    return simulate(load, settings, contender(policy), random.Random(seed)).document()


def test_keys_are_equal_as_far_as_ids_are() -> None:
    prefixes = GatePrefixes()
    one, other = prefixes.of((7, 8, 9)), prefixes.of((7, 8, 1, 9))
    assert one[:2] == other[:2]
    assert len({*one, *other}) == 5
    assert prefixes.of((7, 8, 9)) == one


@pytest.mark.parametrize("seed", range(20))
def test_chains_are_numbered_as_they_are_first_seen(seed: int) -> None:
    chance = random.Random(seed)
    prefixes, numbers = GatePrefixes(), dict[tuple[int, ...], int]()
    prompts: list[tuple[int, ...]] = [()]
    for _ in range(200):
        begun = chance.choice(prompts)
        ids = begun[: chance.randint(0, len(begun))] + tuple(chance.choices((1, 2, 3, -4), k=chance.randint(0, 5)))
        prompts.append(ids)
        beginnings = [ids[: end + 1] for end in range(len(ids))]
        expected = tuple(numbers.setdefault(beginning, len(numbers) + 1) for beginning in beginnings)
        assert prefixes.of(ids) == expected


@pytest.mark.parametrize(
    ("policy", "sizes", "sharing", "told"),
    [
        ("trajectory", EngineSizes(uniform_layout(16), 100), Sharing.SCHEDULED, True),
        ("none", EngineSizes(uniform_layout(16), 100), Sharing.SCHEDULED, False),
        ("trajectory", EngineSizes(uniform_layout(16), 100), Sharing.OFF, False),
        ("trajectory", EngineSizes(uniform_layout(16), 100, prefix_caching=False), Sharing.SCHEDULED, False),
        ("trajectory", EngineSizes(uniform_layout(16), 100, prefix_id_tokens=500), Sharing.SCHEDULED, False),
        ("trajectory", EngineSizes(WINDOWED, 100), Sharing.SCHEDULED, False),
    ],
)
def test_the_gate_is_told_of_prefixes_only_where_they_are_sure_to_be_shared(
    policy: str, sizes: EngineSizes, sharing: Sharing, told: bool
) -> None:
    settings, who = Settings(sizes, GateBounds(sharing=sharing)), contender(policy)
    assert (gate_prefixes_of(settings, who) is not None) is told
    if told:
        assert gate_of(settings, who).ledger.key_tokens == 512


@pytest.mark.parametrize("policy", ["worst-case", "trajectory"])
def test_behind_one_long_prompt_credit_nearly_doubles_what_is_served_in_time_without_a_preemption(policy: str) -> None:
    without, credited = document(policy, Sharing.OFF), document(policy, Sharing.SCHEDULED)
    assert credited["goodput_tokens_per_s"] > 1.8 * without["goodput_tokens_per_s"]
    assert (without["preemptions"], credited["preemptions"]) == (0, 0)


def test_the_learned_policy_gains_as_well_and_stays_near_the_clairvoyant() -> None:
    without, credited, oracle = (
        document("learned", Sharing.OFF),
        document("learned", Sharing.SCHEDULED),
        document("oracle", Sharing.SCHEDULED),
    )
    assert credited["goodput_tokens_per_s"] > 1.8 * without["goodput_tokens_per_s"]
    assert credited["goodput_tokens_per_s"] > 0.9 * oracle["goodput_tokens_per_s"]
    assert credited["preempted_requests"] <= 0.02 * credited["requests"]
