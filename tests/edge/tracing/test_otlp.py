"""Our bytes, read by OpenTelemetry's own classes."""

from google.protobuf.unknown_fields import UnknownFieldSet
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from kvbudget.edge.tracing.otlp import LONGEST_TEXT, Kind, attributes, rejected, request, resource, scope, span
from otlp_receiver import spans_in

TRACE, SPAN, PARENT = bytes(range(16)), bytes(range(8)), bytes(range(1, 9))
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=LONGEST_TEXT)
VALUES = st.one_of(st.booleans(), I64, st.floats(allow_nan=False), TEXT)
U64 = st.integers(0, (1 << 64) - 1)


@given(
    st.dictionaries(TEXT, VALUES), TEXT, st.sampled_from(Kind), U64, U64, st.booleans(), st.sampled_from([b"", PARENT])
)
def test_whatever_a_span_says_is_read_as_it_was_meant(
    told: dict[str, bool | int | float | str],
    name: str,
    kind: Kind,
    since_ns: int,
    until_ns: int,
    error: bool,
    parent: bytes,
) -> None:
    made = span(TRACE, SPAN, parent, name, kind, since_ns, until_ns, attributes(told.items()), error=error)
    body = request(resource({"service.name": "k"}), scope("s", "1"), made + made)
    for found in spans_in(body):
        assert (found.trace_id, found.span_id, found.parent_id) == (TRACE.hex(), SPAN.hex(), parent.hex())
        assert (found.name, found.kind, found.error) == (name, kind, error)
        assert (found.since_ns, found.until_ns) == (since_ns, max(since_ns, until_ns))
        assert found.attributes == told
        assert {key: type(value) for key, value in found.attributes.items()} == {k: type(v) for k, v in told.items()}
        assert (found.resource, found.scope) == ({"service.name": "k"}, "s")
    (of_resource,) = ExportTraceServiceRequest.FromString(body).resource_spans
    for each in (of_resource, of_resource.scope_spans[0], *of_resource.scope_spans[0].spans):
        assert len(UnknownFieldSet(each)) == 0


def test_the_parent_the_state_and_the_flags_arrive() -> None:
    made = span(TRACE, SPAN, PARENT, "n", Kind.SERVER, 1, 2, flags=3, remote=True, state=b"vendor=1")
    (found,) = spans_in(request(resource({}), scope("s", "1"), made))
    assert (found.parent_id, found.state, found.flags) == (PARENT.hex(), "vendor=1", 0x303)


def test_what_is_not_known_is_not_told_and_long_texts_are_cut() -> None:
    made = attributes([("a", None), ("b", "x" * 1000), ("c", "\ud800")])
    (found,) = spans_in(request(b"", scope("s", "1"), span(TRACE, SPAN, b"", "y" * 1000, Kind.CLIENT, 1, 2, made)))
    assert found.attributes == {"b": "x" * LONGEST_TEXT, "c": "?"}
    assert found.name == "y" * LONGEST_TEXT


@given(st.integers(0, (1 << 63) - 1), TEXT)
def test_spans_that_were_rejected_are_read(number: int, told: str) -> None:
    answer = ExportTraceServiceResponse()
    answer.partial_success.error_message = told
    answer.partial_success.rejected_spans = number
    assert rejected(answer.SerializeToString()) == number


@given(st.binary(max_size=60))
def test_an_answer_that_is_none_rejects_whatever_it_says_and_harms_nobody(answer: bytes) -> None:
    assert isinstance(rejected(answer), int)
