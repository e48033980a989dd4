"""Which matrices a checkpoint's list of module names means."""

import pytest

from kvbudget.errors import UnsupportedError
from kvbudget.model.weights.names import Names


@pytest.mark.parametrize(
    ("pattern", "layer", "name", "means"),
    [
        ("model.layers.3.self_attn*", 3, "self_attn.q_proj", True),
        ("model.layers.3.self_attn*", 4, "self_attn.q_proj", False),
        ("language_model.model.layers.3.self_attn*", 3, "self_attn.q_proj", True),
        ("model.layers.1.*", 1, "mlp.up_proj", True),
        ("model.layers.1.*", 11, "mlp.up_proj", False),
        ("model.layers.0*", 0, "mlp.up_proj", True),
        ("model.layers.1*", 12, "mlp.up_proj", True),
        ("model.layers.1*", 2, "mlp.up_proj", False),
        ("layers.5.ffn.experts", 5, "ffn.experts.0.gate_proj", True),
        ("layers.5.ffn.experts", 5, "ffn.shared_experts.gate_proj", False),
        ("model.layers.2.self_attn.qkv_proj", 2, "self_attn.k_proj", True),
        ("model.layers.*.self_attn", 7, "self_attn.o_proj", True),
        ("*.mlp.shared_expert.*", 7, "mlp.shared_expert.up_proj", True),
        ("self_attn", 7, "self_attn.o_proj", True),
        ("b_proj", 7, "self_attn.q_b_proj", False),
        ("lm_head", -1, "lm_head", True),
        ("lm_head", 7, "mlp.up_proj", False),
        ("re:.*self_attn.*", 7, "self_attn.o_proj", True),
        ("re:.*mlp\\.(gate|up|gate_up|down)_proj.*", 7, "mlp.down_proj", True),
        ("re:.*mlp\\.(gate|up|gate_up|down)_proj.*", 7, "mlp.experts.0.down_proj", False),
        ("re:^model\\.layers\\.\\d+\\.mlp", 7, "mlp.down_proj", True),
        ("re:.*o_proj$", 7, "self_attn.o_proj", True),
        ("re:.*self$", 7, "self_attn.o_proj", False),
    ],
)
def test_a_pattern_means_what_the_tools_that_wrote_it_mean(pattern: str, layer: int, name: str, means: bool) -> None:
    assert Names([pattern]).match(layer, name) is means


def test_many_layers_of_one_list_are_told_apart() -> None:
    names = Names([f"model.layers.{layer}.mlp.gate" for layer in range(0, 100, 2)])
    assert [layer for layer in range(6) if names.match(layer, "mlp.gate")] == [0, 2, 4]
    assert not Names([])


@pytest.mark.parametrize("pattern", ["re:(a+)+$", "re:(.*)*", "re:[a-z]+", "re:a{5}", "re:a|b", "re:(", "re:\\", 7,
                                     "x" * 1000, "re:" + "(a|b)" * 20])  # fmt: skip
def test_what_cannot_be_read_is_refused_and_no_expression_is_run(pattern: object) -> None:
    with pytest.raises(UnsupportedError):
        Names([pattern])


def test_a_hostile_glob_ends() -> None:
    assert not Names(["*a" * 100 + "b"]).match(0, "a" * 300)


@pytest.mark.parametrize(
    "patterns",
    [
        ["model.layers.0*", "model.layers.1*"],
        ["layers.1.self_attn*", "model.layers.12*"],
        ["model.layers.1*.mlp.experts*", "*.o_proj"],
        ["model.layers.1*2.self_attn*"],
        ["re:.*layers\\.3\\.mlp.*", "re:.*self_attn.*"],
        ["model.layers.*.self_attn*", "model.layers.2.mlp"],
    ],
)
def test_layers_that_are_not_told_apart_are_treated_alike(patterns: list[str]) -> None:
    """And what a list says of one layer does not depend on which was asked before."""
    asked = Names(patterns)
    known: dict[tuple[int, str], bool] = {}
    for layer in (*range(130), 1234, 9999):
        for name in ("self_attn.o_proj", "mlp.experts.0.up_proj", "mlp.down_proj"):
            alone = Names(patterns).match(layer, name)
            assert asked.match(layer, name) is alone
            assert known.setdefault((asked.apart(layer), name), alone) is alone


def test_layers_that_are_named_with_the_same_parts_are_treated_alike() -> None:
    """Published lists name the router of each layer by itself; its matrices need not be asked of each."""
    listed = [f"model.layers.{number}.mlp.gate" for number in range(100)]
    names = Names([*listed, "model.layers.3.self_attn"])
    assert len({names.apart(layer) for layer in range(120)}) == 3  # 0 and its like, 3, and those that are not named
    assert names.apart(5) == names.apart(99)


def test_a_thousand_layers_that_begin_alike_are_looked_at_once() -> None:
    names = Names([f"model.layers.{number}*" for number in (0, 1, 12)])
    assert len({names.apart(layer) for layer in range(10_000)}) == 4  # 0, 1 and 10 to 19, 12, all others
