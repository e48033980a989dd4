"""Lengths from files: the form is told from the first lines, damage is named."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvbudget.edge.lengths.read import FORMATS, read_workload
from kvbudget.errors import BadValueError


def file(folder: Path, text: str) -> Path:
    path = folder / "lengths"
    path.write_text(text)
    return path


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6,374,44\n2023-11-16 18:15:50.6,396,109\n"
MOONCAKE = '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}\n' * 2
OWN = (
    '{"arrival_s": 1, "prompt_tokens": 7, "output_tokens": 3}\n'
    + '{"arrival_s": 3, "prompt_tokens": 8, "output_tokens": 4}\n'
)
USAGE = '{"created": 17, "usage": {"prompt_tokens": 7, "completion_tokens": 3}}\n'
VLLM = (
    "DEBUG 11-29 20:00:00 [request_logger.py:50] Request cmpl-1 details: prompt: 'a', prompt_token_ids: [1, 2, 3], "
    "prompt_embeds shape: None.\n"
    "DEBUG 11-29 20:00:01 [request_logger.py:100] Generated response cmpl-1 (streaming complete) details: "
    "output_token_ids: [5, 6]\n"
)
HISTOGRAM = (
    'vllm:request_prompt_tokens_bucket{engine="0",le="100.0"} 10.0\n'
    'vllm:request_prompt_tokens_bucket{engine="0",le="+Inf"} 10.0\n'
    'vllm:request_generation_tokens_bucket{engine="0",le="20.0"} 10.0\n'
    'vllm:request_generation_tokens_bucket{engine="0",le="+Inf"} 10.0\n'
)


@pytest.mark.parametrize(
    ("text", "form", "requests"),
    [
        (AZURE, "azure", ((374, 44), (396, 109))),
        (MOONCAKE, "mooncake", ((600, 5), (600, 5))),
        (OWN, "jsonl", ((7, 3), (8, 4))),
        (USAGE, "usage", ((7, 3),)),
        ("prompt_tokens,completion_tokens\n7,3\n", "csv", ((7, 3),)),
        (VLLM, "vllm", ((3, 2),)),
    ],
)
def test_every_form_is_told_from_its_first_lines(
    tmp_path: Path, text: str, form: str, requests: tuple[tuple[int, int], ...]
) -> None:
    path = file(tmp_path, text)
    assert read_workload(path).requests == requests
    assert read_workload(path, form) == read_workload(path)


def test_a_row_without_any_token_is_no_request(tmp_path: Path) -> None:
    lines = AZURE.splitlines()
    rows = "\n".join([*lines, lines[1].replace("374,44", "0,0"), lines[1].replace("374,44", "0,9")])
    assert read_workload(file(tmp_path, rows)).requests == ((374, 44), (1, 9), (396, 109))
    assert read_workload(file(tmp_path, "prompt_tokens,completion_tokens\n0,0\n5,0\n")).requests == ((5, 1),)
    usage = '{"prompt_tokens": 0, "completion_tokens": 0}\n' + '{"prompt_tokens": 7, "completion_tokens": 2}\n' * 2
    assert read_workload(file(tmp_path, usage)).requests == ((7, 2), (7, 2))
    with pytest.raises(BadValueError):
        read_workload(file(tmp_path, lines[0] + "\n" + lines[1].replace("374,44", "0,0") + "\n"))


def test_a_saved_metrics_page_is_a_histogram(tmp_path: Path) -> None:
    found = read_workload(file(tmp_path, "# HELP x y\n" + HISTOGRAM))
    assert (found.source, len(found.requests)) == ("histogram", 1000)


def test_times_and_hashes_come_along(tmp_path: Path) -> None:
    assert read_workload(file(tmp_path, OWN)).arrivals_s == (0.0, 2.0)
    assert read_workload(file(tmp_path, OWN)).arrivals_per_s == 0.5
    assert read_workload(file(tmp_path, MOONCAKE)).hash_ids == ((0, 1), (0, 1))
    assert read_workload(file(tmp_path, AZURE)).hash_ids == ()


@pytest.mark.parametrize("text", ["", "\n\n", "hello\n", "a,b\n1,2\n"])
def test_a_file_of_no_known_form_is_refused_with_the_forms(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadValueError) as caught:
        read_workload(file(tmp_path, text))
    assert all(form in caught.value.fix for form in FORMATS)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(BadValueError):
            read_workload(path)


def test_an_unknown_form_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadValueError, match="not known"):
        read_workload(file(tmp_path, OWN), "parquet")


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.sampled_from([AZURE, MOONCAKE, OWN, USAGE, VLLM, HISTOGRAM]), st.data())
def test_damage_is_a_clear_error_or_still_lengths(tmp_path: Path, text: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(text)))
    put = data.draw(st.sampled_from(["", "\x00", "}", "[", "9" * 30, "NaN", "-1", '"', "\n", "é", "1e999"]))
    path = tmp_path / "lengths"
    path.write_bytes((text[:at] + put + text[at + data.draw(st.integers(0, 5)) :]).encode())
    try:
        found = read_workload(path)
    except BadValueError as error:
        assert error.message  # noqa: PT017
    else:
        assert all(prompt >= 1 and output >= 1 for prompt, output in found.requests)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "lengths"
    path.write_bytes(json.dumps({"prompt_tokens": 1, "output_tokens": 1}).encode() + b"\n\xff\xfe\n")
    with pytest.raises(BadValueError, match="UTF-8"):
        read_workload(path)


def test_a_table_may_begin_with_a_comment(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("# exported\nprompt_tokens,completion_tokens\n5,6\n")
    assert read_workload(path).requests == ((5, 6),)
    path.write_text("# exported\nnothing,known\n5,6\n")
    with pytest.raises(BadValueError, match="none of the known forms"):
        read_workload(path)
