"""The time of a bank that is called, whatever keeps it."""

from typing import Any

from kvbudget.gate.bank.terms import Call


def let_pass(bank: Any, ms: int, lease_ms: int) -> None:
    """In steps that no bank takes for a clock that was set; `bank` has its clock in `now_ms`."""
    while ms > 0:
        step = min(ms, lease_ms // 2)
        bank.now_ms += step
        ms -= step
        bank.call(Call("nobody", 1, lease_ms, (), leaves=True))
