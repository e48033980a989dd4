import json
import random
import re
from pathlib import Path

import pytest

import kvbudget.edge
from kvbudget.edge.http.exchange import ErrorForm, Exchange
from kvbudget.edge.http.heads import parse_request_head
from kvbudget.edge.openai.errors import ERROR_TYPES
from kvbudget.edge.request.answers import ANSWERS, Refuser, retry_headers, told_s
from kvbudget.edge.surfaces.dialects import ANTHROPIC
from kvbudget.gate.commands import Reject
from kvbudget.gate.refusing.refusals import QueueBound, Refusal
from kvbudget.gate.waiting.expectation import MAX_WAIT_NS
from kvbudget.gate.waiting.why import Why
from kvbudget.units import Blocks, Tokens


def reject(refusal: Refusal, *, retry_after_s: float = 0.0, largest: int = 60) -> Reject:
    return Reject(
        "r", refusal, Tokens(100), Tokens(61), Blocks(11), Blocks(3), Blocks(10), Tokens(160), Tokens(largest), 7,
        int(retry_after_s * 1e9), 1, 0, 256, 2_500_000_000,
    )  # fmt: skip


def answer(refusal: Refusal, **more: float) -> tuple[int, dict[str, str], dict[str, str]]:
    status, headers, body = Refuser("gpu0:8000", random.Random(1)).answer(reject(refusal, **more))  # type: ignore[arg-type]
    return status, {name.decode(): value.decode() for name, value in headers}, json.loads(body)["error"]


def test_every_refusal_has_an_answer_with_a_string_code_and_a_message() -> None:
    assert set(ANSWERS) == set(Refusal)
    for refusal in Refusal:
        status, _, error = answer(refusal)
        assert status in (400, 404, 429, 503)
        assert set(error) == {"message", "type", "param", "code"}
        assert isinstance(error["code"], str)
        assert len(error["message"]) > 20


@pytest.mark.parametrize("refusal", [Refusal.CONTEXT_EXCEEDED, Refusal.NEVER_FITS])
def test_what_never_fits_says_prompt_cap_and_what_would_fit_and_not_to_come_back(refusal: Refusal) -> None:
    status, headers, error = answer(refusal)
    assert (status, error["code"], headers["x-should-retry"]) == (400, "context_length_exceeded", "false")
    assert "This model's maximum context length is 160 tokens" in error["message"]
    assert "100" in error["message"]
    assert "60" in error["message"]
    assert "retry-after" not in headers


@pytest.mark.parametrize("refusal", [Refusal.POOL_FULL, Refusal.QUEUE_FULL, Refusal.DEADLINE])
def test_what_does_not_fit_now_names_pool_blocks_and_place(refusal: Refusal) -> None:
    status, headers, error = answer(refusal, retry_after_s=10)
    assert (status, error["code"]) == (429, "rate_limit_exceeded")
    for told in ("gpu0:8000", "11 blocks", "3 of 10", "7"):
        assert told in error["message"]
    assert 10 <= int(headers["retry-after"]) <= 13
    assert 10_000 <= int(headers["retry-after-ms"]) <= 12_500


@pytest.mark.parametrize(
    ("bound", "limit", "told"),
    [
        (QueueBound.REQUESTS, 12, "12 requests"),
        (QueueBound.TOKENS, 16384, "16384 tokens"),
        (QueueBound.SECONDS, 4_000_000_000, "4.0 s"),
        (None, 0, "the queue is full"),
    ],
)
def test_a_full_queue_names_the_bound_that_was_met(bound: QueueBound | None, limit: int, told: str) -> None:
    refused = reject(Refusal.QUEUE_FULL)._replace(bound=bound, limit=limit)
    assert told in json.loads(Refuser("p", random.Random(1)).answer(refused)[2])["error"]["message"]


def test_who_lacks_a_sequence_is_not_told_about_blocks_alone() -> None:
    refused = reject(Refusal.QUEUE_FULL)._replace(sequences=2, running_sequences=255, max_num_seqs=256)
    message = json.loads(Refuser("p", random.Random(1)).answer(refused)[2])["error"]["message"]
    assert "2 of the engine's 256 sequences" in message
    assert "1 are free" in message


def test_the_reason_is_said_where_it_is_not_the_number_of_free_blocks() -> None:
    def message(**changed: object) -> str:
        refused = reject(Refusal.QUEUE_FULL)._replace(**changed)  # type: ignore[arg-type]
        text: str = json.loads(Refuser("p", random.Random(1)).answer(refused)[2])["error"]["message"]
        return text

    behind = message(needed_blocks=Blocks(132), free_blocks=Blocks(210), capacity_blocks=Blocks(512), position=7)
    assert "no room now: 6 before it wait for room, and it would put them off; the request needs 132" in behind
    alone = message(needed_blocks=Blocks(132), free_blocks=Blocks(210), capacity_blocks=Blocks(512), position=1)
    assert "beside what runs it would need more than the pool, at the moment when most is held; the request" in alone
    assert "no room now: the request needs 11 blocks" in message()


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"why": Why.TENANT_BLOCKS}, "its tenant has reserved as many blocks as it may (tenants.max_blocks); "),
        ({"why": Why.TENANT_SHARE}, "what room there is stays free for other tenants or classes; "),
        ({"why": Why.PROMPTS}, "prompts that the engine has not read yet come first; "),
        ({"why": Why.ENGINE_BUSY}, "the engine said that it is overloaded; "),
        ({"why": Why.TURN, "position": 7}, "6 before it wait for room"),
        ({"settling": True, "why": Why.POOL}, "the ledger that gates share gives no room until leases from before are"),
    ],
)
def test_who_waited_in_vain_is_told_what_was_in_the_way(changed: dict[str, object], told: str) -> None:
    plenty = {"needed_blocks": Blocks(2), "free_blocks": Blocks(210), "capacity_blocks": Blocks(512), "position": 1}
    refused = reject(Refusal.DEADLINE)._replace(**{**plenty, **changed})  # type: ignore[arg-type]
    message = json.loads(Refuser("p", random.Random(1)).answer(refused)[2])["error"]["message"]
    assert told in message
    assert "would need more than the pool" not in message


def test_many_sequences_that_never_fit_are_told_what_to_lower() -> None:
    refused = reject(Refusal.NEVER_FITS)._replace(sequences=64, max_num_seqs=256)
    message = json.loads(Refuser("p", random.Random(1)).answer(refused)[2])["error"]["message"]
    assert "64 sequences" in message
    assert "max_tokens to 60" in message
    assert "for a total of" not in message
    refused = reject(Refusal.TOO_MANY_SEQUENCES)._replace(sequences=300, max_num_seqs=256)
    message = json.loads(Refuser("p", random.Random(1)).answer(refused)[2])["error"]["message"]
    assert "300" in message
    assert "256" in message


def test_the_wait_is_jittered_upwards_by_at_most_a_quarter_and_capped_at_two_minutes() -> None:
    rng = random.Random(3)
    waits = [int(dict(retry_headers(told_s(8 * 10**9, rng)))[b"retry-after-ms"]) for _ in range(300)]
    assert 8000 <= min(waits) < 8200
    assert 9800 < max(waits) <= 10_000
    longest = [int(dict(retry_headers(told_s(MAX_WAIT_NS, rng)))[b"retry-after"]) for _ in range(300)]
    assert 96 <= min(longest) < max(longest) <= 120
    assert dict(retry_headers(told_s(500 * 10**9, rng)))[b"retry-after"] == b"120"


def test_the_overload_code_can_be_another() -> None:
    refuser = Refuser("p", random.Random(1), overload_status=529)
    assert refuser.answer(reject(Refusal.QUEUE_FULL))[0] == 529
    assert refuser.answer(reject(Refusal.NEVER_FITS))[0] == 400
    assert refuser.answer(reject(Refusal.DRAINING))[0] == 503


def test_every_code_that_is_sent_has_a_type_in_the_table() -> None:
    sent = {answer.code for answer in ANSWERS.values()}
    for file in (Path(kvbudget.edge.__file__).parent).rglob("*.py"):
        if "http" not in file.parts:
            sent |= set(re.findall(r'(?:plain_error|_give_up)\([^)]*"([a-z_]+)"[,)]', file.read_text()))
    assert {"upstream_failed", "not_found"} <= sent
    assert sent <= set(ERROR_TYPES)


def test_a_prompt_that_was_only_bounded_is_not_claimed_to_be_counted() -> None:
    refuser = Refuser("p", random.Random(1))
    for refusal in (Refusal.CONTEXT_EXCEEDED, Refusal.NEVER_FITS, Refusal.QUEUE_FULL):
        assert b"not counted exactly" in refuser.answer(reject(refusal), exact=False)[2]
        assert b"not counted exactly" not in refuser.answer(reject(refusal))[2]


class _Carrier:
    """Keeps what is sent."""

    may_keep_alive = True

    def __init__(self) -> None:
        self.sent = b""

    def send(self, data: bytes) -> None:
        self.sent += data

    def answered(self, keep_alive: bool) -> None:
        """The answer is complete."""


@pytest.mark.parametrize("errors", [None, ANTHROPIC])
def test_an_error_of_the_engine_is_passed_on_with_each_header_once(errors: ErrorForm | None) -> None:
    carrier = _Carrier()
    head = parse_request_head(b"POST /v1/messages HTTP/1.1\r\nHost: h\r\ncontent-length: 0")
    exchange = Exchange(head, b"", "127.0.0.1:1", 0, carrier)  # type: ignore[arg-type]
    exchange.errors = errors
    theirs = [
        (b"content-type", b"application/problem+json"),
        (b"content-length", b"99"),
        (b"x-request-id", b"the-engines"),
        (b"request-id", b"the-engines"),
        (b"x-ratelimit-limit-tokens", b"1"),
        (b"x-ratelimit-remaining-tokens", b"1"),
        (b"anthropic-ratelimit-tokens-limit", b"1"),
        (b"x-kvbudget-queue-ms", b"9"),
        (b"connection", b"x-hop"),
        (b"x-hop", b"1"),
        (b"x-of-the-engine", b"1"),
    ]
    Refuser("p", random.Random(1)).passed_on(exchange, 500, theirs, b"{}", b"mine", 2_000_000)
    lines = carrier.sent.partition(b"\r\n\r\n")[0].decode().split("\r\n")[1:]
    names = [line.partition(":")[0] for line in lines]
    assert sorted(names) == sorted(set(names))
    told = dict(line.split(": ", 1) for line in lines)
    assert (told["x-request-id"], told["x-kvbudget-queue-ms"], told["content-length"]) == ("mine", "2", "2")
    assert (told["content-type"], told["x-of-the-engine"]) == ("application/problem+json", "1")
    assert told["request-id"] == ("the-engines" if errors is None else "mine")
    assert "x-hop" not in told
