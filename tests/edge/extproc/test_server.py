"""Requests over gRPC, with a data plane that is played by hand: each state, each end, and each way to break it."""

import asyncio
import json
import time
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from grpc import aio

from extproc_peer import (
    chat_body,
    destination,
    headers_set,
    plane,
    request_body,
    request_headers,
    request_trailers,
    response_body,
    response_headers,
    response_trailers,
)
from kvbudget.edge.extproc.service import Timeouts
from kvbudget.edge.extproc.wire import BodyMode, ProcessingRequest
from kvbudget.edge.http.limits import ServerLimits
from kvbudget.gate.events import SliceChanged, Tick
from kvbudget.gate.policies import Policy
from kvbudget.units import Blocks

Play = Callable[..., None]


def test_an_admitted_request_goes_on_with_its_cap_and_is_reserved_until_the_stream_ends(stage: Play) -> None:
    async def scene(stage: Any) -> None:
        peer = stage.plane.stream()
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
        answer = await peer.asked(body, headers={"x-request-id": "abc", "x-kvbudget-tenant": "team"})
        assert destination(answer) == (stage.endpoint(), stage.endpoint())
        sent = answer.request_body.response.body_mutation.body
        assert json.loads(sent) == json.loads(body) | {"max_tokens": 64}
        assert headers_set(answer)["content-length"] == str(len(sent))
        assert headers_set(answer)["x-request-id"] == "abc"
        removed = answer.request_body.response.header_mutation.remove_headers
        assert list(removed) == ["x-kvbudget-tenant"]
        assert stage.promised() > 0
        await peer.hang_up()
        await stage.empty()
        assert stage.outcomes() == {"finished": 1}

    stage(scene)


def test_a_body_that_says_its_cap_is_not_sent_back(stage: Play) -> None:
    async def scene(stage: Any) -> None:
        peer = stage.plane.stream()
        answer = await peer.asked(chat_body())
        assert not answer.request_body.response.HasField("body_mutation")
        assert "content-length" not in headers_set(answer)
        await peer.hang_up()

    stage(scene)


def test_the_answer_gets_our_headers_where_envoy_shows_its_own(stage: Play) -> None:
    async def scene(stage: Any) -> None:
        peer = stage.plane.stream()
        await peer.asked(chat_body())
        await peer.say(response_headers(200, {"content-type": "text/event-stream"}))
        own = headers_set(await peer.hear())
        assert int(own["x-kvbudget-reserved-blocks"]) == stage.promised()
        assert {"x-request-id", "x-kvbudget-queue-ms", "x-ratelimit-remaining-tokens"} < own.keys()
        await peer.hang_up()

    stage(scene)


def test_what_never_fits_is_a_400_and_a_full_pool_a_429_with_the_time_to_come_back(stage: Play) -> None:
    async def scene(stage: Any) -> None:
        never = stage.plane.stream()
        answer = await never.asked(chat_body(messages=[{"role": "user", "content": "word " * 600}]))
        assert answer.immediate_response.status.code == 400
        assert b"maximum context length is 512 tokens" in answer.immediate_response.body
        assert headers_set(answer)["x-should-retry"] == "false"
        assert headers_set(answer)["content-type"] == "application/json"
        holder = stage.plane.stream()
        await holder.asked(chat_body(max_tokens=400))
        full = stage.plane.stream()
        answer = await full.asked(chat_body(max_tokens=400))
        assert answer.immediate_response.status.code == 429
        assert int(headers_set(answer)["retry-after"]) >= 1
        assert "retry-after-ms" in headers_set(answer)
        assert json.loads(answer.immediate_response.body)["error"]["code"] == "rate_limit_exceeded"
        for peer in (never, holder, full):
            await peer.hang_up()
        await stage.empty()
        assert stage.refusals() == {"context_exceeded": 1, "pool_full": 1}

    stage(scene, serve={"tokenizer": "engine"}, queue_requests=0)


def test_who_waits_is_admitted_when_room_comes_and_not_before(stage: Play) -> None:
    async def scene(stage: Any) -> None:
        holder, waiting = stage.plane.stream(), stage.plane.stream()
        await holder.asked(chat_body(max_tokens=400))
        asked = asyncio.create_task(waiting.asked(chat_body(max_tokens=400)))
        await stage.until(lambda: len(stage.service.gate.queue) == 1)
        assert not asked.done()
        await holder.hang_up()
        assert destination(await asked)[0] == stage.endpoint()
        await waiting.hang_up()

    stage(scene)


def test_who_leaves_the_queue_is_forgotten_at_once(stage: Play) -> None:
    async def scene(stage: Any) -> None:
        holder, waiting = stage.plane.stream(), stage.plane.stream()
        await holder.asked(chat_body(max_tokens=400))
        await waiting.say(request_headers(), request_body(chat_body(max_tokens=400)))
        await stage.until(lambda: len(stage.service.gate.queue) == 1)
        left = time.monotonic()
        waiting.reset()
        await stage.until(lambda: len(stage.service.gate.queue) == 0)
        assert time.monotonic() - left < 1.0  # 0.002 s where nothing else runs
        await holder.hang_up()
        await stage.empty()
        assert stage.outcomes() == {"finished": 1, "withdrawn": 1}

    stage(scene)


def test_nobody_is_held_longer_than_envoy_waits(stage: Play) -> None:
    async def scene(stage: Any) -> None:
        holder, waiting = stage.plane.stream(), stage.plane.stream()
        await holder.asked(chat_body(max_tokens=400))
        began = time.monotonic()
        answer = await waiting.asked(chat_body(max_tokens=400))
        assert answer.immediate_response.status.code == 429
        assert 0.4 < time.monotonic() - began < 1.0
        assert "retry-after" in headers_set(answer)
        await waiting.hang_up()
        await holder.hang_up()
        await stage.empty()
        assert stage.refusals() == {"deadline": 1}

    stage(scene, timeouts=Timeouts(1.0))


def test_who_is_counted_for_too_long_is_refused_before_envoy_gives_up(stage: Play) -> None:
    async def scene(stage: Any) -> None:
        peer = stage.plane.stream()
        began = time.monotonic()
        answer = await peer.asked(chat_body())
        assert answer.immediate_response.status.code == 429
        assert time.monotonic() - began < 1.0
        await peer.hang_up()
        await stage.empty()
        assert stage.refusals() == {"deadline": 1}
        assert stage.service.processor.counts.out_of_time == 1
        assert not stage.service.reception.counting

    stage(scene, engine={"hold_counting": True}, timeouts=Timeouts(1.0), serve={"tokenizer": "engine"})


def test_envoy_is_asked_to_wait_longer_where_it_lets_us(stage: Play) -> None:
    async def scene(stage: Any) -> None:
        holder, waiting = stage.plane.stream(), stage.plane.stream()
        await holder.asked(chat_body(max_tokens=400))
        answer = await waiting.asked(chat_body(max_tokens=400))
        assert answer.WhichOneof("response") is None
        assert answer.override_message_timeout.seconds == 20
        await holder.hang_up()
        assert destination(await waiting.hear())[0] == stage.endpoint()
        await waiting.hang_up()

    stage(scene, timeouts=Timeouts(0.2, 20.0))


def test_an_engine_that_is_overloaded_is_told_in_our_form_and_gets_nobody_for_a_while(stage: Play) -> None:
    async def scene(stage: Any) -> None:
        peer = stage.plane.stream()
        await peer.asked(chat_body())
        await peer.say(response_headers(503))
        answer = await peer.hear()
        assert answer.immediate_response.status.code == 429
        assert "retry-after" in headers_set(answer)
        await peer.hang_up()
        await stage.empty()
        assert stage.refusals() == {"engine_busy": 1}
        assert stage.outcomes() == {"upstream_refused": 1}
        assert stage.service.gate.busy_until_ns > 0

    stage(scene)


@pytest.mark.parametrize("details", ["", "upstream_reset_before_response_started{connection_failure}"])
def test_an_engine_that_envoy_cannot_reach_is_told_in_our_form(stage: Play, details: str) -> None:
    async def scene(stage: Any) -> None:
        peer = stage.plane.stream()
        await peer.asked(chat_body())
        await peer.say(response_headers(503, by_engine=False, details=details))
        answer = await peer.hear()
        assert answer.immediate_response.status.code == 503
        assert b"cannot be reached" in answer.immediate_response.body
        assert "retry-after" in headers_set(answer)
        await peer.hang_up()
        await stage.empty()
        assert stage.outcomes() == {"upstream_failed": 1}

    stage(scene)


@pytest.mark.parametrize("status", [400, 404, 500])
def test_an_error_of_the_engine_passes_as_it_came(stage: Play, status: int) -> None:
    async def scene(stage: Any) -> None:
        peer = stage.plane.stream()
        await peer.asked(chat_body())
        await peer.say(response_headers(status))
        assert (await peer.hear()).WhichOneof("response") == "response_headers"
        await peer.hang_up()
        await stage.empty()
        assert stage.outcomes() == {"upstream_refused": 1}

    stage(scene)


def test_an_answer_of_known_length_gives_its_blocks_back_at_once_and_a_stream_after_the_tail(stage: Play) -> None:
    async def scene(stage: Any) -> None:
        whole, stream = stage.plane.stream(), stage.plane.stream()
        await whole.asked(chat_body())
        await whole.say(response_headers(200, {"content-length": "300"}))
        await whole.hear()
        await whole.hang_up()
        await stage.until(lambda: not list(stage.service.gateway.flows))
        assert stage.promised() == 0
        await stream.asked(chat_body())
        await stream.say(response_headers(200, {"content-type": "text/event-stream"}))
        await stream.hear()
        await stream.hang_up()
        await stage.until(lambda: not list(stage.service.gateway.flows))
        assert stage.promised() > 0  # that its client has left would look the same, and the engine may go on a little
        await stage.empty()
        assert stage.outcomes() == {"finished": 2}

    stage(scene, abort_tail_ns=300_000_000)


@pytest.mark.parametrize("mode", [BodyMode.STREAMED, BodyMode.FULL_DUPLEX])
def test_an_answer_that_is_shown_tells_usage_and_goes_on_untouched(stage: Play, mode: int) -> None:
    pieces = [
        b'data: {"n":1}\n\n',
        b'data: {"usage":{"prompt_tokens":9,"comple',
        b'tion_tokens":7}}\n\ndata: [DONE]\n\n',
    ]

    async def scene(stage: Any) -> None:
        peer = stage.plane.stream()
        await peer.say(request_headers(response_mode=mode), request_body(chat_body(stream=True)))
        await peer.hear()
        await peer.hear()
        await peer.say(response_headers(200, {"content-type": "text/event-stream"}))
        await peer.hear()
        for number, piece in enumerate(pieces):
            last = number == len(pieces) - 1
            await peer.say(response_body(piece, ends=last))
            passed = (await peer.hear()).response_body.response.body_mutation
            if mode == BodyMode.FULL_DUPLEX:
                assert (passed.streamed_response.body, passed.streamed_response.end_of_stream) == (piece, last)
            else:
                assert passed.WhichOneof("mutation") is None
        await peer.hang_up()
        await stage.until(lambda: not list(stage.service.gateway.flows))
        assert stage.promised() == 0  # its end was seen
        family = next(f for f in stage.service.gateway.metrics.collect() if f.name == "kvbudget_output_tokens")
        assert [s.value for s in family.samples if s.name.endswith("_sum")] == [7.0]
        assert stage.outcomes() == {"finished": 1}

    stage(scene, abort_tail_ns=60_000_000_000)


def test_an_answer_that_is_shown_and_breaks_off_is_a_client_that_has_gone(stage: Play) -> None:
    async def scene(stage: Any) -> None:
        peer = stage.plane.stream()
        mode = BodyMode.FULL_DUPLEX
        await peer.say(request_headers(response_mode=mode), request_body(chat_body(stream=True)))
        await peer.say(response_headers(200, {"content-type": "text/event-stream"}))
        await peer.say(response_body(b"data: {}\n\n"))
        for _ in range(4):
            await peer.hear()
        await peer.hang_up()
        await stage.empty()
        assert stage.outcomes() == {"client_gone": 1}

    stage(scene)


def test_a_streamed_body_is_sent_on_in_pieces_that_envoy_takes(stage: Play) -> None:
    async def scene(stage: Any) -> None:
        peer = stage.plane.stream()
        body = chat_body(messages=[{"role": "user", "content": "word " * 30_000}], max_tokens=None)
        await peer.say(request_headers(request_mode=BodyMode.FULL_DUPLEX, response_mode=BodyMode.FULL_DUPLEX))
        for start in range(0, len(body), 50_000):
            await peer.say(request_body(body[start : start + 50_000], ends=False))
        await peer.say(request_body(b"", ends=True))
        assert destination(await peer.hear())[0] == stage.endpoint()
        pieces: list[Any] = []
        while not pieces or not pieces[-1].end_of_stream:
            pieces.append((await peer.hear()).request_body.response.body_mutation.streamed_response)
        assert all(len(piece.body) < 65536 for piece in pieces)
        sent = b"".join(piece.body for piece in pieces)
        assert json.loads(sent) == json.loads(body) | {"max_tokens": 64}
        await peer.hang_up()

    stage(scene, engine={"num_blocks": 20_001, "max_model_len": 300_000})


@pytest.mark.parametrize("mode", [BodyMode.FULL_DUPLEX, BodyMode.BUFFERED])
def test_a_request_with_trailers_ends_with_them(stage: Play, mode: int) -> None:
    async def scene(stage: Any) -> None:
        peer = stage.plane.stream()
        await peer.say(request_headers(request_mode=mode), request_body(chat_body(), ends=False), request_trailers())
        kinds = [(await peer.hear()).WhichOneof("response") for _ in range(3)]
        assert kinds == ["request_headers", "request_body", "request_trailers"]
        await peer.hang_up()

    stage(scene)


def test_what_is_not_charged_goes_to_an_engine_with_no_more_than_its_destination(stage: Play) -> None:
    async def scene(stage: Any) -> None:
        peer = stage.plane.stream()
        await peer.say(request_headers("/v1/models", "GET", ends=True))
        answer = await peer.hear()
        assert answer.WhichOneof("response") == "request_headers"
        assert destination(answer)[0] == stage.endpoint()
        assert stage.promised() == 0
        await peer.say(response_headers(200))
        await peer.hear()
        await peer.hang_up()
        await stage.empty()
        assert not stage.service.reception.passing

    stage(scene)


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [("/nothing", "GET", 404), ("/v1/../v1/completions", "POST", 404), ("/v1/chat/completions", "GET", 405)],
)
def test_other_paths_are_answered_as_by_the_gate_itself(stage: Play, path: str, method: str, status: int) -> None:
    async def scene(stage: Any) -> None:
        peer = stage.plane.stream()
        await peer.say(request_headers(path, method, ends=True))
        assert (await peer.hear()).immediate_response.status.code == status
        await peer.hang_up()

    stage(scene)


@pytest.mark.parametrize("mode", [BodyMode.NONE, BodyMode.STREAMED, BodyMode.BUFFERED_PARTIAL])
def test_a_filter_that_does_not_show_whole_bodies_is_told_so(stage: Play, mode: int) -> None:
    async def scene(stage: Any) -> None:
        peer = stage.plane.stream()
        await peer.say(request_headers(request_mode=mode))
        answer = (await peer.hear()).immediate_response
        assert answer.status.code == 500
        assert b"request_body_mode" in answer.body
        await peer.hang_up()
        passing = stage.plane.stream()
        await passing.say(request_headers("/v1/files", request_mode=mode), request_body(b"piece", ends=False))
        assert destination(await passing.hear())[0] == stage.endpoint()
        assert (await passing.hear()).WhichOneof("response") == "request_body"
        await passing.hang_up()

    stage(scene)


def test_without_an_engine_it_is_a_503_and_not_ready(stage: Play) -> None:
    async def scene(stage: Any) -> None:
        assert [await stage.plane.health(name) for name in ("liveness", "readiness")] == [1, 1]
        stage.engines[0].healthy = False
        await stage.until(lambda: not stage.service.gate.backend_up)
        peer = stage.plane.stream()
        answer = await peer.asked(chat_body())
        assert answer.immediate_response.status.code == 503
        assert "retry-after" in headers_set(answer)
        assert [await stage.plane.health(name) for name in ("liveness", "readiness", "")] == [1, 2, 2]
        await peer.hang_up()

    stage(scene)


def test_a_lost_ledger_is_a_503_and_not_ready(stage: Play) -> None:
    async def scene(stage: Any) -> None:
        gate = stage.service.gate
        gate.handle(SliceChanged(Blocks(10), 9, 1, Blocks(0)), 0)
        gate.handle(Tick(), 1)
        peer = stage.plane.stream()
        answer = await peer.asked(chat_body())
        assert answer.immediate_response.status.code == 503
        assert [await stage.plane.health(name) for name in ("liveness", "readiness", "")] == [1, 2, 2]
        await peer.hang_up()

    stage(scene)


def test_a_drain_refuses_the_new_and_lets_the_old_end(stage: Play) -> None:
    async def scene(stage: Any) -> None:
        old, new = stage.plane.stream(), stage.plane.stream()
        await old.asked(chat_body())
        draining = asyncio.create_task(stage.service.drain(20.0))
        await stage.until(lambda: stage.service.gateway.admission.draining)
        answer = await new.asked(chat_body())
        assert answer.immediate_response.status.code == 503
        assert await stage.plane.health("readiness") == 2
        assert not draining.done()
        await old.hang_up()
        assert await draining
        await new.hang_up()

    stage(scene)


def test_a_drain_that_lasts_too_long_leaves_to_envoy_what_envoy_has(stage: Play) -> None:
    async def scene(stage: Any) -> None:
        carried, waiting = stage.plane.stream(), stage.plane.stream()
        await carried.asked(chat_body(max_tokens=400))
        asked = asyncio.create_task(waiting.asked(chat_body(max_tokens=400)))
        await stage.until(lambda: len(stage.service.gate.queue) == 1)
        assert not await stage.service.drain(0.0)
        assert (await asked).immediate_response.status.code == 503
        assert await carried.hear() is None  # a clean end: Envoy goes on without us
        assert await carried.call.code() == grpc.StatusCode.OK
        await waiting.hang_up()

    stage(scene)


def test_an_engine_that_was_restarted_ends_what_envoy_has_sent_it(stage: Play) -> None:
    async def scene(stage: Any) -> None:
        peer = stage.plane.stream()
        await peer.asked(chat_body())
        stage.service.backend.last_looked_ns = time.monotonic_ns() + 1
        stage.service.gateway.recalls.engine_lost(stage.service.instances[0].member)
        with pytest.raises(aio.AioRpcError) as failed:
            await peer.hear()
        assert failed.value.code() == grpc.StatusCode.UNAVAILABLE  # Envoy ends both sides
        await stage.empty()
        assert stage.outcomes() == {"engine_lost": 1}

    stage(scene)


def test_shadow_refuses_nobody_and_changes_nothing(stage: Play) -> None:
    async def scene(stage: Any) -> None:
        peers = [stage.plane.stream() for _ in range(3)]
        for peer in peers:
            answer = await peer.asked(chat_body(max_tokens=400))
            assert destination(answer)[0] == stage.endpoint()
            assert not answer.request_body.response.HasField("body_mutation")
        for peer in peers:
            await peer.hang_up()

    stage(scene, serve={"shadow": True})


def test_without_the_bodies_of_answers_nothing_is_learned_and_trajectory_decides(stage: Play) -> None:
    async def scene(stage: Any) -> None:
        for kind in ({"content-length": "9"}, {"content-type": "text/event-stream"}):
            peer = stage.plane.stream()
            await peer.asked(chat_body())
            await peer.say(response_headers(200, kind))
            await peer.hear()
            await peer.hang_up()
            await stage.until(lambda: not list(stage.service.gateway.flows))
        assert stage.service.gate.learned.lengths.answers == 0

    stage(scene, policy=Policy.LEARNED)


@pytest.mark.parametrize(("mode", "watched"), [(BodyMode.NONE, False), (BodyMode.FULL_DUPLEX, True)])
@pytest.mark.parametrize("vocabularies", [1, 2])
def test_a_stream_that_is_not_shown_is_not_taken_to_be_watched(
    stage: Play, vocabularies: int, mode: int, watched: bool
) -> None:
    async def scene(stage: Any) -> None:
        stage.engines[-1].models = ["x", "m"][-vocabularies:]  # one that counts for itself has its first model's
        members = [instance.member for instance in stage.service.instances]
        await stage.until(lambda: len({member.vocabulary for member in members}) == vocabularies)
        peer = stage.plane.stream()
        await peer.asked(chat_body(stream=True), response_mode=mode)
        assert [living.paced for member in members for living in member.gate.ledger] == [watched]
        await peer.hang_up()

    stage(scene, engines=vocabularies, serve={"tokenizer": "engine"})


def test_grpc_over_tls_with_a_certificate_that_can_be_changed(stage: Play, tmp_path: Path) -> None:
    authorities = [trustme.CA(), trustme.CA()]
    certificate, key = tmp_path / "chain.pem", tmp_path / "key.pem"

    def issue(authority: trustme.CA) -> None:
        issued = authority.issue_cert("127.0.0.1")
        certificate.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(str(key))

    def trusting(authority: trustme.CA) -> grpc.ChannelCredentials:
        return grpc.ssl_channel_credentials(authority.cert_pem.bytes())

    async def scene(stage: Any) -> None:
        assert await stage.plane.health("liveness") == 1
        issue(authorities[1])
        stage.service.reload_certificate()
        async with plane(stage.service.url, trusting(authorities[1])) as later:
            assert await later.health("liveness") == 1
            peer = later.stream()
            assert destination(await peer.asked(chat_body()))[0] == stage.endpoint()
            await peer.hang_up()

    issue(authorities[0])
    serve = {"tls_cert": str(certificate), "tls_key": str(key)}
    stage(scene, serve=serve, credentials=trusting(authorities[0]))


def test_over_a_unix_socket(stage: Play, tmp_path: Path) -> None:
    async def scene(stage: Any) -> None:
        peer = stage.plane.stream()
        assert destination(await peer.asked(chat_body()))[0] == stage.endpoint()
        await peer.hang_up()

    stage(scene, serve={"host": f"unix:{tmp_path / 'gate.sock'}"})


def test_a_name_without_an_address_is_a_503(stage: Play) -> None:
    async def scene(stage: Any) -> None:
        (name,) = [one.backend.name for one in stage.service.instances]
        stage.service.endpoints._found[name] = None
        peer = stage.plane.stream()
        answer = await peer.asked(chat_body())
        assert answer.immediate_response.status.code == 503
        await peer.hang_up()
        await stage.empty()
        assert stage.outcomes() == {"upstream_failed": 1}

    stage(scene)


# Whoever does not keep to the protocol

WORDS = {
    "headers": request_headers(),
    "body": request_body(chat_body(max_tokens=100)),
    "trailers": request_trailers(),
    "answer": response_headers(200),
    "its body": response_body(b"{}"),
    "its trailers": response_trailers(),
}


@pytest.mark.parametrize("order", list(permutations(WORDS, 3)), ids=lambda order: " ".join(order))
def test_no_order_of_messages_leaks(stage: Play, order: tuple[str, ...]) -> None:
    async def scene(stage: Any) -> None:
        peer = stage.plane.stream()
        try:
            for word in order:
                await peer.say(WORDS[word])
            await peer.hang_up()
            while await peer.hear() is not None:
                pass
        except (aio.AioRpcError, asyncio.InvalidStateError):
            assert await peer.call.code() != grpc.StatusCode.OK
        await stage.empty()

    stage(scene)


@pytest.mark.parametrize(
    "message",
    [
        b"\xff\xff\xff",
        b"",
        ProcessingRequest(observability_mode=True).SerializeToString() + request_headers(),
        request_headers(method=""),
        request_headers(path=""),
        response_headers("many"),
    ],
    ids=["no protobuf", "of no kind", "only looks on", "no method", "no path", "no status"],
)
def test_a_message_that_makes_no_sense_ends_its_stream_and_no_other(stage: Play, message: bytes) -> None:
    async def scene(stage: Any) -> None:
        bad, good = stage.plane.stream(), stage.plane.stream()
        await bad.say(message)
        with pytest.raises(aio.AioRpcError) as failed:
            await bad.hear()
        assert failed.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert destination(await good.asked(chat_body()))[0] == stage.endpoint()
        await good.hang_up()
        assert stage.service.processor.counts.protocol_errors == 1

    stage(scene)


@pytest.mark.parametrize("how", ["reset", "hang up"])
@pytest.mark.parametrize("after", range(6))
def test_a_stream_that_is_cut_at_any_point_leaves_nothing(stage: Play, after: int, how: str) -> None:
    async def scene(stage: Any) -> None:
        peer = stage.plane.stream()
        words = [*WORDS.values()]
        words = [words[0], words[1], words[3], words[4]]
        for word in words[: min(after, 4)]:
            await peer.say(word)
        if after == 5:  # and every answer was read
            for _ in range(4):
                await peer.hear()
        if how == "reset":
            peer.reset()
        else:
            await peer.hang_up()
        await stage.empty()

    stage(scene)


def test_a_connection_that_dies_ends_all_its_streams(stage: Play) -> None:
    async def scene(stage: Any) -> None:
        forwarded, waiting, begun = [stage.plane.stream() for _ in range(3)]
        await forwarded.asked(chat_body(max_tokens=400))
        await waiting.say(request_headers(), request_body(chat_body(max_tokens=400)))
        await begun.say(request_headers())
        await stage.until(lambda: len(stage.service.gate.queue) == 1)
        await stage.plane.channel.close()
        await stage.empty()

    stage(scene)


def test_a_body_beyond_the_limit_is_a_413_and_is_let_go_of(stage: Play) -> None:
    async def scene(stage: Any) -> None:
        buffered = stage.plane.stream()
        answer = await buffered.asked(b"x" * 300_000)
        assert answer.immediate_response.status.code == 413
        streamed = stage.plane.stream()
        await streamed.say(request_headers(request_mode=BodyMode.FULL_DUPLEX))
        for _ in range(5):
            await streamed.say(request_body(b"x" * 60_000, ends=False))
        assert (await streamed.hear()).immediate_response.status.code == 413
        assert stage.service.processor.buffered_bytes == 0
        for peer in (buffered, streamed):
            await peer.hang_up()

    stage(scene, limits=ServerLimits(body_bytes=200_000))


def test_bodies_of_all_streams_together_are_bounded(stage: Play) -> None:
    async def scene(stage: Any) -> None:
        peers = [stage.plane.stream() for _ in range(4)]
        for peer in peers:
            await peer.say(request_headers(request_mode=BodyMode.FULL_DUPLEX))
            await peer.say(request_body(b"x" * 90_000, ends=False))
        answered = asyncio.wait([asyncio.create_task(peer.hear()) for peer in peers], return_when="FIRST_COMPLETED")
        done, waiting = await answered
        assert done.pop().result().immediate_response.status.code == 503
        for task in waiting:
            task.cancel()
        for peer in peers:
            peer.reset()

    stage(scene, limits=ServerLimits(body_bytes=100_000, buffered_bytes=300_000))


def test_who_says_nothing_or_not_all_of_it_is_not_waited_for_for_ever(stage: Play) -> None:
    async def scene(stage: Any) -> None:
        silent, slow = stage.plane.stream(), stage.plane.stream()
        await slow.say(request_headers(request_mode=BodyMode.FULL_DUPLEX), request_body(b"{", ends=False))
        answer = (await slow.hear()).immediate_response
        assert (answer.status.code, json.loads(answer.body)["error"]["code"]) == (400, "request_timeout")
        with pytest.raises(aio.AioRpcError):
            await silent.hear()
        with pytest.raises(aio.AioRpcError):  # and it does not end by itself
            await slow.hear()

    stage(scene, limits=ServerLimits(head_s=0.5, body_s=0.5))


def test_more_streams_than_there_may_be_are_refused(stage: Play) -> None:
    async def scene(stage: Any) -> None:
        first = stage.plane.stream()
        await first.asked(chat_body())
        second = stage.plane.stream()
        asked = asyncio.create_task(second.asked(chat_body()))
        await asyncio.wait({asked}, timeout=0.3)
        assert not asked.done()  # HTTP/2 itself holds it back
        await first.hang_up()
        assert destination(await asked)[0] == stage.endpoint()
        await second.hang_up()

    stage(scene, limits=ServerLimits(connections=1))
