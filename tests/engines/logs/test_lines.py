"""What is taken off lines before they are read."""

import json

import pytest

from kvbudget.engines.logs.lines import MAX_LINES, MAX_STARTS, MAX_TELLING_LINES, lines_of
from kvbudget.errors import BadValueError


def test_json_in_json_in_json_is_unwrapped_to_the_engines_own_line() -> None:
    engine = json.dumps({"message": "GPU KV cache size: 1 tokens"})
    runtime = json.dumps({"log": engine + "\n", "stream": "stderr"})
    assert [line.text for line in lines_of(json.dumps({"textPayload": runtime}))] == ["GPU KV cache size: 1 tokens"]


def test_a_truncated_json_line_is_searched_as_it_stands() -> None:
    assert [line.text for line in lines_of('{"message": "GPU KV cache size: 1 tok')] == [
        '{"message": "GPU KV cache size: 1 tok'
    ]


def test_progress_bars_that_redraw_a_line_become_lines() -> None:
    drawn = "Loading: 50%\rLoading: 100%\rModel loading took 1 GiB"
    assert [line.text for line in lines_of(drawn)] == ["Loading: 50%", "Loading: 100%", "Model loading took 1 GiB"]
    assert {line.number for line in lines_of(drawn)} == {1}


def test_the_rank_is_read_from_every_engines_prefix() -> None:
    text = (
        "(Worker_TP0 pid=1) a\n(VllmWorkerProcess pid=507) b\n(RayWorkerWrapper pid=9, ip=10.0.0.1) c\n"
        "[2025-03-08 12:29:21 TP1] d\n[2026-01-30 20:54:50 PP1 TP0] e\n[RANK 3] f\nno rank (pid unknown) g\n"
    )
    ranks = [line.rank for line in lines_of(text)]
    assert ranks == [
        "Worker_TP0 pid=1",
        "VllmWorkerProcess pid=507",
        "RayWorkerWrapper pid=9, ip=10.0.0.1",
        "TP1",
        "PP1 TP0",
        "3",
        "",
    ]


def test_empty_lines_are_left_out_and_numbers_stay() -> None:
    assert [line.number for line in lines_of("\n\na\n \nb")] == [3, 5]


def test_only_lines_with_a_hint_are_kept_and_some_with_a_sign() -> None:
    text = "KV cache size: 1\nGET /v1/models\n" + "sglang router\n" * 1000 + "\x1b[1mKV\x1b[0m cache size: 2\n"
    found = lines_of(text, ("KV cache size",), ("sglang",))
    assert [found[0].number, found[-1].number] == [1, 1003]
    assert 1 < len(found) < 500


def test_of_very_many_starts_only_the_last_are_read() -> None:
    text = "".join(f"non-default args: {number}\nKV cache size: {number}\n" for number in range(1000))
    found = lines_of(text, ("non-default args:", "KV cache size"), (), ("non-default args:",))
    assert found[0].text == f"non-default args: {1000 - MAX_STARTS}"
    assert found[-1].text == "KV cache size: 999"


@pytest.mark.parametrize("text", ["\n" * (MAX_LINES + 1), "KV cache size: 1\n" * (MAX_TELLING_LINES + 1)])
def test_a_log_that_would_take_long_is_refused_with_what_to_do(text: str) -> None:
    with pytest.raises(BadValueError, match="give the part from where the engine was started"):
        lines_of(text, ("KV cache size",))
