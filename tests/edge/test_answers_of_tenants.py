"""What a tenant at its own limit is told."""

import json
import random

import pytest

from kvbudget.edge.request.answers import Refuser
from kvbudget.gate.commands import Reject
from kvbudget.gate.refusing.refusals import Refusal
from kvbudget.units import Blocks, Tokens


def answer(refusal: Refusal, limit: int = 0) -> tuple[int, dict[bytes, bytes], str]:
    reject = Reject(
        "r", refusal, Tokens(100), Tokens(61), Blocks(11), Blocks(3), Blocks(10), Tokens(160), Tokens(60), 7, 9 * 10**9,
        limit=limit,
    )  # fmt: skip
    status, headers, body = Refuser("gpu0:8000", random.Random(1)).answer(reject)
    return status, dict(headers), json.loads(body)["error"]["message"]


@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        (Refusal.TENANT_SHARE, "more than its share of the pool beside others who asked lately;"),
        (Refusal.TENANT_BLOCKS, "max_blocks"),
        (Refusal.TENANT_TOKENS, "tokens_per_minute"),
    ],
)
def test_a_limit_of_the_tenant_that_passes_is_named_and_says_when(refusal: Refusal, told: str) -> None:
    status, headers, message = answer(refusal)
    assert status == 429
    assert told in message
    assert 9 <= int(headers[b"retry-after"]) <= 12


@pytest.mark.parametrize("refusal", [Refusal.TENANT_BLOCKS, Refusal.TENANT_TOO_LARGE])
def test_how_many_blocks_the_tenant_may_reserve_is_told(refusal: Refusal) -> None:
    assert "tenants.max_blocks: 300)" in answer(refusal, limit=300)[2]


def test_a_limit_of_the_tenant_that_stays_is_no_reason_to_come_back() -> None:
    status, headers, message = answer(Refusal.TENANT_TOO_LARGE)
    assert (status, headers[b"x-should-retry"]) == (400, b"false")
    assert "max_blocks" in message
    assert "11 KV blocks" in message
