"""The terminal report: verdict first, every part named, findings with what to do."""

import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kvbudget.engines.flags import EngineFlags
from kvbudget.model.read import model_from_config
from kvbudget.planner.build import make_plan
from kvbudget.planner.explain import explain
from kvbudget.planner.hardware.gpus import gpu_named
from kvbudget.planner.request import Plan, PlanRequest
from kvbudget.planner.workload.lengths import parse_lengths
from kvbudget.report.contents import facts_of
from kvbudget.report.text import plan_report
from kvbudget.report.verdict import OUT_OF_MEMORY, at_low_end, findings_told, limit_words, verdict_of
from kvbudget.units import GIB, Bytes


def plan_of(**given: Any) -> Plan:
    model = model_from_config({"model_type": "llama", "num_key_value_heads": 8}, "[bold]m[/bold]")
    return make_plan(PlanRequest(model=model, engine="vllm", **given))


def printed(plan: Plan, explained: list[str] | None = None, *, width: int = 100, unbroken: bool = False) -> str:
    console = Console(width=width, no_color=True, highlight=False, force_terminal=False)
    with console.capture() as capture:
        console.print(plan_report(plan, explained or [], unbroken_log_line=unbroken), crop=False)
    return capture.get()


def test_a_plan_that_fits_says_so_first_and_shows_what_the_log_will_say() -> None:
    text = printed(plan_of(flags=EngineFlags(max_model_len=8192), gpu=gpu_named("l40s")), unbroken=True)
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
    assert "no length would fit" in printed(plan)


def test_lengths_and_explanation_are_shown_when_asked_for() -> None:
    lengths = parse_lengths("p50=100,p95=200,p99=300", "--prompt-lengths")
    plan = plan_of(
        flags=EngineFlags(max_model_len=8192), gpu=gpu_named("h100"), prompt_lengths=lengths, output_lengths=lengths
    )
    text = printed(plan, ["one step"])
    assert "of 200 tokens" in text
    assert f"plan by p95       {plan.ceilings.p95:,} requests at once" in text
    assert "how the numbers come about" in text
    assert "one step" in text


def test_markup_in_a_model_name_is_shown_as_it_is() -> None:
    assert "[bold]m[/bold]" in printed(plan_of(flags=EngineFlags(max_model_len=512), gpu=gpu_named("h100")))


def bars(text: str) -> dict[str, int]:
    rows = [line for line in text.splitlines() if "█" in line]
    return {line.split("  ")[0]: line.count("█") for line in rows}


@pytest.mark.parametrize("gpu", [None, "h100"])
def test_bars_are_shares_of_one_total(gpu: str | None) -> None:
    flags = EngineFlags(max_model_len=512, num_gpu_blocks_override=100)
    drawn = bars(printed(plan_of(flags=flags, gpu=gpu_named(gpu) if gpu else None)))
    assert drawn["weights"] > 0
    assert drawn.get("KV cache", 0) <= 1  # 0.20 GiB beside 14.96


def test_what_is_over_the_card_does_not_draw_every_bar_full() -> None:
    drawn = bars(printed(plan_of(flags=EngineFlags(max_model_len=512), gpu=gpu_named("t4"), overhead=Bytes(14 * GIB))))
    assert sum(drawn.values()) <= 25


@pytest.mark.parametrize(
    ("given", "heading"),
    [
        ({"flags": EngineFlags(max_model_len=512, block_size=24)}, "WOULD NOT START"),
        ({"flags": EngineFlags(max_model_len=512, tensor_parallel_size=3)}, "WOULD NOT START"),
        ({"flags": EngineFlags(max_model_len=512, tensor_parallel_size=2), "gpus": 1}, "WOULD NOT START"),
        ({"flags": EngineFlags(max_model_len=512), "target_concurrency": 10**6}, "DOES NOT FIT"),
        ({"flags": EngineFlags(max_model_len=512), "kv_cache_memory": Bytes(100 * GIB)}, "DOES NOT FIT"),
        ({"flags": EngineFlags(max_model_len=512)}, "FITS"),
    ],
)
def test_the_heading_tells_a_lack_of_memory_from_a_flag_that_no_memory_would_help(
    given: dict[str, Any], heading: str
) -> None:
    assert printed(plan_of(gpu=gpu_named("h100"), **given)).startswith(heading)


def test_every_error_is_headed_on_purpose() -> None:
    root = Path(__file__).parents[2] / "src" / "kvbudget"
    files = [
        *sorted((root / "engines" / "vllm").glob("*.py")),
        root / "planner" / "build.py",
        root / "planner" / "findings.py",
    ]
    sources = "".join(file.read_text() for file in files)
    found = set(re.findall(r'(?:Refusal|Finding|Shared)\(\s*"(\w+)"', sources))
    warnings = {
        "gpus_idle", "length_beyond_max_model_len", "quantisation_only_in_name", "class_defaults_decide",
        "state_checkpoint_possible", "longer_than_class_default", "little_headroom", "batch_default_assumed",
        "weights_doubtful", "pool_below_max_model_len", "layers_off_the_cards", "draft_uncounted",
    }  # fmt: skip
    assert found - warnings - OUT_OF_MEMORY == {
        "max_model_len_beyond_model", "heads_not_divisible", "kv_heads_not_divisible", "block_size_unsupported",
        "batched_tokens_below_seqs", "too_few_gpus", "context_parallel_needs_replicas",
        "context_parallel_not_divisible", "context_parallel_sliding_window", "context_parallel_too_large",
        "architecture_removed", "architecture_unsupported", "pipeline_parallel_embedding", "vocabulary_not_divisible",
        "hybrid_manager_needed", "stage_without_cache", "batched_tokens_below_length", "architecture_unknown_then",
        "dtype_unsupported", "kv_cache_dtype_unsupported", "architecture_contradicts_model_type",
        "draft_model_pipeline", "draft_tensor_parallel", "draft_vocabulary_differs", "draft_tokens_not_divisible",
        "attention_unsupported", "intermediate_size_not_divisible",
        "quantised_block_not_divisible", "state_heads_not_divisible", "free_memory_below_share",
        "mig_slices_joined",
    }  # fmt: skip
    assert found >= OUT_OF_MEMORY - {"beyond_the_card"}  # SGLang's


def test_long_lines_hang_under_their_beginning() -> None:
    step = "a step " + "with many words " * 8
    text = printed(plan_of(flags=EngineFlags(max_model_len=2**20), gpu=gpu_named("rtx-4090")), [step], width=60)
    shown = text.splitlines()
    assert max(map(len, shown)) <= 60
    first = next(index for index, line in enumerate(shown) if line.startswith("  a step"))
    assert shown[first + 1].startswith("    with") or shown[first + 1].startswith("    m")
    message = next(index for index, line in enumerate(shown) if line.startswith("error: "))
    assert all(line.startswith("  ") for line in shown[message + 1 : message + 4])
    assert shown[message + 2].startswith("    ")


@pytest.mark.parametrize("width", [40, 44, 50, 80])
def test_numbers_win_over_bars_where_room_is_short(width: int) -> None:
    text = printed(plan_of(flags=EngineFlags(max_model_len=8192), gpu=gpu_named("l40s")), width=width)
    for name, amount in (("weights", "11.05"), ("CUDA graphs", "0.45"), ("non-torch", "0.25")):
        assert any(line.startswith(name) and amount in line for line in text.splitlines()), text
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width


def test_one_request_is_not_one_requests() -> None:
    flags = EngineFlags(max_model_len=8192, num_gpu_blocks_override=513 + 5)
    lengths = parse_lengths("p50=4096,p95=4096,p99=4096", "--prompt-lengths")
    plan = plan_of(flags=flags, prompt_lengths=lengths, output_lengths=lengths, target_concurrency=2)
    text = printed(plan, explain(plan))
    assert "1 request " in text
    assert "1 requests" not in text
    assert "plan by p95" not in text  # all lengths are one


GEMMA_LIKE: dict[str, Any] = {
    "model_type": "gemma3_text", "num_hidden_layers": 12, "sliding_window_pattern": 6, "sliding_window": 1024,
}  # fmt: skip


def test_a_model_with_windows_shows_what_a_request_mostly_pays_for() -> None:
    model = model_from_config(GEMMA_LIKE, "windows")
    flags = EngineFlags(max_model_len=32768, max_num_batched_tokens=2048)
    plan = make_plan(PlanRequest(model=model, engine="vllm", flags=flags, kv_cache_memory=Bytes(8 * GIB)))
    text = " ".join(printed(plan, width=200).split())
    full, sliding = 2048, 5 * (-(-(1024 - 1 + 2 * 2048) // 16) + 1)
    assert f"1 x full: {full:,} blocks (56%), 5 x sliding 1,024: {sliding:,} blocks (44%)" in text
    assert "for each further token" in text


def test_a_given_pool_shows_no_zeros_for_what_nobody_asked() -> None:
    text = printed(plan_of(flags=EngineFlags(max_model_len=512), kv_cache_memory=Bytes(GIB)))
    assert "CUDA graphs" not in text
    assert "KV cache" in text


def test_an_interval_stands_beside_an_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "kvbudget.report.text.interval_text", lambda amount: "0.80 to 1.20" * (amount.source == "estimated")
    )
    text = printed(plan_of(flags=EngineFlags(max_model_len=512), gpu=gpu_named("h100")))
    assert "estimated, 0.80 to 1.20" in text
    assert "computed," not in text


@pytest.mark.parametrize("width", range(40, 201, 20))
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    model = model_from_config(GEMMA_LIKE, "windows")
    flags = EngineFlags(max_model_len=131072)
    plan = make_plan(PlanRequest(model=model, engine="vllm", flags=flags, kv_cache_memory=Bytes(GIB)))
    text = printed(plan, explain(plan), width=width)
    assert max(map(len, text.splitlines())) <= width


def test_engines_beside_one_another_stand_in_the_header_and_beside_the_ceilings() -> None:
    plan = plan_of(flags=EngineFlags(max_model_len=8192, data_parallel_size=8), gpu=gpu_named("h200"))
    text = printed(plan, explain(plan), width=200)
    assert "on 8 engines, each on 1 x H200 141GB, vllm 0.32" in text
    assert f"; {8 * plan.ceilings.ceiling:,} on 8 engines" in text
    assert f"8 x {plan.ceilings.ceiling:,} = {8 * plan.ceilings.ceiling:,} whole requests" in text
    assert "engines" not in printed(plan_of(flags=EngineFlags(max_model_len=8192), gpu=gpu_named("h200")))


def test_the_longest_length_is_shown_at_both_ends_of_an_estimate() -> None:
    model = model_from_config({"model_type": "llama", "max_position_embeddings": 131072}, "m")
    plan = make_plan(PlanRequest(model, "vllm", EngineFlags(max_model_len=8192), gpu=gpu_named("rtx-3090")))
    assert plan.low_end is not None
    best, low = plan.pool.largest_max_model_len, plan.low_end.largest_max_model_len
    assert f"up to {best:,} would fit, {low:,} at the low end" in printed(plan, width=200)


def test_the_longest_length_is_no_more_than_the_class_default_of_a_config_that_says_none() -> None:
    model = model_from_config({"model_type": "llama"}, "cut")
    plan = make_plan(PlanRequest(model, "vllm", EngineFlags(), kv_cache_memory=Bytes(8 * GIB)))
    text = " ".join(printed(plan, width=200).split())
    assert "max_model_len up to 2,048 would fit, the default of its config class" in text
    assert f"(the pool would hold {plan.pool.largest_max_model_len:,})" in text


def test_a_block_of_one_token_and_a_pool_of_one_block_are_singular() -> None:
    model = model_from_config({"model_type": "llama", "max_position_embeddings": 4096}, "m")
    plan = make_plan(PlanRequest(model, "sglang", EngineFlags(max_model_len=64), kv_cache_memory=Bytes(GIB)))
    assert "of 1 token, " in printed(plan, width=200)
    one = make_plan(PlanRequest(model, "vllm", EngineFlags(max_model_len=16, num_gpu_blocks_override=1)))
    assert "1 block (" in printed(one, width=200)


def test_the_line_that_people_plan_with_shows_its_low_end_where_that_is_less() -> None:
    model = model_from_config({"model_type": "llama", "num_key_value_heads": 8, "max_position_embeddings": 65536}, "m")
    plan = make_plan(PlanRequest(model, "vllm", EngineFlags(max_model_len=2048), gpu=gpu_named("rtx-4090")))
    least = at_low_end(plan, 2048)
    assert 0 < least < plan.ceilings.ceiling
    assert f"of 2,048 tokens at once (limited by pool); {least} at the low end" in (
        " ".join(printed(plan, width=200).split())
    )
    assert f"{least} at the low end" in verdict_of(plan).sentence
    assert f"{least} at the low end" in facts_of(plan)[0].note
    given = make_plan(PlanRequest(model, "vllm", EngineFlags(max_model_len=8192), kv_cache_memory=Bytes(8 * GIB)))
    assert "low end" not in printed(given)


def test_lengths_show_their_low_end_and_which_were_not_given() -> None:
    model = model_from_config({"model_type": "llama", "num_key_value_heads": 8, "max_position_embeddings": 65536}, "m")
    lengths = parse_lengths("p50=1k,p95=3k", "--prompt-lengths")
    flags = EngineFlags(max_model_len=65536)
    plan = make_plan(
        PlanRequest(model, "vllm", flags, gpu=gpu_named("l40s"), prompt_lengths=lengths, output_lengths=lengths)
    )
    text = " ".join(printed(plan, width=200).split())
    (_, _, p99), count = plan.ceilings.lengths, plan.ceilings.p99
    assert p99 < 65536
    assert f"p99: {count} of {p99:,} tokens (derived)" in text
    lows = ", ".join(f"{at_low_end(plan, length):,}" for length in plan.ceilings.lengths)
    assert f"; {lows} at the low end of the estimate" in text


def test_the_tokens_of_the_log_are_no_headline() -> None:
    model = model_from_config(GEMMA_LIKE, "windows")
    plan = make_plan(PlanRequest(model, "vllm", EngineFlags(max_model_len=32768), kv_cache_memory=Bytes(8 * GIB)))
    assert f"{plan.pool.tokens:,}" not in verdict_of(plan).sentence
    assert all(f"{plan.pool.tokens:,}" not in (fact.value, fact.note) for fact in facts_of(plan))
    alike = plan_of(flags=EngineFlags(max_model_len=8192), kv_cache_memory=Bytes(8 * GIB))
    assert facts_of(alike)[1].value == f"{alike.pool.tokens:,}"
    lengths = parse_lengths("p50=100,p95=200,p99=300", "--prompt-lengths")
    flags = EngineFlags(max_model_len=1024)
    own = plan_of(flags=flags, kv_cache_memory=Bytes(8 * GIB), prompt_lengths=lengths, output_lengths=lengths)
    assert facts_of(own)[1].value == f"{own.ceilings.p95:,}"
    assert "of your p95 length (400)" in verdict_of(own).sentence or not own.fits


def test_a_doubt_about_the_weights_comes_before_the_lack_that_they_cause() -> None:
    model = model_from_config(
        {"model_type": "llama", "num_key_value_heads": 8, "num_hidden_layers": 512}, "Some-Model-NVFP4"
    )
    plan = make_plan(PlanRequest(model, "vllm", EngineFlags(), gpu=gpu_named("h100")))
    told = findings_told(plan)
    assert (told[0].code, told[1].severity) == ("quantisation_only_in_name", "error")
    assert told[1].fix.startswith("first give the true weights (quantisation_only_in_name); else: ")
    assert sorted(finding.code for finding in told) == sorted(finding.code for finding in plan.findings)
    text = printed(plan)
    assert text.index("quantisation_only_in_name") < text.index("error: ")
    assert "true weights" in verdict_of(plan).sentence


def test_block_sizes_that_differ_by_group_are_a_range() -> None:
    config = GEMMA_LIKE | {
        "model_type": "gemma4_text", "head_dim": 256, "global_head_dim": 512, "num_global_key_value_heads": 2,
        "num_key_value_heads": 8, "num_hidden_layers": 30, "hidden_size": 2816, "num_attention_heads": 16,
        "intermediate_size": 2112,
    }  # fmt: skip
    model = model_from_config(config, "m")
    plan = make_plan(PlanRequest(model, "vllm", EngineFlags(max_model_len=8192), kv_cache_memory=Bytes(8 * GIB)))
    sizes = {group.block_size for group in plan.stage.layout.groups}
    assert len(sizes) > 1
    assert f"of {min(sizes)} to {max(sizes)} tokens by group" in " ".join(printed(plan).split())


def test_states_that_limit_are_said_in_words() -> None:
    assert limit_words("state").startswith("the states")
    assert (limit_words("pool"), limit_words("max_num_seqs")) == ("pool", "max_num_seqs")


def test_slots_of_one_context_have_their_longest_length_each() -> None:
    model = model_from_config({"model_type": "llama", "num_key_value_heads": 8, "max_position_embeddings": 65536}, "m")
    flags = EngineFlags(max_model_len=8 * 4096, max_num_seqs=8)
    plan = make_plan(PlanRequest(model, "llamacpp", flags, gpu=gpu_named("rtx-4090")))
    longest = plan.pool.largest_max_model_len
    said = f"up to {longest:,} tokens in each of 8 slots would fit (a context of {8 * longest:,})"
    assert said in " ".join(printed(plan, width=200).split())


def test_a_pool_without_blocks_is_not_requests_of_one_token() -> None:
    plan = plan_of(flags=EngineFlags(max_model_len=512), gpu=gpu_named("t4"), overhead=Bytes(14 * GIB))
    assert "full length       no request: nothing is left for the cache" in printed(plan)


def test_the_line_of_a_pool_fits_80_columns() -> None:
    text = printed(plan_of(flags=EngineFlags(max_model_len=512), gpu=gpu_named("h100")), width=80)
    assert re.search(r"^pool +\d.* blocks .* of 16 tokens, .* a token *$", text, re.MULTILINE)


def test_an_engine_that_cuts_the_length_has_a_shorter_one_at_the_low_end() -> None:
    model = model_from_config({"model_type": "llama", "num_key_value_heads": 8, "max_position_embeddings": 131072}, "m")
    plan = make_plan(PlanRequest(model, "sglang", EngineFlags(), gpu=gpu_named("rtx-4090")))
    assert plan.low_end is not None
    assert plan.pool.max_model_len > plan.low_end.max_model_len > 0
    text = " ".join(printed(plan, width=200).split())
    assert f"of {plan.pool.max_model_len:,} tokens (131,072 were asked for) at once" in text
    assert f"; 1 of {plan.low_end.max_model_len:,} tokens at the low end of the estimate" in text
