from typing import Any

import pytest

from kvbudget.edge.engine.settings import EngineSettings
from kvbudget.errors import BadValueError


@pytest.mark.parametrize(
    "wrong",
    [
        {"block_size": 0},
        {"max_num_seqs": 0},
        {"max_num_batched_tokens": -1},
        {"mean_output_tokens": 0},
        {"step_cost_s": -1.0},
        {"token_cost_s": float("nan")},
        {"step_cost_s": float("inf")},
        {"served_model_name": ""},
    ],
)
def test_a_value_that_no_engine_could_use_is_refused_by_name(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(BadValueError, match=name):
        EngineSettings(**wrong)


def test_blocks_are_counted_by_the_layout_of_the_pool() -> None:
    assert EngineSettings(block_size=32).layout.blocks_for(33) == 2
