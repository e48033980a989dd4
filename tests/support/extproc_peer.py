"""A data plane that speaks ext_proc by hand: what Envoy says, message by message, and what must never be said."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import grpc
from grpc import aio

from kvbudget.edge.extproc.wire import SERVICE, BodyMode, ProcessingRequest, ProcessingResponse

CHAT = "/v1/chat/completions"


def chat_body(**more: object) -> bytes:
    ask = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 16, **more}
    return json.dumps(ask).encode()


def request_headers(
    path: str = CHAT,
    method: str = "POST",
    headers: Mapping[str, str] | None = None,
    *,
    ends: bool = False,
    request_mode: int | None = BodyMode.BUFFERED,
    response_mode: int = BodyMode.NONE,
    subset: list[str] | str | None = None,
) -> bytes:
    message = ProcessingRequest()
    said = {":method": method, ":path": path, ":authority": "gate", "content-type": "application/json"}
    _fill(message.request_headers, said | dict(headers or {}))
    message.request_headers.end_of_stream = ends
    if request_mode is not None:
        message.protocol_config.request_body_mode = request_mode
        message.protocol_config.response_body_mode = response_mode
    if subset is not None:
        fields = message.metadata_context.filter_metadata["envoy.lb.subset_hint"].fields
        value = fields["x-gateway-destination-endpoint-subset"]
        if isinstance(subset, str):
            value.string_value = subset
        else:
            value.list_value.SetInParent()
            for one in subset:
                value.list_value.values.add().string_value = one
    return encoded(message)


def request_body(body: bytes, *, ends: bool = True) -> bytes:
    message = ProcessingRequest()
    message.request_body.body = body
    message.request_body.end_of_stream = ends
    return encoded(message)


def request_trailers() -> bytes:
    message = ProcessingRequest()
    message.request_trailers.SetInParent()
    return encoded(message)


def response_headers(
    status: int | str = 200,
    headers: Mapping[str, str] | None = None,
    *,
    by_engine: bool = True,
    served: str = "",
    details: str = "",
) -> bytes:
    message = ProcessingRequest()
    said = {":status": str(status), **({"x-envoy-upstream-service-time": "3"} if by_engine else {})}
    _fill(message.response_headers, said | dict(headers or {}))
    if served:
        fields = message.metadata_context.filter_metadata["envoy.lb"].fields
        fields["x-gateway-destination-endpoint-served"].string_value = served
    if details:
        message.attributes["envoy.filters.http.ext_proc"].fields["response.code_details"].string_value = details
    return encoded(message)


def response_body(body: bytes, *, ends: bool = False) -> bytes:
    message = ProcessingRequest()
    message.response_body.body = body
    message.response_body.end_of_stream = ends
    return encoded(message)


def response_trailers() -> bytes:
    message = ProcessingRequest()
    message.response_trailers.SetInParent()
    return encoded(message)


def encoded(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


def _fill(part: Any, headers: Mapping[str, str]) -> None:
    for name, value in headers.items():
        part.headers.headers.add(key=name, raw_value=value.encode())


def headers_set(answer: Any) -> dict[str, str]:
    """What an answer does to headers, of whatever kind it is."""
    kind = answer.WhichOneof("response")
    part = getattr(answer, kind)
    mutation = part.headers if kind == "immediate_response" else part.response.header_mutation
    return {option.header.key: option.header.raw_value.decode() for option in mutation.set_headers}


def destination(answer: Any) -> tuple[str, str]:
    """The endpoint that was picked, by header and by dynamic metadata."""
    fields = answer.dynamic_metadata.fields["envoy.lb"].struct_value.fields
    told: str = fields["x-gateway-destination-endpoint"].string_value
    return headers_set(answer)["x-gateway-destination-endpoint"], told


def read_answer(data: bytes) -> Any:
    return ProcessingResponse.FromString(data)


class Peer:
    """One stream of a data plane."""

    def __init__(self, call: Any) -> None:
        self.call = call

    async def say(self, *messages: bytes) -> None:
        for message in messages:
            await self.call.write(message)

    async def hear(self) -> Any:
        """The next answer; None at the end of the stream. Raises aio.AioRpcError where it ended as an error."""
        data = await self.call.read()
        return None if data is aio.EOF else read_answer(data)

    async def asked(self, body: bytes, **words: Any) -> Any:
        """A request in one go, as Envoy buffers it, and what becomes of it."""
        await self.say(request_headers(**words))
        assert (await self.hear()).WhichOneof("response") == "request_headers"
        await self.say(request_body(body))
        return await self.hear()

    async def hang_up(self) -> None:
        """As Envoy does when its request is over."""
        await self.call.done_writing()

    def reset(self) -> None:
        """As Envoy does when its client left while it waited for us."""
        self.call.cancel()


class Plane:
    """A connection of a data plane."""

    def __init__(self, channel: Any) -> None:
        self.channel = channel
        self._process = channel.stream_stream(f"/{SERVICE}/Process")

    def stream(self) -> Peer:
        return Peer(self._process())

    async def health(self, service: str) -> Any:
        from kvbudget.edge.extproc.wire import HealthCheckRequest, HealthCheckResponse

        check = self.channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=encoded,
            response_deserializer=HealthCheckResponse.FromString,
        )
        return (await check(HealthCheckRequest(service=service))).status


@asynccontextmanager
async def plane(target: str, credentials: grpc.ChannelCredentials | None = None) -> AsyncIterator[Plane]:
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    if credentials is None:
        channel = aio.insecure_channel(target, options)
    else:
        channel = aio.secure_channel(target, credentials, options)
    async with channel:
        yield Plane(channel)
