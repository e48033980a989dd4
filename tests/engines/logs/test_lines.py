"""What is taken off lines before they are read."""

import json

from kvbudget.engines.logs.lines import lines_of


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
