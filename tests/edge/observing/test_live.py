"""Running engines: several scrapes within a window, and what stands on other pages of the same port."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from kvbudget.edge.observing.observe import Observer
from kvbudget.errors import InputError

if TYPE_CHECKING:
    from tests.edge.observing.conftest import Clock, Pages


def vllm(preemptions: int, usage: float = 0.5) -> str:
    return (
        f'vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} {usage}\n'
        f'vllm:num_requests_running{{engine="0",model_name="m"}} 3\n'
        f'vllm:num_preemptions_total{{engine="0",model_name="m"}} {preemptions}\n'
    )


def observer(sources: Sequence[str], clock: "Clock", window_s: float | None = 10.0, **environment: str) -> Observer:
    return Observer(sources, window_s, environment, clock=clock, sleep=clock.sleep)


def test_an_engine_is_looked_at_several_times_within_the_window(pages: "Pages", clock: "Clock") -> None:
    pages.answers["/metrics"] = lambda _: vllm(int(clock.now_s - 1000), (clock.now_s - 1000) / 20)
    pages.answers["/version"] = lambda _: {"version": "0.32.0"}
    observation = observer([pages.url], clock).observe()
    (window,) = observation.engines
    assert [(look.at_s, look.usage) for look in window.looks] == [
        (0, 0),
        (2, 0.1),
        (4, 0.2),
        (6, 0.3),
        (8, 0.4),
        (10, 0.5),
    ]
    assert (window.window_s, window.counts.preemptions, window.version, window.where) == (10, 10, "0.32.0", "")
    assert observation.sources == (pages.url,)
    assert observation.problems == ()


def test_a_scrape_that_takes_long_is_not_made_more_often_than_needed(pages: "Pages", clock: "Clock") -> None:
    def slow(_: dict[str, str]) -> str:
        clock.now_s += 0.5
        return vllm(1)

    pages.answers["/metrics"] = slow
    (window,) = observer([f"{pages.url}/metrics"], clock).observe().engines
    assert len(window.looks) == 3


def test_who_watches_gets_windows_without_gaps(pages: "Pages", clock: "Clock") -> None:
    pages.answers["/metrics"] = lambda _: vllm(int(clock.now_s))
    watch = observer([f"{pages.url}/metrics"], clock)
    windows = [watch.observe().engines[0]]
    clock.now_s += 3
    windows.append(watch.observe().engines[0])
    clock.now_s += 30
    windows.append(watch.observe().engines[0])
    assert [(window.window_s, window.counts.preemptions) for window in windows] == [(10, 10), (10, 10), (30, 30)]
    at_once = observer([f"{pages.url}/metrics"], clock, 0.0)
    assert at_once.observe().engines[0].since_start
    clock.now_s += 7
    (window,) = at_once.observe().engines
    assert (window.since_start, window.window_s, window.counts.preemptions) == (False, 7, 7)


def test_an_engine_that_goes_away_within_the_window_is_told_as_far_as_it_was_seen(
    pages: "Pages", clock: "Clock"
) -> None:
    pages.answers["/metrics"] = lambda _: vllm(5) if clock.now_s < 1003 else 503
    observation = observer([f"{pages.url}/metrics"], clock).observe()
    assert len(observation.engines[0].looks) == 2
    assert any("503" in problem for problem in observation.problems)


def test_half_an_answer_is_none(pages: "Pages", clock: "Clock") -> None:
    pages.answers["/metrics"] = vllm(7)
    pages.cut = 100
    with pytest.raises(InputError, match="100 bytes too early"):
        observer([f"{pages.url}/metrics"], clock).observe()


def test_one_source_that_fails_does_not_hide_the_others(pages: "Pages", clock: "Clock") -> None:
    pages.answers["/metrics"] = vllm(1)
    observation = observer([f"{pages.url}/metrics", "http://127.0.0.1:1/metrics"], clock).observe()
    assert len(observation.engines) == 1
    assert any("cannot be reached" in problem for problem in observation.problems)
    with pytest.raises(InputError, match="cannot be reached"):
        observer(["http://127.0.0.1:1/metrics"], clock).observe()


def test_two_engines_are_told_apart_by_their_addresses(pages: "Pages", clock: "Clock") -> None:
    pages.answers["/a/metrics"] = vllm(1)
    pages.answers["/b/metrics"] = vllm(2)
    observation = observer([f"{pages.url}/a/metrics", f"{pages.url}/b/metrics"], clock).observe()
    assert [window.where for window in observation.engines] == [f"{pages.url}/a/metrics", f"{pages.url}/b/metrics"]


def test_llamacpp_s_slots_are_asked_for(pages: "Pages", clock: "Clock") -> None:
    pages.answers["/metrics"] = "llamacpp:requests_processing 1\nllamacpp:requests_deferred 2\n"
    pages.answers["/props"] = lambda _: {"default_generation_settings": {"n_ctx": 4096}, "total_slots": 2}
    pages.answers["/slots"] = lambda _: [
        {"id": 0, "is_processing": True, "n_past": 1024},
        {"id": 1, "is_processing": False},
    ]
    (window,) = observer([pages.url], clock).observe().engines
    assert (window.last.usage, window.limits.max_num_seqs, window.limits.max_model_len) == (0.25, 2, 4096)


def test_sglang_s_and_tgi_s_limits_are_asked_for(pages: "Pages", clock: "Clock") -> None:
    pages.answers["/metrics"] = (
        'sglang:token_usage{model_name="m"} 0.5\nsglang:max_total_num_tokens{model_name="m"} 8192\n'
    )
    pages.answers["/get_server_info"] = lambda _: {
        "page_size": 64, "max_running_requests": 48, "context_length": 4096, "version": "0.5.9",
        "chunked_prefill_size": 2048, "disable_radix_cache": True,
    }  # fmt: skip
    (window,) = observer([f"{pages.url}/metrics"], clock).observe().engines
    limits = window.limits
    assert limits.pool is not None
    assert (limits.pool.block_size, limits.max_num_seqs, limits.max_num_batched_tokens) == (64, 48, 2048)
    assert (limits.prefix_caching, limits.max_model_len, window.version) == (False, 4096, "0.5.9")
    pages.answers["/metrics"] = "tgi_queue_size 1\ntgi_batch_current_size 2\n"
    pages.answers["/info"] = lambda _: {
        "max_total_tokens": 4096,
        "max_concurrent_requests": 128,
        "max_batch_total_tokens": 9000,
    }
    (window,) = observer([f"{pages.url}/metrics"], clock).observe().engines
    assert window.limits.pool is not None
    assert (window.limits.pool.tokens, window.limits.max_num_seqs) == (9000, 128)


def test_trtllm_serve_has_its_metrics_one_level_deeper(pages: "Pages", clock: "Clock") -> None:
    pages.answers["/metrics"] = lambda _: [{"iter": 1}]
    pages.answers["/prometheus/metrics"] = "trtllm_kv_cache_utilization 0.5\n"
    (window,) = observer([pages.url], clock).observe().engines
    assert (window.engine, window.last.usage) == ("trtllm", 0.5)


def test_a_page_that_tells_of_no_engine_is_refused_at_once(pages: "Pages", clock: "Clock") -> None:
    pages.answers["/metrics"] = "node_load1 0.5\n"
    with pytest.raises(InputError, match="no metric of an engine"):
        observer([pages.url], clock).observe()
    assert clock.slept == []


def test_keys_go_to_the_address_that_was_given_and_no_further(pages: "Pages", clock: "Clock") -> None:
    pages.answers["/metrics"] = lambda _: 401
    with pytest.raises(InputError, match="KVBUDGET_SOURCE_TOKEN"):
        observer([f"{pages.url}/metrics"], clock).observe()
    pages.answers["/metrics"] = vllm(1)
    observer([f"{pages.url}/metrics"], clock, KVBUDGET_SOURCE_TOKEN="abc").observe()
    assert pages.asked[-1][1] == "Bearer abc"
    observer([f"{pages.url}/metrics"], clock, KVBUDGET_SOURCE_USER="u", KVBUDGET_SOURCE_PASSWORD="p").observe()
    assert pages.asked[-1][1] == "Basic dTpw"
    pages.answers["/metrics"] = lambda _: 302
    pages.answers["/elsewhere"] = vllm(1)
    with pytest.raises(InputError, match="answered 302"):
        observer([f"{pages.url}/metrics"], clock, KVBUDGET_SOURCE_TOKEN="abc").observe()
    assert "/elsewhere" not in pages.paths()
    with pytest.raises(InputError, match="no token"):
        observer([pages.url], clock, KVBUDGET_SOURCE_TOKEN="a b")


@pytest.mark.parametrize("source", ["http://", "http://user:secret@127.0.0.1/metrics", "http://127.0.0.1:x/"])
def test_an_address_that_is_none_is_refused_without_its_secret(source: str, clock: "Clock") -> None:
    with pytest.raises(InputError) as refused:
        observer([source], clock)
    assert "secret" not in str(refused.value)


def test_the_number_of_sources_and_the_window_have_limits(clock: "Clock") -> None:
    for sources, window_s in (([], 1.0), (["x"] * 65, 1.0), (["x"], -1.0), (["x"], float("nan")), (["x"], 1e9)):
        with pytest.raises(InputError):
            observer(sources, clock, window_s)
