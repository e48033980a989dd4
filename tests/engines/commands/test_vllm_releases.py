"""Which releases of vLLM take a flag."""

import pytest

from kvbudget.engines.commands.vllm import SYNTAX, TABLE
from kvbudget.engines.commands.vllm_releases import refused_by, unread
from kvbudget.engines.vllm.versions import NEWEST

RELEASES = [f"0.{minor}" for minor in range(5, NEWEST[1] + 1)]


@pytest.mark.parametrize(
    ("flag", "last", "first_without"),
    [
        ("--swap-space", "0.17", "0.18"),
        ("--max-seq-len-to-capture", "0.10.2", "0.11"),
        ("--num-scheduler-steps", "0.10.0", "0.10.1"),
        ("--use-v2-block-manager", "0.9", "0.10"),
        ("--guided-decoding-backend", "0.11", "0.12"),
        ("--rope-scaling", "0.11.0", "0.11.1"),
        ("--disable-log-requests", "0.16", "0.17"),
        ("--speculative-model", "0.8.2", "0.8.3"),
        ("--task", "0.12", "0.13"),
    ],
)
def test_a_flag_is_gone_from_a_release_on(flag: str, last: str, first_without: str) -> None:
    assert refused_by(flag, last) is None
    for version in (first_without, "", "0.32"):
        change = refused_by(flag, version)
        assert change is not None
        assert change.gone
        assert change.since == first_without
        assert refused_by(flag, change.other) is None


@pytest.mark.parametrize(
    ("flag", "before", "first"),
    [
        ("--watermark", "0.23", "0.24"),
        ("--kv-cache-memory-bytes", "0.10.1", "0.10.2"),
        ("--async-scheduling", "0.9", "0.10"),
        ("-dcp", "0.10.0", "0.10.2"),
        ("--speculative-config", "0.8.0", "0.8.2"),
    ],
)
def test_a_flag_came_with_a_release(flag: str, before: str, first: str) -> None:
    change = refused_by(flag, before)
    assert change is not None
    assert (change.gone, change.since) == (False, first)
    assert refused_by(flag, first) is None
    assert refused_by(flag, "") is None


def test_a_flag_is_there_from_one_release_to_another_without_holes() -> None:
    for flag in TABLE:
        taken = "".join("+" if refused_by(flag, version) is None else "-" for version in RELEASES)
        assert "+-+" not in taken, flag
        change = refused_by(flag, "")
        assert change is None or (change.gone and refused_by(flag, change.other) is None), flag


def test_a_flag_that_always_was_is_in_no_list() -> None:
    for flag in ("--model", "--max-model-len", "-tp", "--gpu-memory-utilization", "--kv-cache-dtype"):
        assert all(refused_by(flag, version) is None for version in ("0.4", *RELEASES))


def test_beginnings_stand_for_flags_that_are_there() -> None:
    assert "--max-model-len" in SYNTAX.prefixes
    assert "--swap-space" not in SYNTAX.prefixes


def test_variables_that_a_release_does_not_read_change_nothing() -> None:
    assert unread("VLLM_USE_V1", "1", "")
    assert unread("VLLM_USE_V1", "0", "0.12")
    assert unread("VLLM_USE_V1", "1", "0.8.5")  # its default there
    assert not unread("VLLM_USE_V1", "0", "0.11.0")
    assert not unread("VLLM_USE_V1", "1", "0.7.3")
    assert unread("VLLM_ATTENTION_BACKEND", "FLASHINFER", "0.32")
    assert not unread("VLLM_ATTENTION_BACKEND", "FLASHINFER", "0.14")
    assert not unread("VLLM_KV_CACHE_LAYOUT", "HND", "")
