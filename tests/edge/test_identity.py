"""Tenants with settings of their own are known however many names are invented."""

from kvbudget.edge.identity import MAX_TENANTS, OTHER_TENANTS, Identities


def tenant(identities: Identities, name: str) -> str:
    return identities.read([(b"x-kvbudget-tenant", name.encode())], b"r").tenant


def test_who_is_set_up_is_never_among_the_others() -> None:
    identities = Identities("p", ["acme", "*"])
    for number in range(MAX_TENANTS * 2):
        tenant(identities, f"invented-{number}")
    assert tenant(identities, "acme") == "acme"
    assert tenant(identities, "late") == OTHER_TENANTS
    identities.expect(["late"])
    assert tenant(identities, "late") == "late"
    assert "*" not in identities.tenants
    assert len(identities.tenants) <= MAX_TENANTS + 1
