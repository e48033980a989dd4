"""What Envoy is told, read again with protobuf."""

from hypothesis import given
from hypothesis import strategies as st

from extproc_peer import destination, headers_set, read_answer
from kvbudget.edge.extproc import told
from kvbudget.edge.extproc.wire import OVERWRITE_OR_ADD
from kvbudget.edge.http.messages import Headers

NAMES = st.text("abcdefghijklmnopqrstuvwxyz-0123456789", min_size=1, max_size=200).map(str.encode)
VALUES = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=300).map(str.encode)
HEADERS = st.lists(st.tuples(NAMES, VALUES), max_size=6, unique_by=lambda field: field[0])
SIZES = st.one_of(
    st.integers(0, 300), st.integers(16_300, 16_500), st.integers(59_900, 60_100), st.integers(0, 400_000)
)


def read_again(headers: Headers) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in headers}


@given(HEADERS, st.lists(NAMES, max_size=4), SIZES)
def test_changes_of_a_request_are_what_protobuf_reads(headers: Headers, without: list[bytes], size: int) -> None:
    changes = told.Changes("10.0.0.7:8000", headers, without)
    body = b"x" * size
    answer = read_answer(told.with_whole_body(changes, body))
    assert destination(answer) == ("10.0.0.7:8000", "10.0.0.7:8000")
    common = answer.request_body.response
    own = {"x-gateway-destination-endpoint": "10.0.0.7:8000", "content-length": str(size)}
    assert headers_set(answer) == own | read_again(headers) | {"content-length": str(size)}
    assert [name.encode() for name in common.header_mutation.remove_headers] == without
    assert {option.append_action for option in common.header_mutation.set_headers} == {OVERWRITE_OR_ADD}
    assert common.body_mutation.body == body
    assert common.clear_route_cache
    unchanged = read_answer(told.with_whole_body(changes, None)).request_body.response
    assert not unchanged.HasField("body_mutation")


@given(SIZES)
def test_a_body_in_pieces_is_whole_and_only_its_last_piece_ends_it(size: int) -> None:
    changes = told.Changes("[::1]:80", [], [])
    body = bytes(range(256)) * (size // 256) + b"y" * (size % 256)
    for trailers in (False, True):
        answers = [read_answer(data) for data in told.with_streamed_body(changes, body, trailers=trailers)]
        assert answers[0].WhichOneof("response") == "request_headers"
        if trailers:
            assert answers.pop().WhichOneof("response") == "request_trailers"
        pieces = [answer.request_body.response.body_mutation.streamed_response for answer in answers[1:]]
        assert b"".join(piece.body for piece in pieces) == body
        assert [piece.end_of_stream for piece in pieces] == [False] * (len(pieces) - 1) + [not trailers]


@given(st.integers(100, 599), HEADERS, SIZES)
def test_a_refusal_is_what_protobuf_reads(status: int, headers: Headers, size: int) -> None:
    answer = read_answer(told.refusal(status, headers, b"z" * size, "kvbudget"))
    assert answer.immediate_response.status.code == status
    assert headers_set(answer) == read_again(headers)
    assert len(answer.immediate_response.body) == size
    assert answer.immediate_response.details == "kvbudget"


@given(HEADERS)
def test_headers_of_an_answer_are_what_protobuf_reads(headers: Headers) -> None:
    assert headers_set(read_answer(told.answer_headers(headers))) == read_again(headers)


def test_a_piece_of_an_answer_passes_as_it_came() -> None:
    for ends in (False, True):
        answer = read_answer(told.passed_on(b"data: 1\n\n", ends=ends)).response_body.response
        assert answer.body_mutation.streamed_response.body == b"data: 1\n\n"
        assert answer.body_mutation.streamed_response.end_of_stream is ends


def test_going_on_is_the_answer_of_that_kind_with_nothing_in_it() -> None:
    for kind, data in told.GO_ON.items():
        answer = read_answer(data)
        assert answer.WhichOneof("response") == kind
        assert getattr(answer, kind).ByteSize() == 0


def test_more_time_is_asked_for_to_the_millisecond() -> None:
    answer = read_answer(told.more_time(20.25))
    assert (answer.override_message_timeout.seconds, answer.override_message_timeout.nanos) == (20, 250_000_000)
    assert answer.WhichOneof("response") is None
