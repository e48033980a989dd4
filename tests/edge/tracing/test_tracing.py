"""A gate that traces: what a collector gets of requests that are served, refused, tried again or left alone."""

import asyncio
from contextlib import asynccontextmanager
from typing import Any

import pytest
from opentelemetry.trace import get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from kvbudget.edge.tracing.context import Sampler
from kvbudget.edge.tracing.settings import TracingSettings
from otlp_receiver import Receiver, Span

Stand = Any  # the class lives in conftest.py, which cannot be imported
TRACE, PARENT = "a" * 31 + "1", "b" * 15 + "2"
PARENTED = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvbudget.edge.tracing.exporter.EVERY_S", 0.01)
    monkeypatch.setattr("kvbudget.edge.tracing.exporter.FIRST_PAUSE_S", 0.01)


@asynccontextmanager
async def traced(stand: Stand, sampler: Sampler | None = None, **scripted: Any) -> Any:
    """The stand's gate as if it had been started with a collector."""
    receiver = Receiver(**scripted)
    settings = TracingSettings(await receiver.start() + "/v1/traces", sampler or Sampler(), ((b"x-key", b"k"),))
    service = stand.service
    service._tracer = service._traced(settings, "gate-1")
    service._tracer.exporter.open()
    try:
        yield receiver
    finally:
        await service._tracer.exporter.close()
        await receiver.stop()


def named(spans: list[Span], name: str) -> Span:
    (found,) = [span for span in spans if span.name == name]
    return found


def test_a_served_request_is_a_tree_that_hangs_below_its_client_and_above_its_engine(play: Any) -> None:
    async def scene(stand: Stand) -> None:
        async with traced(stand) as receiver:
            more = {"x-request-id": "one", "x-kvbudget-tenant": "acme"}
            answer = await stand.chat(
                headers={**PARENTED, **more}, stream=True, messages=[{"role": "user", "content": "secret"}]
            )
            assert answer.status_code == 200
            spans = await receiver.until(5)
            top, count, engine = (named(spans, n) for n in ("POST /v1/chat/completions", "kvbudget.count", "chat m"))
            first, stream = named(spans, "kvbudget.first_byte"), named(spans, "kvbudget.stream")
            assert len(spans) == 5
            assert {span.trace_id for span in spans} == {TRACE}
            assert (top.parent_id, top.kind, top.state, top.flags) == (PARENT, 2, "vendor=1", 0x301)
            assert (count.parent_id, engine.parent_id, engine.kind) == (top.span_id, top.span_id, 3)
            assert (first.parent_id, stream.parent_id) == (engine.span_id, engine.span_id)
            assert top.since_ns == count.since_ns <= count.until_ns <= engine.since_ns == first.since_ns
            assert first.until_ns == stream.since_ns <= stream.until_ns == engine.until_ns <= top.until_ns
            head = stand.engine.heads[0]
            assert head["traceparent"] == f"00-{TRACE}-{engine.span_id}-01"
            assert head["tracestate"] == "vendor=1"
            told = top.attributes
            assert told["http.request.method"] == "POST"
            assert told["http.response.status_code"] == 200
            assert (told["kvbudget.tenant"], told["kvbudget.request_id"]) == ("acme", "one")
            assert (told["kvbudget.prompt_tokens"], told["kvbudget.prompt_exact"]) == (100, True)
            assert (told["kvbudget.outcome"], told["kvbudget.reserved_blocks"]) == ("finished", 8)
            assert told["gen_ai.request.max_tokens"] == 16
            assert "kvbudget.refusal" not in told
            told = engine.attributes
            assert told["gen_ai.operation.name"] == "chat"
            assert told["gen_ai.provider.name"] == "vllm"
            assert (told["gen_ai.request.model"], told["gen_ai.request.stream"]) == ("m", True)
            assert (told["gen_ai.usage.input_tokens"], told["gen_ai.usage.output_tokens"]) == (100, 16)
            assert f"http://{told['server.address']}:{told['server.port']}" == stand.service.backend.url
            assert 0 < told["gen_ai.response.time_to_first_chunk"] < 10
            assert not any(span.error for span in spans)
            assert top.resource["service.instance.id"] == "gate-1"
            assert receiver.heads[0]["content-type"] == "application/x-protobuf"
            assert (receiver.heads[0]["x-key"], receiver.paths[0]) == ("k", "/v1/traces")
            assert b"secret" not in b"".join(receiver.bodies)

    play(scene, {"count": 100})


def test_an_engine_that_reads_our_header_as_vllm_does_hangs_its_spans_below_ours(play: Any) -> None:
    async def scene(stand: Stand) -> None:
        async with traced(stand) as receiver:
            await stand.chat(headers=PARENTED)
            spans = await receiver.until(5)
            # vLLM 0.32 tracing/otel.py: extract_trace_context
            context = TraceContextTextMapPropagator().extract(stand.engine.heads[0])
            parent = get_current_span(context).get_span_context()
            assert parent.is_remote
            assert parent.trace_flags.sampled
            assert f"{parent.trace_id:032x}" == TRACE
            assert f"{parent.span_id:016x}" == named(spans, "chat m").span_id
            assert parent.trace_state.get("vendor") == "1"

    play(scene, {"count": 100})


def test_refused_not_understood_and_gone_are_one_tree_each(play: Any) -> None:
    async def scene(stand: Stand) -> None:
        async with traced(stand) as receiver:
            assert (await stand.chat(max_tokens=100_000, n=40)).status_code == 400
            assert (await stand.chat(messages="no")).status_code == 400
            stand.engine.hold = True
            _, writer = await stand.open_chat()
            await stand.until(lambda: len(stand.engine.requests) == 1)
            writer.close()
            spans = await receiver.until(5)
            tops = [span for span in spans if span.kind == 2]
            refused, bad, gone = tops
            assert refused.attributes["kvbudget.refusal"] == "never_fits"
            assert (refused.attributes["kvbudget.outcome"], refused.error) == ("refused", False)
            assert refused.attributes["gen_ai.request.choice.count"] == 40
            assert (bad.attributes["kvbudget.refusal"], bad.attributes["http.response.status_code"]) == (
                "bad_request",
                400,
            )
            assert gone.attributes["kvbudget.outcome"] == "client_gone"
            assert "http.response.status_code" not in gone.attributes
            assert named(spans, "chat m").attributes["error.type"] == "client_gone"
            assert [span.parent_id for span in tops] == ["", "", ""]
            assert len({span.trace_id for span in spans}) == 3

    play(scene, {"count": 100})


def test_who_waits_has_a_span_of_its_wait(play: Any) -> None:
    async def scene(stand: Stand) -> None:
        async with traced(stand) as receiver:
            stand.engine.hold = True
            first = asyncio.create_task(stand.chat(max_tokens=400))
            await stand.until(lambda: len(stand.engine.requests) == 1)
            second = asyncio.create_task(stand.chat(max_tokens=400))
            await stand.until(lambda: len(list(stand.service.gate.queue)) == 1)
            stand.engine.release.set()
            await asyncio.gather(first, second)
            spans = await receiver.until(11)
            queue = named(spans, "kvbudget.queue")
            top = next(span for span in spans if span.span_id == queue.parent_id)
            waited_ms = (queue.until_ns - queue.since_ns) / 1e6
            assert waited_ms > 0
            assert abs(top.attributes["kvbudget.queue_ms"] - waited_ms) < 0.01

    play(scene, {"count": 100})


def test_every_try_is_a_span_of_its_own_and_the_engine_hears_of_that_one(play: Any) -> None:
    async def scene(stand: Stand) -> None:
        async with traced(stand) as receiver:
            stand.engine.refuse_with = 503
            asked = asyncio.create_task(stand.chat(headers=PARENTED))
            await stand.until(lambda: len(stand.engine.requests) == 1)
            stand.engine.refuse_with = 0
            assert (await asked).status_code == 200
            spans = await receiver.until(8)
            tries = [span for span in spans if span.kind == 3]
            assert [head["traceparent"][36:52] for head in stand.engine.heads] == [span.span_id for span in tries]
            assert [span.attributes.get("error.type") for span in tries] == ["withheld", None]
            assert [span.attributes["http.response.status_code"] for span in tries] == [503, 200]
            assert "gen_ai.usage.output_tokens" not in tries[0].attributes
            top = named(spans, "POST /v1/chat/completions")
            assert (top.attributes["kvbudget.tries"], top.error) == (2, False)

    play(scene, {"count": 100})


def test_an_engine_that_breaks_off_is_an_error_of_the_request(play: Any) -> None:
    async def scene(stand: Stand) -> None:
        async with traced(stand) as receiver:
            stand.engine.die = "midway"
            await stand.chat(stream=True)
            spans = await receiver.until(5)
            top = named(spans, "POST /v1/chat/completions")
            assert (top.error, top.attributes["error.type"]) == (True, "upstream_failed")
            assert named(spans, "chat m").attributes["error.type"] == "broken_midway"

    play(scene, {"count": 100})


def test_a_trace_begins_here_where_the_client_has_none_and_a_false_one_does_not_pass(play: Any) -> None:
    async def scene(stand: Stand) -> None:
        async with traced(stand) as receiver:
            await stand.chat()
            await stand.chat()  # its head is one that is known by now
            await stand.chat(headers={"traceparent": "false", "tracestate": "vendor=1"})
            spans = await receiver.until(15)
            told = [head["traceparent"] for head in stand.engine.heads]
            assert [line[3:35] for line in told] == [span.trace_id for span in spans if span.kind == 3]
            assert len(set(told)) == 3
            assert not any("tracestate" in head for head in stand.engine.heads)

    play(scene, {"count": 100})


def test_who_is_not_recorded_costs_no_span_and_the_engine_is_told_so(play: Any) -> None:
    async def scene(stand: Stand) -> None:
        async with traced(stand, Sampler(0.0)) as receiver:
            await stand.chat()
            unrecorded = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
            await stand.chat(headers=unrecorded)
            await stand.chat(headers=PARENTED)
            spans = await receiver.until(5)
            assert {span.trace_id for span in spans} == {TRACE}
            first, second, _ = (head["traceparent"] for head in stand.engine.heads)
            assert first.endswith("-00")
            assert second == unrecorded["traceparent"]

    play(scene, {"count": 100})


def test_an_engine_key_is_sent_beside_the_parent(play: Any) -> None:
    async def scene(stand: Stand) -> None:
        async with traced(stand):
            stand.service.backend.use_api_key("engine-key", replacing=True)
            assert (await stand.chat(headers={**PARENTED, "authorization": "Bearer mine"})).status_code == 200
            head = stand.engine.heads[0]
            assert head["authorization"] == "Bearer engine-key"
            assert head["traceparent"].startswith(f"00-{TRACE}-")
            assert head["traceparent"] != PARENTED["traceparent"]

    play(scene, {"count": 100})


def test_a_shadow_is_traced_as_well(play: Any) -> None:
    async def scene(stand: Stand) -> None:
        async with traced(stand) as receiver:
            stand.service.gateway.set_shadow(True)
            assert (await stand.chat(max_tokens=16)).status_code == 200
            spans = await receiver.until(4)
            assert named(spans, "chat m").attributes["gen_ai.usage.output_tokens"] == 16

    play(scene, {"count": 100})


def test_figures_of_the_exporter_are_metrics_and_settings_reach_the_gate(play: Any) -> None:
    async def scene(stand: Stand) -> None:
        receiver = Receiver()
        from kvbudget.edge.service import ServiceSettings, start_service

        settings = ServiceSettings(
            backend_url=stand.service.backend.url,
            port=0,
            admin_port=0,
            tracing=TracingSettings(await receiver.start() + "/v1/traces", resource={"service.name": "mine"}),
        )
        service = await start_service(settings)
        try:
            body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
            assert (await stand.client.post(f"{service.url}/v1/chat/completions", json=body)).status_code == 200
            spans = await receiver.until(5)
            assert spans[0].resource["service.name"] == "mine"
            await stand.until(lambda: service.gateway.metrics.spans() == (5, 0))
            text = (await stand.client.get(f"{service.admin_url}/metrics")).text
            assert "kvbudget_spans_exported_total 5.0" in text
            assert "kvbudget_spans_lost_total 0.0" in text
            assert (await stand.client.post(f"{service.url}/v1/chat/completions", json=body)).status_code == 200
        finally:
            await service.close()
        assert len(receiver.spans) == 10  # what was left was sent at the end
        await receiver.stop()

    play(scene, {"count": 100})
