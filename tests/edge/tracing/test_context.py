"""A lawful traceparent is continued, anything else begins a trace; the engine hears of our span."""

import re
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from kvbudget.edge.instances.backend import Backend
from kvbudget.edge.tracing.context import Contexts, Sampler

TRACE, PARENT = "a" * 31 + "1", "b" * 15 + "2"
SAMPLED = f"00-{TRACE}-{PARENT}-01"
NO_WAY: Any = None
ENGINE = Backend("http://e:1", NO_WAY, name="e")


def contexts(ratio: float = 1.0, *, by_parent: bool = True) -> Contexts:
    return Contexts(Sampler(ratio, by_parent), Random(7))


def headers(*told: str, state: str | None = None) -> list[tuple[bytes, bytes]]:
    found = [(b"traceparent", value.encode()) for value in told]
    return found if state is None else [*found, (b"tracestate", state.encode())]


def test_a_trace_that_comes_in_is_continued_and_its_state_kept() -> None:
    trace = contexts().of(headers(SAMPLED, state="vendor=1"), "/v1/x")
    assert trace is not None
    assert (trace.trace_id.hex(), trace.parent_id.hex(), trace.state) == (TRACE, PARENT, b"vendor=1")
    assert trace.sampled
    assert not trace.begins
    line = trace.sent(ENGINE, 5).decode()
    told = re.fullmatch(r"traceparent: 00-([0-9a-f]{32})-([0-9a-f]{16})-01\r\n", line)
    assert told is not None
    assert told[1] == TRACE
    assert told[2] == trace.attempts[0].span_id.hex()
    assert len({told[2], trace.span_id.hex(), PARENT}) == 3


@pytest.mark.parametrize(
    "lawful",
    [f"00-{TRACE}-{PARENT}-03", f"01-{TRACE}-{PARENT}-01", f"fe-{TRACE}-{PARENT}-01-more-of-a-later-version"],
)
def test_later_versions_are_read_as_far_as_they_are_known(lawful: str) -> None:
    trace = contexts().of(headers(lawful), "/")
    assert trace is not None
    assert (trace.trace_id.hex(), trace.begins) == (TRACE, False)


def test_the_random_flag_is_passed_on_and_no_other_bit() -> None:
    trace = contexts().of(headers(f"00-{TRACE}-{PARENT}-ff"), "/")
    assert trace is not None
    assert trace.sent(ENGINE, 0).endswith(b"-03\r\n")


@pytest.mark.parametrize(
    "damage",
    ["", "x", f"00-{TRACE}-{PARENT}", f"ff-{TRACE}-{PARENT}-01", f"00-{TRACE.upper()}-{PARENT}-01",
     f"00-{'0' * 32}-{PARENT}-01", f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE}-{PARENT}-01-more", f"{SAMPLED}\n",
     f" {SAMPLED}", f"00-{TRACE}-{PARENT}-0"],
)  # fmt: skip
def test_what_is_no_traceparent_begins_a_trace_without_the_state(damage: str) -> None:
    trace = contexts().of(headers(damage, state="vendor=1"), "/")
    assert trace is not None
    assert trace.trace_id.hex() != TRACE
    assert (trace.begins, trace.sampled, trace.state) == (True, True, b"")


def test_two_traceparents_are_none() -> None:
    trace = contexts().of(headers(SAMPLED, SAMPLED), "/")
    assert trace is not None
    assert trace.begins


def test_who_is_not_recorded_by_the_parent_is_left_as_it_is() -> None:
    assert contexts().of(headers(f"00-{TRACE}-{PARENT}-00"), "/") is None


def test_a_sampler_that_does_not_ask_the_parent_decides_by_the_trace_id_as_opentelemetry_does() -> None:
    low, high = "c" * 16 + "0" * 15 + "1", "c" * 16 + "f" * 16
    kept = contexts(0.5, by_parent=False).of(headers(f"00-{low}-{PARENT}-00"), "/")
    left = contexts(0.5, by_parent=False).of(headers(f"00-{high}-{PARENT}-01"), "/")
    assert kept is not None
    assert left is not None
    assert (kept.sampled, left.sampled) == (True, False)
    assert left.sent(ENGINE, 0) == f"traceparent: 00-{high}-{left.span_id.hex()}-00\r\n".encode()
    assert left.attempts == []


@pytest.mark.parametrize(("ratio", "some"), [(0.0, 0), (0.25, 500), (1.0, 2000)])
def test_so_many_of_those_that_begin_here_are_recorded(ratio: float, some: int) -> None:
    given = contexts(ratio)
    kept = sum(trace.sampled for trace in (given.of([], "/") for _ in range(2000)) if trace is not None)
    assert abs(kept - some) <= 80
    assert kept == some or 0 < ratio < 1


def test_ids_differ() -> None:
    given = contexts()
    traces = [given.of([], "/") for _ in range(1000)]
    assert len({trace.trace_id for trace in traces if trace}) == 1000
    assert len({trace.span_id for trace in traces if trace}) == 1000


def test_gates_do_not_begin_with_the_same_ids() -> None:
    def first(make: Callable[[], Contexts]) -> bytes:
        trace = make().of([], "/")
        assert trace is not None
        return trace.trace_id

    assert first(lambda: Contexts(Sampler())) != first(lambda: Contexts(Sampler()))
