"""The same tokens as few long or as many short requests."""

import pytest

from kvbudget.planner.workload.splits import Split, splits_of
from kvbudget.planner.workload.stability import Service
from kvbudget.pool.groups import Group, LayerKind, Layout, uniform_layout
from kvbudget.units import Blocks, Bytes, Tokens

SERVICE = Service(0.01, 10_000, "given")


def test_tokens_stay_and_drain_time_and_refusals_do_not() -> None:
    rows = splits_of(uniform_layout(16), [(768, 256)], SERVICE, usable_blocks=3200, concurrency=48, max_model_len=65536)
    assert [row.requests for row in rows] == [3, 12, 48, 192, 768]
    assert [row.tokens for row in rows] == [49152] * 5
    assert [row.blocks for row in rows] == [3072] * 5
    assert [row.drain_s for row in rows] == sorted((row.drain_s for row in rows), reverse=True)
    assert rows[0].drain_s == pytest.approx(16 * (0.0768 + 2.56), abs=0.001)
    assert rows[0].retry_after_s == 43
    # 320 blocks are free at 90 %: 1,024 do not fit, 256 do
    assert [row.refusal_at_90 for row in rows] == [1, 0, 0, 0, 0]
    assert "when the pool is 90 % full, 100.0% of further ones are refused" in rows[0].line()


def test_short_requests_cost_more_blocks_where_each_has_a_constant_part() -> None:
    state = Group(LayerKind.MAMBA, 1, Tokens(16), Bytes(16), fixed_blocks=Blocks(2))
    rows = splits_of(
        Layout((*uniform_layout(16).groups, state)), [(768, 256)], SERVICE, usable_blocks=3200, concurrency=48,
        max_model_len=65536,
    )  # fmt: skip
    assert [row.blocks for row in rows] == [3072 + 2 * n for n in (3, 12, 48, 192, 768)]


def test_what_is_longer_than_the_context_is_refused_whatever_is_free() -> None:
    rows = splits_of(uniform_layout(16), [(768, 256)], SERVICE, usable_blocks=10**6, concurrency=1, max_model_len=8192)
    assert [row.beyond for row in rows] == [1, 0, 0, 0, 0]
    assert rows[0].refusal_at_90 == 1
    assert rows[0].line().endswith("not here, max_model_len is 8,192")


def test_a_row_that_cannot_be_says_so_instead_of_how_fast_it_drains() -> None:
    state = Group(LayerKind.MAMBA, 1, Tokens(16), Bytes(16), fixed_blocks=Blocks(6))
    layout = Layout((*uniform_layout(16).groups, state))
    rows = splits_of(
        layout, [(768, 256)], SERVICE, usable_blocks=3400, concurrency=48, max_model_len=8192, max_num_seqs=100
    )
    assert [bool(row.unfit) for row in rows] == [True, False, False, True, True]
    assert "max_model_len is 8,192" in rows[0].line()
    assert "they need 4,224 blocks and there are 3,400, enough for 154" in rows[3].line()
    few = splits_of(uniform_layout(16), [(768, 256)], SERVICE, usable_blocks=3400, concurrency=48, max_model_len=8192,
                    max_num_seqs=100)  # fmt: skip
    assert "--max-num-seqs lets 100 run at once" in few[3].line()
    assert all("done after" not in row.line() for row in (*rows, *few) if row.unfit)


def test_a_row_counts_whole_requests() -> None:
    row = Split(1, 4.6, 920, 200, 13, 1.0, 0.1, 1, 0.0, 0.0)
    assert "as 5 requests of 200" in row.line()
    assert "as 1 request of" in row._replace(requests=1.2).line()
    assert "as a part of 1 request of" in row._replace(requests=0.3).line()
