"""Tenants with settings of their own are known however many names are invented."""

from kvbudget.edge.request.identity import MAX_CLASSES, MAX_TENANTS, OTHER_TENANTS, Identities


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


def priority(identities: Identities, number: int) -> int:
    return identities.read([(b"x-kvbudget-priority", str(number).encode())], b"r").priority


def test_so_many_classes_there_are_and_who_invents_more_is_of_the_nearest() -> None:
    identities = Identities("p", classes=[-100])
    assert [priority(identities, number) for number in range(1, MAX_CLASSES - 1)] == list(range(1, MAX_CLASSES - 1))
    assert priority(identities, 100) == MAX_CLASSES - 2
    assert priority(identities, -7) == 0
    assert priority(identities, -100) == -100  # it has settings of its own
    identities.expect((), [-7])
    assert priority(identities, -7) == -7
