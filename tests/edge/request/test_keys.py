"""API keys: who is let in, as whom, how urgent; and that no key is kept or shown."""

import hashlib
from dataclasses import replace
from typing import Any

import pytest

from kvbudget.edge.budget.reload import take_over
from kvbudget.edge.openai.errors import BadRequestError, UnauthorizedError
from kvbudget.edge.request.identity import Identities
from kvbudget.edge.request.keys import ApiKey, KeyRing, new_key

Stand = Any  # the class lives in conftest.py, which cannot be imported
KEY, DIGEST = new_key()
TEAM = ApiKey("team", DIGEST, "team-a", most_urgent=-5)
PROXY = ApiKey("proxy", hashlib.sha256(b"proxy").hexdigest(), "proxy", most_urgent=-100, any_tenant=True)


def identities(*keys: ApiKey) -> Identities:
    return Identities("p", ring=KeyRing({key.name: key for key in keys}))


def bearer(key: str) -> tuple[bytes, bytes]:
    return b"authorization", f"Bearer {key}".encode()


@pytest.mark.parametrize(
    "header", [bearer(KEY), (b"x-api-key", KEY.encode()), (b"authorization", b"bearer " + KEY.encode())]
)
def test_a_key_says_whose_request_it_is(header: tuple[bytes, bytes]) -> None:
    assert identities(TEAM).read([header], b"r").tenant == "team-a"


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [bearer("kvb-wrong")],
        [(b"authorization", b"")],
        [(b"authorization", b"Basic " + KEY.encode())],
        [bearer(KEY), bearer("x")],
    ],
)
def test_without_a_key_that_is_known_nobody_is_let_in_and_nothing_is_repeated(
    headers: list[tuple[bytes, bytes]],
) -> None:
    with pytest.raises(UnauthorizedError) as refused:
        identities(TEAM).read(headers, b"r")
    assert "kvb-" not in refused.value.message
    assert refused.value.status == 401


def test_a_key_with_more_behind_it_is_none_and_is_not_remembered() -> None:
    ring = KeyRing({"team": TEAM})
    for number in range(20):
        with pytest.raises(UnauthorizedError):
            ring.holder([bearer(f"{KEY}{' ' * 600}{number}")])
    assert ring.holder([bearer(KEY)]) is TEAM


def test_without_keys_in_the_settings_everybody_may_come() -> None:
    assert identities().read([], b"r").tenant == "default"


def test_a_key_may_name_its_own_tenant_and_no_other_unless_it_is_allowed() -> None:
    own, other = (b"x-kvbudget-tenant", b"team-a"), (b"x-kvbudget-tenant", b"team-b")
    assert identities(TEAM).read([bearer(KEY), own], b"r").tenant == "team-a"
    known = identities(TEAM, PROXY)
    with pytest.raises(BadRequestError, match="may name no other"):
        known.read([bearer(KEY), other], b"r")
    assert "team-b" not in known.tenants  # who is refused takes no place among the tenants
    assert known.read([bearer("proxy"), other], b"r").tenant == "team-b"
    assert known.read([bearer("proxy")], b"r").tenant == "proxy"


def test_nobody_is_more_urgent_than_the_key_allows_and_everybody_may_be_less() -> None:
    known = identities(TEAM)
    asked = {wanted: (b"x-kvbudget-priority", str(wanted).encode()) for wanted in (-100, -5, 7)}
    assert [known.read([bearer(KEY), header], b"r").priority for header in asked.values()] == [-5, -5, 7]


def test_a_key_that_was_taken_away_opens_nothing_any_more() -> None:
    ring = KeyRing({"team": TEAM})
    assert ring.holder([bearer(KEY)]) is TEAM
    ring.replace({"proxy": PROXY})
    with pytest.raises(UnauthorizedError):
        ring.holder([bearer(KEY)])


def test_every_new_key_is_another_one_and_its_digest_is_its_own() -> None:
    keys = {new_key() for _ in range(50)}
    assert len({key for key, _ in keys}) == 50
    assert all(hashlib.sha256(key.encode()).hexdigest() == digest for key, digest in keys)


def test_over_http_a_missing_key_is_401_on_every_path_but_health(play: Any) -> None:
    async def scene(stand: Stand) -> None:
        refused = await stand.chat()
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
        assert refused.headers["www-authenticate"] == "Bearer"
        assert refused.headers["x-should-retry"] == "false"
        assert (await stand.client.get("/v1/models")).status_code == 401
        assert (await stand.client.get("/health")).status_code == 200
        assert not stand.engine.requests
        assert (await stand.chat(headers={"authorization": f"Bearer {KEY}"})).status_code == 200
        assert (await stand.client.get("/v1/models", headers={"x-api-key": KEY})).status_code == 200

    play(scene, serve={"keys": {"team": TEAM}})


SECRET = "engine-secret"
OWN = {"keys": {"team": TEAM}, "backend_api_key": SECRET}


def test_the_engine_gets_its_own_key_in_place_of_the_clients(play: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def scene(stand: Stand) -> None:
        for headers in (
            {"authorization": f"Bearer {KEY}"},
            {"x-api-key": KEY},
            {"authorization": f"Bearer {KEY}", "connection": "authorization, x-request-id"},
        ):
            for _ in range(2):  # a head that is read, and one that is recognised
                assert (await stand.chat(headers=headers)).status_code == 200
        assert {head["authorization"] for head in stand.engine.heads} == {f"Bearer {SECRET}"}
        assert all("x-api-key" not in head for head in stand.engine.heads)
        passed = await stand.client.get("/v1/foo", headers={"x-api-key": KEY})
        assert passed.status_code == 200
        asked = stand.engine.last_heads
        for path in ("/health", "/metrics", "/v1/models", "/tokenize", "/v1/foo"):
            assert asked[path]["authorization"] == f"Bearer {SECRET}", path
        assert SECRET not in repr(stand.service.settings)
        answers = await stand.client.get(f"{stand.service.admin_url}/v1/state")
        assert SECRET not in answers.text

    play(scene, serve=OWN)
    assert SECRET not in caplog.text
    assert KEY not in caplog.text


def test_where_the_gate_asks_for_no_keys_those_of_clients_are_for_the_engine(play: Any) -> None:
    async def scene(stand: Stand) -> None:
        assert (await stand.chat(headers={"authorization": "Bearer mine"})).status_code == 200
        assert (await stand.chat()).status_code == 200
        assert [head.get("authorization") for head in stand.engine.heads] == ["Bearer mine", None]
        assert stand.engine.last_heads["/metrics"]["authorization"] == f"Bearer {SECRET}"

    play(scene, serve={"backend_api_key": SECRET})


@pytest.mark.parametrize("status", [401, 403])
def test_an_engine_that_does_not_take_the_gates_key_is_no_fault_of_the_client(play: Any, status: int) -> None:
    async def scene(stand: Stand) -> None:
        answer = await stand.chat(headers={"x-api-key": KEY})
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_failed")
        assert SECRET not in answer.text

    play(scene, {"refuse_with": status}, serve=OWN)


def test_a_new_key_of_the_engine_and_the_last_key_of_clients_are_taken_over(
    play: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(stand: Stand) -> None:
        service, known = stand.service, {"x-api-key": KEY}
        assert (await stand.chat(headers=known)).status_code == 200
        assert take_over(service, replace(service.settings, backend_api_key="second")) == (["backend_api_key"], [])
        assert (await stand.chat(headers=known)).status_code == 200
        assert take_over(service, replace(service.settings, keys={})) == (["keys"], [])
        assert (await stand.chat(headers=known)).status_code == 200
        sent = [(head.get("authorization"), head.get("x-api-key")) for head in stand.engine.heads]
        assert sent == [(f"Bearer {SECRET}", None), ("Bearer second", None), (None, KEY)]

    play(scene, serve=OWN)
    assert "everybody may come" in caplog.text
