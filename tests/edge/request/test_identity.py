"""Tenants with settings of their own are known however many names are invented."""

import pytest

from kvbudget.edge.openai.errors import BadRequestError
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


@pytest.mark.parametrize("name", ["tenant", "priority", "deadline-ms"])
def test_a_header_of_ours_that_comes_twice_is_refused_even_where_both_say_the_same(name: str) -> None:
    identities = Identities("p")
    twice = [(f"x-kvbudget-{name}".encode(), b"7"), (b"x-other", b"1"), (f"x-kvbudget-{name}".encode(), b"7")]
    with pytest.raises(BadRequestError, match=f"x-kvbudget-{name}: comes more than once; send it once"):
        identities.read(twice, b"r")
    assert identities.read(twice[:2], b"r").request_id == b"r"
