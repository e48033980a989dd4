"""Groups, pages and blocks of every layer kind, against figures that vLLM's own code computed."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvbudget.engines.flags import EngineFlags, Settings, Speculation
from kvbudget.engines.rule import Pool, Refusal, Stage
from kvbudget.engines.vllm.rule import Vllm
from kvbudget.model.read import model_from_config
from kvbudget.pool.groups import LayerKind
from kvbudget.units import GIB

RECORDS = json.loads((Path(__file__).parent / "data" / "vllm_0_32_groups.json").read_text())["records"]
ENGINE = Vllm()


def planned(
    record: dict[str, Any], memory: int, length: int
) -> tuple[Settings, tuple[Stage, ...], Pool, list[Refusal]]:
    model = model_from_config(record["config"])
    speculation = None
    if asked := record.get("speculative"):
        draft = model_from_config(asked["draft"]) if "draft" in asked else None
        speculation = Speculation(asked["method"], asked["num_speculative_tokens"], draft)
    flags = EngineFlags(max_model_len=length, speculation=speculation, **record["flags"])
    settings = ENGINE.settle(model, flags, 0, record.get("device", ""))
    stages = ENGINE.stages(model, settings)
    pool = ENGINE.pool(model, settings, stages, [memory] * len(stages))
    return settings, stages, pool, ENGINE.refusals(model, settings, stages, pool)


def name_of(record: dict[str, Any]) -> str:
    flags = record["flags"]
    return f"{record['model']}-tp{flags.get('tensor_parallel_size', 1)}-{flags.get('kv_cache_dtype', 'auto')}"


@pytest.mark.parametrize("record", RECORDS, ids=name_of)
def test_the_pool_equals_what_the_engine_s_own_code_computed(record: dict[str, Any]) -> None:
    for row in record["rows"]:
        _, stages, pool, refusals = planned(record, row["memory"], row["max_model_len"])
        layout = stages[pool.stage].layout
        assert layout.bytes_per_block == record["bytes_per_block"]
        if "largest" in row:
            assert [refusal.code for refusal in refusals][:1] == ["max_model_len_too_large"]
            assert not row["largest"] or pool.largest_max_model_len == row["largest"]
        else:
            assert refusals == []
            assert (pool.num_blocks, pool.tokens) == (row["num_blocks"], row["tokens"])
            assert round(pool.concurrency, 4) == row["concurrency"]
            blocks = [group.blocks_for(row["max_model_len"]) for group in layout.groups]
            assert sorted(blocks) == sorted(row["blocks"])


@pytest.mark.parametrize("record", RECORDS, ids=name_of)
def test_the_groups_hold_as_many_layers_in_as_large_blocks_as_the_engine_s(record: dict[str, Any]) -> None:
    row = record["rows"][-1]
    _, stages, pool, _ = planned(record, row["memory"], row["max_model_len"])
    here = sorted([group.layers, group.block_size] for group in stages[pool.stage].layout.groups)
    assert here == sorted(record["groups"])


@pytest.mark.parametrize("record", [r for r in RECORDS if "bytes_per_token" in r], ids=name_of)
def test_one_more_token_costs_what_the_engine_s_pages_say_once_windows_are_full(record: dict[str, Any]) -> None:
    row = record["rows"][0]
    _, stages, pool, _ = planned(record, row["memory"], row["max_model_len"])
    if len(stages) == 1:  # the figure is of the whole model
        assert stages[pool.stage].layout.bytes_per_token == record["bytes_per_token"]


def test_the_golden_records_cover_every_kind_of_group() -> None:
    kinds = set()
    for record in RECORDS:
        row = record["rows"][0]
        _, stages, _, _ = planned(record, row["memory"], row["max_model_len"])
        kinds |= {group.kind for stage in stages for group in stage.layout.groups}
    assert kinds == set(LayerKind)


def test_groups_of_a_compressing_model_say_what_they_keep() -> None:
    """DeepSeek-V4: the window, vectors beside their indexer, and a compressor for each ratio."""
    config = {
        "model_type": "deepseek_v4", "num_hidden_layers": 4, "compress_ratios": [0, 4, 128, 4],
        "num_nextn_predict_layers": 0,
    }  # fmt: skip
    model = model_from_config(config)
    engine = Vllm()
    settings = engine.settle(model, EngineFlags(max_model_len=8192), 0, "")
    groups = engine.stages(model, settings)[0].layout.groups
    kinds = {(str(group.kind), int(group.window)) for group in groups}
    assert kinds == {("sliding", 128), ("compressed", 0), ("compressor", 8), ("compressor", 128)}
    assert all(group.most_tokens for group in groups if group.kind == "compressor")


@pytest.mark.parametrize(("method", "blocks", "tokens"), [("eagle", 9_929, 158_864), ("medusa", 10_240, 163_840)])
def test_only_a_draft_with_layers_takes_from_the_pool(method: str, blocks: int, tokens: int) -> None:
    """Llama 3.1 8B with 20 GiB: eagle's one layer is a 33rd; medusa's heads keep nothing."""
    config = {"model_type": "llama", "num_key_value_heads": 8, "max_position_embeddings": 131072}
    draft = model_from_config(config | {"num_hidden_layers": 1}) if method == "eagle" else None
    model = model_from_config(config)
    flags = EngineFlags(max_model_len=8192, speculation=Speculation(method, 3, draft, model="d"))
    settings = ENGINE.settle(model, flags, 0, "")
    pool = ENGINE.pool(model, settings, ENGINE.stages(model, settings), [20 * GIB])
    assert (pool.num_blocks, pool.tokens) == (blocks, tokens)


@pytest.mark.parametrize("record", RECORDS[::3], ids=name_of)
def test_a_layout_that_is_kept_is_that_of_the_settings(record: dict[str, Any]) -> None:
    """Lengths and other flags come and go between plans of one model; a fresh model has no layout that is kept."""
    model = model_from_config(record["config"])
    for caching in (True, False):
        for version in ("0.32", "0.14"):
            for length in (4096, 8192, 4096):
                flags = EngineFlags(**record["flags"])._replace(max_model_len=length, enable_prefix_caching=caching)
                engine = Vllm(version)
                fresh = model_from_config(record["config"])
                kept = engine.stages(model, engine.settle(model, flags, 0, ""))
                assert kept == engine.stages(fresh, engine.settle(fresh, flags, 0, ""))
