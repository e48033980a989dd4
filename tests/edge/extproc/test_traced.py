"""What the spans say of a request that Envoy carries: what was not shown to us is no failure."""

from collections.abc import Callable
from typing import Any

import pytest

from extproc_peer import chat_body, response_headers
from kvbudget.edge.tracing.context import Sampler
from kvbudget.edge.tracing.settings import TracingSettings
from otlp_receiver import Receiver


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvbudget.edge.tracing.exporter.EVERY_S", 0.01)


@pytest.mark.parametrize(
    ("head", "lost", "failure"),
    [
        (None, False, None),
        (response_headers(200, {"content-type": "text/event-stream"}), False, None),
        (response_headers(200, {"content-length": "9"}), False, None),
        (response_headers(400, {"content-length": "9"}), False, "400"),
        (None, True, "engine_lost"),
        (response_headers(200, {"content-length": "9"}), True, "engine_lost"),
    ],
)
def test_an_answer_that_is_not_shown_to_its_end_is_no_failure(
    stage: Callable[..., None], head: bytes | None, lost: bool, failure: str | None
) -> None:
    async def scene(stage: Any) -> None:
        receiver = Receiver()
        service = stage.service
        settings = TracingSettings(await receiver.start() + "/v1/traces", Sampler(), ())
        service._tracer = tracer = service._traced(settings, "gate-1")
        tracer.exporter.open()
        try:
            peer = stage.plane.stream()
            await peer.asked(chat_body(stream=True))
            if head is not None:
                await peer.say(head)
                await peer.hear()
            for flow in service.gateway.flows:
                flow.lost = lost
            await peer.hang_up()
            names = {"POST /v1/chat/completions", "kvbudget.count", "chat m"}
            if head is not None:
                names |= {"kvbudget.first_byte", "kvbudget.stream"}
            spans = {span.name: span for span in await receiver.until(len(names))}
            assert set(spans) == names  # when an answer began is not told where that was not shown
            engine, top = spans["chat m"], spans["POST /v1/chat/completions"]
            assert (engine.attributes.get("error.type"), engine.error) == (failure, failure is not None)
            assert top.error is lost
        finally:
            service._tracer = None
            await tracer.exporter.close()
            await receiver.stop()

    stage(scene)
