"""Counting of server-sent events."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbudget.edge.http.events import EventCounter


@pytest.mark.parametrize(
    ("body", "events"),
    [
        (b"", 0),
        (b"data: a\n\ndata: b\n\ndata: [DONE]\n\n", 3),
        (b": ping\n\ndata: a\n\n: ping\n\n", 1),
        (b"event: x\ndata: a\n\nevent: y\ndata: b\n\n", 2),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", 2),
        (b'data: {"text": "data: data: \\ndata: "}\n\n', 1),
    ],
)
def test_every_event_with_data_counts_once(body: bytes, events: int) -> None:
    assert EventCounter().feed(body) == events


@settings(deadline=None)  # the machine may be busy with other tests
@given(
    st.lists(st.sampled_from([b"data: x\n\n", b": p\n\n", b"event: e\ndata:1\n\n", b"\n", b"da", b"ta:"])), st.data()
)
def test_the_count_does_not_depend_on_how_reads_cut_the_body(parts: list[bytes], data: st.DataObject) -> None:
    body = b"".join(parts)
    whole, cut = EventCounter(), EventCounter()
    whole.feed(body)
    start, told = 0, 0
    while start < len(body):
        size = data.draw(st.integers(1, 9))
        told += cut.feed(body[start : start + size])
        start += size
    assert told == cut.total == whole.total == sum(line.startswith(b"data:") for line in body.split(b"\n"))
