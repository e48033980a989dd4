"""The learned policy counts blocks that several hold once, while they come and go between two looks at everybody."""

import random
from collections.abc import Callable

import pytest

from kvbudget.gate.commands import Forward
from kvbudget.gate.events import Arrived, Ended
from kvbudget.gate.gate import Gate
from kvbudget.gate.policies import Policy
from kvbudget.gate.refusing.refusals import Outcome
from kvbudget.pool.prefix import Sharing
from kvbudget.units import Tokens

MakeGate = Callable[..., Gate]
Arrive = Callable[..., Arrived]


def prefix_of(letters: str) -> tuple[int, ...]:
    return tuple([hash(letters[: end + 1]) for end in range(len(letters))])


@pytest.mark.parametrize("seed", range(20))
def test_what_is_believed_to_be_held_counts_every_shared_block_once(
    make_gate: MakeGate, arrive: Arrive, seed: int
) -> None:
    rng = random.Random(seed)
    gate = make_gate(10_000, Policy.LEARNED, sharing=Sharing.SCHEDULED)
    learned, ledger = gate.learned, gate.ledger
    living: dict[str, int] = {}
    for number in range(60):
        now = number * 1000
        if rng.random() < 0.6 or not living:
            letters = "".join(rng.choice("aab") for _ in range(rng.randint(0, 8)))
            prompt = 16 * len(letters) + rng.randint(1, 40)
            (command,) = gate.handle(arrive(f"r{number}", prompt, 50, prefix=prefix_of(letters)), now)
            assert isinstance(command, Forward)
            living[f"r{number}"] = prompt
        else:
            name = rng.choice(sorted(living))
            del living[name]
            gate.handle(Ended(name, Outcome.CLIENT_GONE), now)
        if rng.random() < 0.2:
            learned.batch._stale = True  # as if an epoch had passed
        learned.refresh(ledger, now)
        each = sum(learned.batch.growth.blocks(prompt, prompt + 50) for prompt in living.values())
        believed = learned.outlook.held_now() + learned.batch.together(ledger)
        assert believed == pytest.approx(each - ledger.shared_prefix_blocks)
    for name in living:
        gate.handle(Ended(name, Outcome.FINISHED), 10**9)
    assert gate.promised_blocks() == 0


def test_a_full_pool_lets_in_who_shares(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = make_gate(40, Policy.LEARNED, sharing=Sharing.SCHEDULED, worthwhile_wait_ns=10**12)
    letters = "abcdefghijklmnopqrst"
    gate.handle(arrive("a", 321, 300, prefix=prefix_of(letters)), 0)
    (shares,) = gate.handle(arrive("b", 321, 300, prefix=prefix_of(letters)), 1)
    assert isinstance(shares, Forward)
    (alone,) = gate.handle(arrive("c", 321, 300), 2)
    assert not isinstance(alone, Forward)


@pytest.mark.parametrize(("sharing", "fit"), [(Sharing.SCHEDULED, 3), (Sharing.OFF, 2)])
def test_the_clairvoyant_counts_them_once_as_well(
    make_gate: MakeGate, arrive: Arrive, sharing: Sharing, fit: int
) -> None:
    gate = make_gate(60, Policy.LEARNED, sharing=sharing)
    let_in = 0
    for name in "abc":
        prefix = prefix_of("abcdefghijklmnopqrst")
        event = arrive(name, 321, 500, prefix=prefix, paced=True, known_tokens=Tokens(20))
        let_in += isinstance(gate.handle(event, 0)[0], Forward)
    assert let_in == fit
