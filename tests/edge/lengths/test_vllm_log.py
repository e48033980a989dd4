"""vLLM logs: ids are counted, a prompt's own text cannot lie."""

import pytest

from kvbudget.edge.lengths.vllm_log import requests_from_log
from kvbudget.errors import BadValueError

RECEIVED = (
    "INFO 11-29 [request_logger.py:66] Received request {0}: params: SamplingParams(n=1, max_tokens={1}, "
    "min_tokens=0), lora_request: None.\n"
)
DETAILS = (
    "DEBUG 11-29 [request_logger.py:55] Request {0} details: prompt: {1!r}, prompt_token_ids: [{2}], "
    "prompt_embeds shape: None.\n"
)
GENERATED = "DEBUG 11-29 [request_logger.py:102] Generated response {0}{1} details: output_token_ids: [{2}]\n"


def test_prompt_and_output_ids_of_one_request_are_paired_by_its_name() -> None:
    log = [
        DETAILS.format("a", "x", "1, 2"), DETAILS.format("b", "x", "1, 2, 3, 4"),
        GENERATED.format("b", "", "7"), GENERATED.format("a", " (streaming complete)", "7, 8, 9"),
    ]  # fmt: skip
    assert requests_from_log(log, "f").requests == ((2, 3), (4, 1))


def test_without_outputs_what_the_client_may_use_is_taken() -> None:
    log = [DETAILS.format("a", "x", "1, 2"), RECEIVED.format("a", 256), RECEIVED.format("b", 16)]
    assert requests_from_log(log, "f").requests == ((2, 256),)


def test_deltas_of_a_stream_add_up() -> None:
    log = [DETAILS.format("a", "x", "1"), *[GENERATED.format("a", " (streaming delta)", "7")] * 5]
    assert requests_from_log(log, "f").requests == ((1, 5),)


def test_older_logs_have_all_in_one_line() -> None:
    line = "INFO Received request cmpl-1: prompt: 'hi', params: SamplingParams(n=1, max_tokens=64, x=1), prompt_token_ids: [1, 5, 9], lora_request: None.\n"  # noqa: E501
    assert requests_from_log([line], "f").requests == ((3, 64),)


def test_a_prompt_that_looks_like_ids_is_not_counted() -> None:
    log = [DETAILS.format("a", "prompt_token_ids: [1,1,1,1,1,1]", "1, 2"), GENERATED.format("a", "", "7")]
    assert requests_from_log(log, "f").requests == ((2, 1),)


def test_a_log_at_info_says_how_to_get_the_lengths() -> None:
    with pytest.raises(BadValueError, match="without their prompts") as caught:
        requests_from_log([RECEIVED.format("a", 16)], "f")
    assert "VLLM_LOGGING_LEVEL=DEBUG" in caught.value.fix
    with pytest.raises(BadValueError, match="no request's output"):
        requests_from_log([DETAILS.format("a", "x", "1, 2")], "f")


def test_a_line_that_lost_its_beginning_is_left_out() -> None:
    log = [DETAILS.format("a", "x", "1, 2"), GENERATED.format("a", "", "7"), " details: prompt: 'x'\n", "Request \n"]
    assert requests_from_log(log, "f").requests == ((2, 1),)
