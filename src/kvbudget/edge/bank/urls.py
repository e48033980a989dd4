"""Which ledger a URL names."""

from kvbudget.edge.bank.store import BankStore


def store_from_url(url: str, *, lease_ns: int) -> BankStore:
    raise NotImplementedError
