from math import isclose, sqrt

from kvbudget.gate.tenants.accounts import Account, Charge, Flow
from kvbudget.gate.tenants.kept import KEPT_SPREAD, Groups, held_lately, kept_by_class
from kvbudget.gate.tenants.settings import ClassLimits
from kvbudget.pool.risk import Outlook
from kvbudget.pool.share import GRID, share_of

SECOND = 10**9
LASTS = 100  # steps
THEN = next(g for g, moment in enumerate(GRID) if moment > LASTS)


def outlook_of(**held: float) -> Outlook:
    """Who lives holds so much for LASTS steps."""
    outlook = Outlook()
    for name, blocks in held.items():
        share = share_of(None, made_tokens=0, limit_tokens=LASTS, held=blocks, per_step=0.0, sequences=1)
        outlook.add(name, share)
    return outlook


def flow_of(*blocks: float, held_ns: int = 1000 * SECOND) -> Flow:
    """One tenant that held these requests side by side all the time."""
    flow = Flow(Account("a", 1.0, 0), 0)
    for one in blocks:
        flow.blocks.change(one, 0)
        flow.squares.change(one**2, 0)
        flow.sequences.change(1, 0)
    flow.blocks.measure(held_ns)
    return flow


def kept_of(flow: Flow, outlook: Outlook | None, **charged: float) -> list[float]:
    charges = {name: Charge(flow.account, 0, blocks, 1, 0) for name, blocks in charged.items()}
    return groups_of(flow, outlook, charges, {})[0][1].blocks


def groups_of(
    flow: Flow, outlook: Outlook | None, charges: dict[str, Charge], classes: dict[int, ClassLimits]
) -> Groups:
    lately = held_lately({(0, "a"): flow}, {"a": True}, 1.0, 1000 * SECOND, independent=outlook is not None)
    return kept_by_class(lately, charges, {"a": True}, classes, outlook)


def test_newcomers_hold_by_then_what_those_who_live_have_given_back() -> None:
    blocks = kept_of(flow_of(30.0, 40.0), outlook_of(x=70.0), x=70.0)
    assert blocks[0] == 0.0
    # No two ever came or went, but they may: 30^2 + 40^2 is the variance of such a flow.
    assert isclose(blocks[THEN + 1], 70.0 + KEPT_SPREAD * 50.0)


def test_a_burst_of_others_does_not_make_up_for_what_they_will_ask_for_next() -> None:
    usual = kept_of(flow_of(30.0, 40.0), outlook_of(x=70.0), x=70.0)
    in_a_burst = kept_of(flow_of(30.0, 40.0), outlook_of(x=70.0, y=500.0), x=70.0, y=500.0)
    assert in_a_burst == usual


def test_after_a_lull_not_all_of_it_can_come_at_once() -> None:
    blocks = kept_of(flow_of(30.0, 40.0), outlook_of(other=10.0))
    assert blocks[0] == 0.0
    assert blocks[THEN + 1] > 70.0


def test_nobody_lives_so_all_that_comes_is_new() -> None:
    assert kept_of(flow_of(40.0), outlook_of())[0] == 40.0 + KEPT_SPREAD * 40.0


def test_what_varies_more_than_by_chance_keeps_more() -> None:
    flow = Flow(Account("a", 1.0, 0), 0)
    for second in range(400):
        flow.blocks.change(100.0 if second % 2 == 0 else -100.0, second * SECOND)
    blocks = kept_of(flow, outlook_of())
    mean, variance = flow.blocks.measure(1000 * SECOND)
    assert variance > flow.squares.measure(1000 * SECOND)[0] == 0.0
    assert isclose(blocks[0], mean + KEPT_SPREAD * sqrt(variance))


def test_what_is_reserved_for_a_class_stays_free_but_for_what_it_holds_moment_by_moment() -> None:
    flow = flow_of(0.0)
    charges = {"x": Charge(flow.account, 0, 70.0, 1, 0), "other": Charge(flow.account, 3, 70.0, 1, 0)}
    groups = groups_of(flow, outlook_of(x=70.0, other=5.0), charges, {0: ClassLimits(reserved_blocks=100)})
    assert groups[0][0].blocks[0] == 30.0
    assert groups[0][0].blocks[-1] == 100.0
    assert groups[3][0].blocks[-1] == 0.0


def test_without_an_outlook_what_is_held_now_need_not_stay_free_at_any_moment() -> None:
    blocks = kept_of(flow_of(30.0, 40.0), None, x=50.0)
    assert set(blocks) == {20.0}
