"""The MUSTs of the endpoint picker protocol (Gateway API Inference Extension, proposal 004, v1.0.0), one test each.

docs/how-to/envoy.md has the same table for readers.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from grpc import aio

from extproc_peer import (
    chat_body,
    destination,
    encoded,
    headers_set,
    request_body,
    request_headers,
    response_body,
    response_headers,
)
from kvbudget.edge.extproc.wire import SERVICE, BodyMode, HealthCheckRequest, HealthCheckResponse

Play = Callable[..., None]


async def picked(stage: Any, **words: Any) -> Any:
    """What becomes of one request; its stream is hung up at once."""
    peer = stage.plane.stream()
    answer = await peer.asked(chat_body(), **words)
    await peer.hang_up()
    return answer


def test_the_picker_implements_envoy_s_external_processing_service(stage: Play) -> None:
    async def scene(stage: Any) -> None:
        assert SERVICE == "envoy.service.ext_proc.v3.ExternalProcessor"
        assert (await picked(stage)).WhichOneof("response") == "request_body"

    stage(scene)


def test_the_picker_supports_streaming_of_requests_and_answers(stage: Play) -> None:
    async def scene(stage: Any) -> None:
        peer = stage.plane.stream()
        # As pickers are asked: how bodies come is not said, and nothing waits for an answer to the headers.
        await peer.say(request_headers(request_mode=None))
        body = chat_body(stream=True)
        await peer.say(request_body(body[:20], ends=False), request_body(body[20:], ends=True))
        assert destination(await peer.hear())[0] == stage.endpoint()
        piece = (await peer.hear()).request_body.response.body_mutation.streamed_response
        assert (piece.body, piece.end_of_stream) == (body, True)
        await peer.say(response_headers(200, {"content-type": "text/event-stream"}))
        assert (await peer.hear()).WhichOneof("response") == "response_headers"
        for number in range(3):  # token by token: each is passed on before the next one comes
            event = b'data: {"n":%d}\n\n' % number
            await peer.say(response_body(event, ends=number == 2))
            passed = (await peer.hear()).response_body.response.body_mutation.streamed_response
            assert (passed.body, passed.end_of_stream) == (event, number == 2)
        await peer.hang_up()

    stage(scene)


@pytest.mark.parametrize("form", ["list", "text"])
def test_only_endpoints_of_the_subset_are_picked(stage: Play, form: str) -> None:
    async def scene(stage: Any) -> None:
        for number in (0, 1, 0):
            allowed = ["10.9.9.9:1", stage.endpoint(number)]
            subset = allowed if form == "list" else ",".join(allowed)
            for _ in range(4):
                answer = await picked(stage, subset=subset)
                assert destination(answer) == (stage.endpoint(number),) * 2

    stage(scene, engines=2)


def test_of_two_endpoints_in_the_subset_one_that_has_room_is_picked_and_who_waits_does_not_leave_it(
    stage: Play,
) -> None:
    async def scene(stage: Any) -> None:
        only = [stage.endpoint(1)]
        holder, waiting = stage.plane.stream(), stage.plane.stream()
        await holder.asked(chat_body(max_tokens=400), subset=only)
        asked = asyncio.create_task(waiting.asked(chat_body(max_tokens=400), subset=only))
        await stage.until(lambda: stage.service.fleet.waiting == 1)
        both = await picked(stage, subset=[stage.endpoint(0), stage.endpoint(1)])
        assert destination(both)[0] == stage.endpoint(0)
        assert not asked.done()  # the other one has room all the time
        await holder.hang_up()
        assert destination(await asked)[0] == stage.endpoint(1)
        await waiting.hang_up()

    stage(scene, engines=2)


@pytest.mark.parametrize("subset", [[], ["10.9.9.9:1"], ""], ids=["empty", "none of ours", "empty text"])
def test_a_subset_without_an_eligible_endpoint_is_a_503(stage: Play, subset: Any) -> None:
    async def scene(stage: Any) -> None:
        answer = await picked(stage, subset=subset)
        assert answer.immediate_response.status.code == 503
        assert "retry-after" in headers_set(answer)

    stage(scene, engines=2)


def test_a_subset_of_which_no_endpoint_is_ready_is_a_503(stage: Play) -> None:
    async def scene(stage: Any) -> None:
        stage.engines[0].healthy = False
        await stage.until(lambda: not stage.service.instances[0].member.gate.backend_up)
        answer = await picked(stage, subset=[stage.endpoint(0)])
        assert answer.immediate_response.status.code == 503
        assert destination(await picked(stage, subset=[stage.endpoint(1)]))[0] == stage.endpoint(1)

    stage(scene, engines=2)


def test_without_a_subset_it_is_one_of_the_whole_pool(stage: Play) -> None:
    async def scene(stage: Any) -> None:
        peers = [stage.plane.stream() for _ in range(2)]
        answers = [await peer.asked(chat_body()) for peer in peers]
        assert {destination(answer)[0] for answer in answers} == {stage.endpoint(0), stage.endpoint(1)}
        for peer in peers:
            await peer.hang_up()

    stage(scene, engines=2)


def test_the_destination_is_told_as_header_and_as_dynamic_metadata_and_both_are_the_same(stage: Play) -> None:
    async def scene(stage: Any) -> None:
        whole = await picked(stage, headers={"x-gateway-destination-endpoint": "10.6.6.6:66"})
        header, metadata = destination(whole)
        assert header == metadata == stage.endpoint()
        address, _, port = header.rpartition(":")
        assert address == "127.0.0.1"
        assert port.isdigit()
        peer = stage.plane.stream()
        await peer.say(request_headers("/v1/models", "GET", ends=True))
        assert destination(await peer.hear()) == (stage.endpoint(),) * 2
        await peer.hang_up()

    stage(scene)


def test_without_a_ready_endpoint_it_is_a_503(stage: Play) -> None:
    async def scene(stage: Any) -> None:
        stage.engines[0].healthy = False
        await stage.until(lambda: not stage.service.gate.backend_up)
        answer = await picked(stage)
        assert answer.immediate_response.status.code == 503
        assert not answer.HasField("dynamic_metadata")

    stage(scene)


def test_a_request_that_is_to_be_dropped_is_a_429(stage: Play) -> None:
    async def scene(stage: Any) -> None:
        holder = stage.plane.stream()
        await holder.asked(chat_body(max_tokens=400))
        answer = await picked(stage)
        assert answer.immediate_response.status.code == 429
        await holder.hang_up()

    stage(scene, queue_requests=0)


@pytest.mark.parametrize("where", ["as picked", "elsewhere", "not told"])
def test_the_endpoint_that_served_is_heard_of(stage: Play, where: str) -> None:
    async def scene(stage: Any) -> None:
        peer = stage.plane.stream()
        await peer.asked(chat_body())
        served = {"as picked": stage.endpoint(), "elsewhere": "10.1.1.1:8000", "not told": ""}[where]
        await peer.say(response_headers(200, served=served))
        await peer.hear()
        assert stage.service.processor.counts.served_elsewhere == (where == "elsewhere")
        await peer.hang_up()

    stage(scene)


def test_health_is_told_by_the_names_of_the_protocol(stage: Play) -> None:
    async def scene(stage: Any) -> None:
        names = ("liveness", "readiness", SERVICE, "")
        assert [await stage.plane.health(name) for name in names] == [1, 1, 1, 1]
        with pytest.raises(aio.AioRpcError) as failed:
            await stage.plane.health("somebody")
        assert failed.value.code() == grpc.StatusCode.NOT_FOUND
        stage.service.gateway.start_draining()
        assert [await stage.plane.health(name) for name in names] == [1, 2, 2, 2]

    stage(scene)


def test_health_can_be_watched(stage: Play) -> None:
    async def scene(stage: Any) -> None:
        watch = stage.plane.channel.unary_stream(
            "/grpc.health.v1.Health/Watch",
            request_serializer=encoded,
            response_deserializer=HealthCheckResponse.FromString,
        )
        ready, unknown = watch(HealthCheckRequest(service="readiness")), watch(HealthCheckRequest(service="what"))
        assert (await ready.read()).status == 1
        assert (await unknown.read()).status == 3
        stage.service.gateway.start_draining()
        assert (await ready.read()).status == 2
        ready.cancel()
        unknown.cancel()

    stage(scene)


def test_what_the_picker_does_not_know_of_a_message_does_not_disturb_it(stage: Play) -> None:
    async def scene(stage: Any) -> None:
        peer = stage.plane.stream()
        later = b"\xa2\x06\x03abc"  # field 100, of a version to come
        await peer.say(request_headers(request_mode=BodyMode.BUFFERED) + later)
        await peer.hear()
        await peer.say(request_body(chat_body()) + later)
        assert destination(await peer.hear())[0] == stage.endpoint()
        await peer.hang_up()

    stage(scene)
