from kvbudget.gate.trust import FIRST, MOST, Trust


def after(trust: Trust, requests: int) -> bool:
    for _ in range(requests):
        trust.ended()
    return trust.given


def test_a_wrong_guess_suspends_credit_until_enough_requests_ended_without_one() -> None:
    trust = Trust()
    assert trust.given
    trust.wrong()
    assert not after(trust, FIRST - 1)
    assert after(trust, 1)


def test_every_further_one_costs_twice_as_much_and_several_at_once_are_one() -> None:
    trust = Trust()
    trust.wrong()
    after(trust, 3)
    for _ in range(5):
        trust.wrong()
    assert trust.doubt == 2 * FIRST
    for _ in range(20):
        after(trust, 1)
        trust.wrong()
    assert trust.doubt == MOST


def test_a_long_time_without_any_forgets() -> None:
    trust = Trust()
    trust.wrong()
    after(trust, FIRST + MOST - 1)
    trust.wrong()
    assert trust.doubt == 2 * FIRST
    after(trust, 2 * FIRST + MOST + 5)
    trust.wrong()
    assert trust.doubt == FIRST
