"""Traces: every row counts, damage names its line, and shaping keeps what it promises."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbudget.edge.openai.errors import BadRequestError
from kvbudget.edge.request.identity import Identities
from kvbudget.edge.traces.read import TraceOptions, apply_options, load_trace, parse_trace
from kvbudget.errors import BadValueError
from kvbudget.simulate.load import TraceRequest
from kvbudget.units import Tokens

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951691,396,109
"""


def _file(folder: Path, text: str) -> Path:
    path = folder / "trace"
    path.write_text(text)
    return path


def _request(arrival_ns: int = 0, prompt: int = 10, output: int = 5, declared: int | None = None) -> TraceRequest:
    return TraceRequest(arrival_ns, Tokens(prompt), Tokens(declared or output), Tokens(output))


def test_azure_stamps_keep_their_seventh_digit_and_start_at_zero(tmp_path: Path) -> None:
    requests = load_trace(_file(tmp_path, AZURE), "azure")
    assert [one.arrival_ns for one in requests] == [0, 4_314_579_100]
    assert (requests[1].prompt_tokens, requests[1].output_tokens, requests[1].max_new_tokens) == (396, 109, 109)


@pytest.mark.parametrize(
    "stamp", ["2023-11-16 20:15:47.6805900+02:00", "2023-11-16T18:15:47.68059Z", "2023-11-16 18:15:47.680590000"]
)
def test_azure_stamps_may_carry_a_zone_and_other_precision(tmp_path: Path, stamp: str) -> None:
    text = f"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,1,1\n{stamp},1,1\n"
    assert load_trace(_file(tmp_path, text))[1].arrival_ns == 1_000_000_000


def test_azure_columns_are_found_by_name_behind_a_byte_order_mark_and_with_crlf(tmp_path: Path) -> None:
    text = "\ufeffGeneratedTokens,Extra,TIMESTAMP,ContextTokens\r\n7,x,2023-11-16 18:15:46,9\r\n"
    (only,) = load_trace(_file(tmp_path, text))
    assert (only.prompt_tokens, only.output_tokens) == (9, 7)


def test_mooncake_rows_have_milliseconds_and_hash_ids(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 3000, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]},
        {"timestamp": 5999.5, "input_length": 12, "output_length": 0, "hash_ids": []},
    ]
    first, second = load_trace(_file(tmp_path, "\n".join(map(json.dumps, rows))))
    assert (first.arrival_ns, first.hash_ids) == (0, (0, 1))
    assert (second.arrival_ns, second.output_tokens) == (2_999_500_000, 1)


def test_our_own_rows_carry_declared_length_and_tenant(tmp_path: Path) -> None:
    row = {"arrival_s": 1.5, "prompt_tokens": 8, "output_tokens": 3, "max_tokens": 64, "tenant": "blue"}
    (only,) = load_trace(_file(tmp_path, json.dumps(row)))
    assert only == TraceRequest(0, Tokens(8), Tokens(64), Tokens(3), "blue")


@pytest.mark.parametrize(
    ("trace_format", "text"),
    [("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\n"), ("mooncake", ""), ("jsonl", "\n\n")],
)
def test_a_trace_without_requests_is_an_error(tmp_path: Path, trace_format: str, text: str) -> None:
    with pytest.raises(BadValueError, match="no requests"):
        load_trace(_file(tmp_path, text), trace_format)


@pytest.mark.parametrize(
    ("trace_format", "damaged", "what"),
    [
        ("azure", "2023-11-16 18:15:51,12", "2 fields"),
        ("azure", "2023-11-16 18:15:51,-4,1", "ContextTokens"),
        ("azure", "2023-11-16 18:15:51,4,1.5", "GeneratedTokens"),
        ("azure", "2023-02-30 18:15:51,4,1", "TIMESTAMP"),
        ("azure", "1700000000,4,1", "TIMESTAMP"),
        ("mooncake", '{"timestamp": 0, "input_length": 1', "not JSON"),
        ("mooncake", "[1]", "not a JSON object"),
        ("mooncake", '{"timestamp": NaN, "input_length": 1, "output_length": 1}', "timestamp"),
        ("mooncake", '{"timestamp": 0, "input_length": true, "output_length": 1}', "input_length"),
        ("mooncake", '{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": ["a"]}', "hash_ids"),
        ("jsonl", '{"arrival_s": -1, "prompt_tokens": 1, "output_tokens": 1}', "arrival_s"),
        ("jsonl", '{"arrival_s": 1e300, "prompt_tokens": 1, "output_tokens": 1}', "arrival_s"),
        (
            "jsonl",
            '{"arrival_s": 1, "prompt_tokens": 1}',
            "output_tokens is missing; the row has arrival_s, prompt_tokens",
        ),
        ("jsonl", '{"arrival_s": 1, "prompt_tokens": 1, "output_tokens": 1, "team": "a"}', "'team' is no field"),
        ("jsonl", '{"arivals_s": 1, "prompt_tokens": 1, "output_tokens": 1}', "'arivals_s' is no field"),
        ("jsonl", '{"arrival_s": 1, "prompt_tokens": 1, "output_tokens": 1, "priority": 101}', "priority 101"),
        ("mooncake", '{"input_length": 1, "output_length": 1}', "timestamp is missing"),
        ("jsonl", '{"arrival_s": 1, "prompt_tokens": 1, "output_tokens": 9, "max_tokens": 8}', "more than max_tokens"),
        ("jsonl", '{"arrival_s": 1, "prompt_tokens": 1, "output_tokens": 1, "tenant": 7}', "tenant"),
        ("jsonl", "[" * 100_000, "not JSON"),
    ],
)
def test_a_damaged_row_is_named_by_its_line(tmp_path: Path, trace_format: str, damaged: str, what: str) -> None:
    good = {
        "azure": AZURE.rstrip(),
        "mooncake": '{"timestamp": 0, "input_length": 1, "output_length": 1}\n',
        "jsonl": '{"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1}\n',
    }[trace_format]
    path = _file(tmp_path, f"{good}\n{damaged}\n")
    line = good.count("\n") + 2
    with pytest.raises(BadValueError, match=f":{line}: .*{what}"):
        load_trace(path, trace_format)


def test_an_unknown_format_and_an_unreadable_file_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(BadValueError, match="--trace-format"):
        load_trace(_file(tmp_path, "a,b\n1,2\n"))
    with pytest.raises(BadValueError, match="use one of azure, mooncake, jsonl"):
        load_trace(_file(tmp_path, AZURE), "csv")
    with pytest.raises(BadValueError, match="No such file"):
        load_trace(tmp_path / "absent")
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadValueError, match="UTF-8"):
        load_trace(binary)


def test_an_azure_file_without_a_needed_column_names_it(tmp_path: Path) -> None:
    with pytest.raises(BadValueError, match=":1: no column GeneratedTokens"):
        load_trace(_file(tmp_path, "TIMESTAMP,ContextTokens\n"), "azure")


def test_rows_out_of_order_are_sorted_before_the_first_ones_are_taken() -> None:
    requests = [_request(9), _request(5), _request(7)]
    shaped = apply_options(requests, TraceOptions(max_requests=2, rate_scale=2))
    assert [one.arrival_ns for one in shaped] == [0, 1]


def test_declared_max_tokens_cuts_answers_that_are_longer() -> None:
    short, long = apply_options([_request(output=5), _request(output=50)], TraceOptions(max_tokens=20))
    assert (short.max_new_tokens, short.output_tokens) == (20, 5)
    assert (long.max_new_tokens, long.output_tokens) == (20, 20)


def test_a_window_scales_all_lengths_by_one_factor() -> None:
    shaped = apply_options([_request(prompt=900, output=100), _request(prompt=90, output=10)], TraceOptions(window=100))
    assert [(one.prompt_tokens, one.output_tokens) for one in shaped] == [(90, 10), (9, 1)]


def test_a_window_larger_than_the_longest_request_changes_nothing() -> None:
    requests = [_request(prompt=900, output=100)]
    assert apply_options(requests, TraceOptions(window=5000)) == requests


def test_spreading_keeps_order_count_and_bins() -> None:
    stamps = [0, 0, 0, 3_000, 3_000, 9_000]
    options = TraceOptions(spread_s=3e-6, seed=4)  # 3,000 ns
    spread = [one.arrival_ns for one in apply_options([_request(at) for at in stamps], options)]
    assert spread == sorted(spread)
    assert all(stamp <= at < stamp + 3_000 for stamp, at in zip(stamps, spread, strict=True))
    assert len(set(spread)) > 3
    assert spread == [one.arrival_ns for one in apply_options([_request(at) for at in stamps], options)]


@given(
    lengths=st.lists(st.tuples(st.integers(1, 200_000), st.integers(1, 5_000), st.integers(0, 5_000)), min_size=1),
    window=st.integers(2, 4096),
    max_tokens=st.none() | st.integers(1, 2048),
    length_scale=st.none() | st.floats(0.001, 10),
)
def test_every_request_fits_the_window(
    lengths: list[tuple[int, int, int]], window: int, max_tokens: int | None, length_scale: float | None
) -> None:
    if max_tokens is not None and max_tokens >= window:
        with pytest.raises(BadValueError, match="no room for a prompt"):
            TraceOptions(window=window, max_tokens=max_tokens)
        return
    options = TraceOptions(window=window, max_tokens=max_tokens, length_scale=length_scale)
    requests = [_request(prompt=p, output=o, declared=o + more) for p, o, more in lengths]
    for one in apply_options(requests, options):
        assert one.prompt_tokens + one.max_new_tokens <= window
        assert 1 <= one.output_tokens <= one.max_new_tokens
        assert one.prompt_tokens >= 1
        assert max_tokens is None or one.max_new_tokens == max_tokens


@pytest.mark.parametrize(
    "values",
    [
        {"rate_scale": 0.0},
        {"rate_scale": float("nan")},
        {"max_requests": 0},
        {"max_tokens": 0},
        {"window": 1},
        {"spread_s": -1.0},
        {"length_scale": float("inf")},
    ],
)
def test_options_that_make_no_load_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(BadValueError):
        TraceOptions(**values)  # type: ignore[arg-type]


def test_what_a_client_declared_is_told_from_what_the_answer_took(tmp_path: Path) -> None:
    rows = [
        {"arrival_s": 0, "prompt_tokens": 8, "output_tokens": 3, "max_tokens": 3},
        {"arrival_s": 1, "prompt_tokens": 8, "output_tokens": 3},
        {"arrival_s": 2, "prompt_tokens": 8, "output_tokens": 3, "max_tokens": None},
    ]
    path = _file(tmp_path, "\n".join(map(json.dumps, rows)))
    assert [one.declared for one in load_trace(path)] == [True, False, False]
    assert all(one.declared for one in load_trace(path, options=TraceOptions(max_tokens=50)))
    assert not load_trace(_file(tmp_path, AZURE))[0].declared


def test_our_own_rows_carry_a_priority_that_is_a_whole_number(tmp_path: Path) -> None:
    row = {"arrival_s": 0, "prompt_tokens": 8, "output_tokens": 3, "priority": -2}
    (only,) = load_trace(_file(tmp_path, json.dumps(row)))
    assert only.priority == -2
    for wrong in (1.5, "1", True, 10**10):
        with pytest.raises(BadValueError, match=r":1: priority .* is not a whole number"):
            load_trace(_file(tmp_path, json.dumps({**row, "priority": wrong})))


@pytest.mark.parametrize("name", ["a", "a.b-c_D9", "x" * 64, "x" * 65, "chat team", "\u00e4", "a/b", ""])
def test_a_load_has_the_tenants_that_the_gate_takes(tmp_path: Path, name: str) -> None:
    row = {"arrival_s": 0, "prompt_tokens": 8, "output_tokens": 3, "tenant": name}
    path = _file(tmp_path, json.dumps(row))
    try:
        Identities("r").read([(b"x-kvbudget-tenant", name.encode())], b"r-1")
    except BadRequestError:
        with pytest.raises(BadValueError, match=r":1: tenant .*; use 1 to 64 letters"):
            load_trace(path)
    else:
        assert load_trace(path)[0].tenant == name


def test_a_log_of_requests_may_have_fields_that_a_load_has_not() -> None:
    row = {"arrival_s": 0, "prompt_tokens": 8, "output_tokens": 3, "model": "m", "tenant": "chat team"}
    (only,) = parse_trace([json.dumps(row)], "jsonl", "log")
    assert only.prompt_tokens == 8


def test_mooncakes_three_second_bins_are_spread_over_their_whole_width(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 3000 * (number // 50), "input_length": 5, "output_length": 1, "hash_ids": []}
        for number in range(500)
    ]
    path = _file(tmp_path, "\n".join(map(json.dumps, rows)))
    arrivals = [one.arrival_ns for one in load_trace(path, "mooncake", TraceOptions(spread_s=3.0, seed=1))]
    assert arrivals == sorted(arrivals)
    assert [arrival // 3_000_000_000 for arrival in arrivals] == [number // 50 for number in range(500)]
    gaps = [later - earlier for earlier, later in pairwise(arrivals)]
    assert max(gaps) < 1_000_000_000  # no pause of three seconds is left
    assert arrivals != [one.arrival_ns for one in load_trace(path, "mooncake", TraceOptions(spread_s=3.0, seed=2))]
