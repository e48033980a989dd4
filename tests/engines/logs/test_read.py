"""Which engine wrote a text; and that no text does harm."""

import re
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbudget.engines.logs import llamacpp, sglang, tgi, trtllm, vllm
from kvbudget.engines.logs.read import looks_like_metrics, receipt_of_log, receipt_of_text
from kvbudget.engines.logs.receipt import receipt_document, receipt_from
from kvbudget.errors import InputError, UnsupportedError

PIECES = (
    "GPU KV cache size: ", "1,952", " tokens", "Available KV cache memory: ", "3.81", " GiB", "GB", "# GPU blocks: ",
    "Maximum concurrency for ", " tokens per request: ", "x", "non-default args: {'max_model_len': ", "}", "\x1b[31m",
    "KV Cache is allocated. #tokens: ", "K size: ", "llama_kv_cache: size = ", " MiB ( ", " cells, ", '{"message": "',
    '"}', "Setting max batch total tokens to ", "[MemUsageChange] Allocated ", " for max tokens in paged KV cache (",
    ")", "-", "9" * 40, "To serve at least one request with the model", 'vllm:cache_config_info{block_size="', '"',
    "(Worker_TP0 pid=1) ", "\r", "\n", "\ud800",
)  # fmt: skip


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=40).map("".join))
def test_no_text_raises_anything_but_an_error_of_input(text: str) -> None:
    try:
        receipt = receipt_of_text(text)
    except InputError:
        return
    assert receipt.sized
    assert receipt_from(receipt_document(receipt))._replace(told=()) == receipt._replace(told=())


@pytest.mark.parametrize("piece", ["1", "(Worker", "{", "x", " ", "K size: 1", "n_ctx ", "'a': ["])
def test_a_hostile_line_costs_no_more_than_its_length(piece: str) -> None:
    # 65,536 characters: squared, this would take minutes, and the time-out of the test would tell.
    with pytest.raises(UnsupportedError):
        receipt_of_log(piece * (65536 // len(piece)))


def test_a_log_of_no_engine_is_refused_with_what_is_known() -> None:
    with pytest.raises(UnsupportedError, match="nothing of a KV cache pool") as caught:
        receipt_of_log("Starting nginx\nlistening on 80\n")
    assert "vllm" in caught.value.fix


def test_an_engine_can_be_named_and_an_unknown_one_is_refused() -> None:
    log = "KV Cache is allocated. #tokens: 10, K size: 1.00 GB, V size: 1.00 GB\n"
    assert receipt_of_log(log, "sglang").tokens == 10
    with pytest.raises(UnsupportedError, match="is not known"):
        receipt_of_log(log, "lmdeploy")


def test_metrics_are_told_from_logs() -> None:
    assert looks_like_metrics('# HELP x y\nvllm:cache_config_info{block_size="16",num_gpu_blocks="9"} 1\n')
    assert looks_like_metrics("tgi_batch_max_total_tokens 5\n")
    assert not looks_like_metrics("INFO # GPU blocks: 1952\n")


# Patterns for parts of lines that were found already, and versions and builds at odd places.
WITHIN_OTHERS = {"_ARGUMENT", "_PARTS", "_CONFIG_FLAG", "_LIMITS", "_VERSION", "_BUILD", "_CONTEXT"}


def patterns_of(value: object) -> list[re.Pattern[str]]:
    if isinstance(value, re.Pattern):
        return [value]
    return [found for part in value for found in patterns_of(part)] if isinstance(value, tuple) else []


@pytest.mark.parametrize("reader", [vllm, sglang, tgi, llamacpp, trtllm])
def test_no_line_that_a_pattern_matches_is_left_out_for_want_of_a_hint(reader: ModuleType) -> None:
    found = [pattern for name in vars(reader).keys() - WITHIN_OTHERS for pattern in patterns_of(vars(reader)[name])]
    exact = [pattern for pattern in found if not pattern.flags & re.IGNORECASE]

    @settings(max_examples=200, database=None)
    @given(st.one_of([st.from_regex(pattern) for pattern in exact]))
    def every_match_holds_a_hint(line: str) -> None:
        assert any(hint in line for hint in reader.HINTS)

    if exact:
        every_match_holds_a_hint()
    assert all(any(hint in mark for hint in reader.HINTS) for mark in (*reader._REFUSALS, *reader.STARTS))
