"""[gate.keys] in the file: names, digests and rights are judged before a gate reads them."""

import pytest

from kvbudget.errors import BadConfigError
from kvbudget.planner.budget.schema import checked

DIGEST = "0" * 63 + "1"


def document(**keys: object) -> dict[str, object]:
    return {"schema": "kvbudget.budget/1", "gate": {"keys": keys}}


def test_a_digest_is_enough() -> None:
    checked(document(ci={"sha256": DIGEST}, proxy={"sha256": "f" * 64, "any_tenant": True, "most_urgent": -100}))


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"ci": {}}, "gate.keys.ci.sha256 is missing"),
        ({"ci": {"sha256": "kvb-secret"}}, "not 64 hexadecimal digits"),
        ({"ci": {"sha256": DIGEST, "tenant": "a b"}}, "gate.keys.ci.tenant"),
        ({"ci": {"sha256": DIGEST, "most_urgent": -101}}, "gate.keys.ci.most_urgent"),
        ({"ci": {"sha256": DIGEST, "key": "kvb"}}, "gate.keys.ci.key is not known there"),
        ({"a b": {"sha256": DIGEST}}, "is no name of a key"),
        ({"a": {"sha256": DIGEST}, "b": {"sha256": DIGEST}}, "is the same key as gate.keys.a"),
        ({"ci": "x"}, "must be one table"),
    ],
)
def test_what_is_no_key_is_named(keys: dict[str, object], told: str) -> None:
    with pytest.raises(BadConfigError, match=told):
        checked(document(**keys))
