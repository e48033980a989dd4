"""What logs of engines that serve tell. The lines have the engines' wordings, the figures are made up."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbudget.engines.logs.periodic.read import observation_of_log
from kvbudget.engines.window import EngineWindow
from kvbudget.errors import InputError, UnsupportedError


def only(text: str, window_s: float = 600.0) -> EngineWindow:
    (window,) = observation_of_log(text, window_s).engines
    return window


def v1(
    at: str, running: int, waiting: int, usage: float, more: str = "", prompt: float = 100.0, engine: str = "000"
) -> str:
    return (
        f"(APIServer pid=1) INFO 03-19 {at} [loggers.py:259] Engine {engine}: Avg prompt throughput: {prompt} "
        f"tokens/s, "
        f"Avg generation throughput: 20.5 tokens/s, Running: {running} reqs, Waiting: {waiting} reqs, {more}"
        f"GPU KV cache usage: {usage}%, Prefix cache hit rate: 24.0%\n"
    )


START = """\
INFO 03-19 07:00:00 [core.py:93] Initializing a V1 LLM engine (v0.32.0) with config: model='m', dtype=bfloat16
INFO 03-19 07:00:01 [utils.py:326] non-default args: {'model': 'm', 'max_model_len': 1024, 'max_num_seqs': 12, \
'max_num_batched_tokens': 2048, 'block_size': 32}
INFO 03-19 07:00:09 [kv_cache_utils.py:849] GPU KV cache size: 2,080 tokens
INFO 03-19 07:00:09 [kv_cache_utils.py:853] Maximum concurrency for 1,024 tokens per request: 2.03x
"""


def test_vllm_s_lines_give_looks_and_what_was_computed_between_them() -> None:
    text = (
        START
        + v1("07:08:57", 4, 0, 64.6)
        + v1("07:09:07", 5, 3, 97.0, "Deferred: 1 reqs, Preemptions: 7, ")
        + v1("07:09:17", 4, 2, 99.5)
    )
    window = only(text)
    assert (window.engine, window.version, window.model, window.window_s) == ("vllm", "0.32.0", "m", 20.0)
    assert [(look.at_s, look.usage, look.running, look.waiting, look.deferred) for look in window.looks] == [
        (0.0, 0.646, 4, 0, None), (10.0, 0.97, 5, 3, 1), (20.0, pytest.approx(0.995), 4, 2, None),
    ]  # fmt: skip
    counts = window.counts
    assert (counts.prompt_tokens, counts.generation_tokens, counts.preemptions) == (2000, 410, 7)
    assert window.extra["prefix_hit_rate"] == 0.24
    limits = window.limits
    assert (limits.max_num_seqs, limits.max_num_batched_tokens, limits.max_model_len) == (12, 2048, 1024)
    assert limits.pool is not None
    assert limits.pool.tokens == 2080


def test_only_the_last_part_of_a_long_log_is_the_window() -> None:
    text = "".join(v1(f"0{hour}:00:0{second}", hour, 0, 10.0) for hour in range(1, 5) for second in (0, 5))
    window = only(text, 60.0)
    assert (window.window_s, len(window.looks), window.last.running) == (5.0, 2, 4)


def test_vllm_of_before_has_pending_and_swapped_requests() -> None:
    line = (
        "INFO 01-27 19:04:{:02} metrics.py:467] Avg prompt throughput: 0.9 tokens/s, Avg generation throughput: 7220.5 "
        "tokens/s, Running: 2 reqs, Swapped: {} reqs, Pending: 98 reqs, GPU KV cache usage: 86.1%, CPU KV cache "
        "usage: 3.0%.\n"
    )
    warning = (
        "WARNING 01-27 19:04:12 scheduler.py:1754] Sequence group cmpl-1 is preempted by PreemptionMode.SWAP "
        "mode because "
        "there is not enough KV cache space. total_num_cumulative_preemption={}\n"
    )
    text = "INFO 01-27 19:00:00 gpu_executor.py:122] # GPU blocks: 1000, # CPU blocks: 500\n"
    text += line.format(7, 0) + warning.format(51) + line.format(12, 3) + warning.format(101) + line.format(17, 4)
    window = only(text)
    assert (window.last.usage, window.last.running, window.last.waiting, window.last.swapped) == (0.861, 2, 98, 4)
    assert window.counts.preemptions == 101
    assert window.limits.pool is not None
    assert window.limits.pool.num_blocks == 1000


def test_data_parallel_engines_of_one_log_are_one_window_each() -> None:
    text = "".join(
        v1(f"07:08:{second}", 4 + engine, 0, 50.0, engine=f"00{engine}") for second in (10, 20) for engine in (0, 1)
    )
    observation = observation_of_log(text)
    assert [(window.where, window.last.running) for window in observation.engines] == [("engine=0", 4), ("engine=1", 5)]


def test_a_log_without_time_stamps_is_read_at_the_usual_pace_and_says_so() -> None:
    bare = [
        line.partition("] ")[2] + "\n" for line in (v1("07:08:57", 1, 0, 1.0) + v1("07:09:07", 1, 0, 1.0)).splitlines()
    ]
    window = only("".join(bare))
    assert (window.window_s, window.counts.prompt_tokens) == (10, 1000)
    assert any("time stamps" in note for note in window.notes)


def test_one_line_tells_of_the_time_before_it() -> None:
    window = only(v1("07:08:57", 1, 0, 1.0))
    assert (window.window_s, window.counts.prompt_tokens, window.counts.preemptions) == (10, 1000, None)
    assert any("preemptions" in line for line in window.missing)


def test_new_year_is_no_jump_back() -> None:
    text = v1("23:59:55", 1, 0, 1.0).replace("03-19", "12-31") + v1("00:00:05", 2, 0, 1.0).replace("03-19", "01-01")
    window = only(text)
    assert (window.window_s, len(window.looks)) == (10, 2)


def test_a_clock_that_was_set_back_ends_the_window() -> None:
    window = only(v1("07:08:57", 1, 0, 1.0) + v1("06:00:00", 2, 0, 1.0) + v1("06:00:10", 3, 0, 1.0))
    assert (window.window_s, [look.running for look in window.looks]) == (10, [2, 3])


def test_answers_in_the_access_log_are_counted_between_the_lines() -> None:
    ok, busy, broken = (f'INFO:     172.17.0.1:1 - "POST /v1/chat/completions HTTP/1.1" {status}\n' for status in (
        "200 OK", "429 Too Many Requests", "500 Internal Server Error"))  # fmt: skip
    counts = only(v1("07:08:57", 1, 0, 1.0) + ok + ok + busy + broken + v1("07:09:07", 1, 0, 1.0)).counts
    assert (counts.finished, counts.rejected, counts.failed) == ({"any": 2}, {"http_429": 1}, 1)


def test_colours_and_json_envelopes_do_not_matter() -> None:
    import json

    plain = v1("07:08:57", 4, 0, 64.6) + v1("07:09:07", 5, 3, 97.0)
    wrapped = "".join(
        json.dumps({"log": f"\x1b[36m{line}\x1b[0m\n", "stream": "stderr"}) + "\n" for line in plain.splitlines()
    )
    assert only(wrapped).looks == only(plain).looks


def decode(at: int, rank: str, running: int, queue: int, usage: float, kinds: str = "") -> str:
    return (
        f"[2026-09-13 16:06:{at:02}{rank}] Decode batch, #running-req: {running}, "
        f"{kinds or f'#token: 82002, token usage: {usage}, '}"
        f"cuda graph: False, gen throughput (token/s): 2600.0, #queue-req: {queue}\n"
    )


def test_sglang_s_batches_and_retractions_are_counted() -> None:
    text = (
        decode(5, " TP0", 66, 10, 0.94)
        + decode(5, " TP1", 66, 10, 0.94)
        + "[2026-09-13 16:06:06 TP0] Prefill batch, #new-seq: 1, #new-token: 115, #cached-token: 385, token "
        "usage: 0.95, "
        "#running-req: 66, #queue-req: 9,\n"
        "[2026-09-13 16:06:07 TP0] KV cache pool is full. Retract requests. #retracted_reqs: 2, "
        "#new_token_ratio: 0.0980 -> 0.3487\n" + decode(7, " TP0", 64, 13, 1.0)
    )
    window = only(text)
    assert (window.engine, window.window_s, window.where) == ("sglang", 2, "")
    assert [(look.usage, look.running, look.waiting) for look in window.looks] == [
        (0.94, 66, 10),
        (0.95, 66, 9),
        (1.0, 64, 13),
    ]
    counts = window.counts
    assert (counts.preemptions, counts.prefix_queries, counts.prefix_hits, counts.generation_tokens) == (
        2,
        500,
        385,
        2600,
    )
    assert window.extra["new_token_ratio"] == 0.3487


def test_sglang_s_first_wording_and_its_sub_pools_are_read() -> None:
    old = (
        "[2024-11-30 05:10:04] Decode batch. #running-req: 1, #token: 234, token usage: 0.25, gen throughput "
        "(token/s): 147.64, #queue-req: 0\n"
    )
    assert only(old).last.usage == 0.25
    kinds = "#full token: 1112, full token usage: 0.06, #swa token: 900, swa token usage: 1.00, "
    window = only(decode(5, "", 3, 4, 0.0, kinds))
    assert (window.last.usage, window.last.usage_by_kind) == (1.0, {"full": 0.06, "sliding": 1.0})
    both = decode(5, " DP0 TP0", 3, 4, 0.5) + decode(5, " DP1 TP0", 1, 0, 0.1)
    assert [window.where for window in observation_of_log(both).engines] == ["dp_rank=0", "dp_rank=1"]


def test_llamacpp_s_slots_and_lines_without_room_are_counted() -> None:
    text = (
        "0.02.870.465 I srv    load_model: initializing, n_slots = 4, n_ctx_slot = 131072, kv_unified = 'true'\n"
        "0.58.345.135 I slot launch_slot_: id  0 | task 0 | processing task, is_child = 0\n"
        "0.59.345.135 I slot launch_slot_: id  1 | task 3 | processing task, is_child = 0\n"
        "1.00.000.000 W srv  update_slots: failed to find free space in the KV cache, retrying with smaller "
        "batch size, "
        "i = 0, n_batch = 1024, ret = 1\n"
        "1.00.013.207 I slot print_timing: id  0 | task 0 | prompt eval time =    1668.05 ms /  3553 tokens "
        "(0.47 ms per token)\n"
        "1.00.013.209 I slot print_timing: id  0 | task 0 |        eval time =       9.00 ms /    40 tokens "
        "(1.00 ms per token)\n"
        "1.00.345.135 I slot      release: id  0 | task 0 | stop processing: n_tokens = 3593, truncated = 0\n"
        "1.00.345.200 I srv  log_server_r: done request: POST /v1/chat/completions 127.0.0.1 500\n"
    )
    window = only(text)
    assert (window.engine, [look.running for look in window.looks], window.window_s) == ("llamacpp", [1, 2, 2, 1], 2.0)
    assert (window.counts.prompt_tokens, window.counts.generation_tokens, window.counts.failed) == (3553, 40, 1)
    assert (window.extra["no_room"], window.extra["longest_tokens"]) == (1, 3593)
    assert window.limits.max_model_len == 131072


def test_a_text_of_no_engine_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="while it serves"):
        observation_of_log("hello\n" * 10, source="notes.txt")


def test_a_log_of_the_start_alone_tells_the_limits() -> None:
    window = only(START)
    assert (window.limits.max_num_seqs, window.last.running, window.window_s) == (12, None, None)
    assert any("before the engine serves" in line for line in window.missing)


def test_a_huge_line_of_digits_takes_no_time() -> None:
    with pytest.raises(UnsupportedError):
        observation_of_log(("Running: KV cache usage: Decode batch eval time = " + "1" * 60_000 + "\n") * 50)


def test_lines_without_room_alone_are_a_log_too() -> None:
    warning = "srv  update_slots: failed to find free space in the KV cache, retrying with smaller batch size, i = {}\n"
    window = only("".join(warning.format(1024 >> at) for at in range(3)))
    assert (window.engine, window.last.running, window.extra["no_room"]) == ("llamacpp", None, 2)


PIECES = (
    "INFO 03-19 07:08:57 [loggers.py:259] Engine 000: ", "Running: 4 reqs, ", "Waiting: 99999999999999 reqs, ",
    "1 reqs",
    "GPU KV cache usage: 64.6%", "CPU KV cache usage: 300.0%", "Preemptions: 7", "is preempted by ", "Decode batch",
    " ",
    "[2026-09-13 16:06:05 DP1 TP0] ", "#running-req: 3, ", "#queue-req: 4", "token usage: 7.5, ", "#retracted_reqs: 1",
    "slot launch_slot_: id  0 | task 0 | processing task", "failed to find free space", "\n", "\n", "\x1b[31m",
    '{"log": "',
    "12-31 23:59:59", "00-00 99:99:99", "HTTP/1.1", '"POST /v1 HTTP/1.1" 500', "swa token usage: 1.00, ",
    "prompt throughput: 1.0 tokens/s",
)  # fmt: skip


@settings(deadline=None, max_examples=300)
@given(st.lists(st.sampled_from(PIECES), max_size=60).map("".join), st.floats(0, 1e9))
def test_no_log_raises_anything_but_an_error_of_input(text: str, window_s: float) -> None:
    try:
        observation = observation_of_log(text, window_s)
    except InputError:
        return
    for window in observation.engines:
        assert all(look.usage is None or 0 <= look.usage <= 1 for look in window.looks)
        assert window.window_s is None or window.window_s >= 0
