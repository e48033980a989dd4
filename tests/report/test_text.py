"""The terminal report: verdict first, every part named, findings with what to do."""

from typing import Any

from rich.console import Console

from kvbudget.engines.flags import EngineFlags
from kvbudget.model.read import model_from_config
from kvbudget.plan.build import make_plan
from kvbudget.plan.gpus import gpu_named
from kvbudget.plan.lengths import parse_lengths
from kvbudget.plan.request import Plan, PlanRequest
from kvbudget.report.text import plan_report
from kvbudget.units import GIB, Bytes


def plan_of(**given: Any) -> Plan:
    model = model_from_config({"model_type": "llama", "num_key_value_heads": 8}, "[bold]m[/bold]")
    return make_plan(PlanRequest(model=model, engine="vllm", **given))


def printed(plan: Plan, explained: list[str] | None = None) -> str:
    console = Console(width=100, no_color=True, highlight=False, force_terminal=False)
    with console.capture() as capture:
        console.print(plan_report(plan, explained or []))
    return capture.get()


def test_a_plan_that_fits_says_so_first_and_shows_what_the_log_will_say() -> None:
    text = printed(plan_of(flags=EngineFlags(max_model_len=8192), gpu=gpu_named("l40s")))
    assert text.startswith("FITS")
    assert "Maximum concurrency for 8,192 tokens per request" in text
    for name in ("weights", "activation", "CUDA graphs", "non-torch", "KV cache", "usable"):
        assert f"\n{name}" in text
    assert "estimated" in text
    assert "computed" in text


def test_a_plan_that_does_not_fit_shows_the_finding_and_its_fix() -> None:
    text = printed(plan_of(flags=EngineFlags(max_model_len=2**20), gpu=gpu_named("rtx-4090")))
    assert text.startswith("DOES NOT FIT")
    assert "error: max_model_len_too_large" in text
    assert "->" in text
    assert "the log will say" not in text  # it would never come to that line


def test_a_card_that_the_weights_overfill_starts_with_no_length() -> None:
    plan = plan_of(flags=EngineFlags(max_model_len=512), gpu=gpu_named("t4"), overhead=Bytes(14 * GIB))
    assert "no length would start" in printed(plan)


def test_lengths_and_explanation_are_shown_when_asked_for() -> None:
    lengths = parse_lengths("p50=100,p95=200,p99=300", "--prompt-lengths")
    plan = plan_of(
        flags=EngineFlags(max_model_len=8192), gpu=gpu_named("h100"), prompt_lengths=lengths, output_lengths=lengths
    )
    text = printed(plan, ["one step"])
    assert "of 200 tokens" in text
    assert "how the numbers come about" in text
    assert "one step" in text


def test_markup_in_a_model_name_is_shown_as_it_is() -> None:
    assert "[bold]m[/bold]" in printed(plan_of(flags=EngineFlags(max_model_len=512), gpu=gpu_named("h100")))
