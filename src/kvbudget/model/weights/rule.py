"""What is known of one architecture's weights: its matrices and vectors, by the config fields that size them.

A bias is a constant, or the name of the flag that decides it.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Experts(NamedTuple):
    """The experts of a layer. Strings name config fields.

    `where`: the layers that have experts: "all"; "step" (decoder_sparse_step, mlp_only_layers); "first" (not the first
    first_k_dense_replace ones, moe_layer_freq or mlp_layer_types); "interleaved" (moe_layers, else
    interleave_moe_layer_step); "period" (expert_layer_period and _offset); "range" (moe_layer_start_index, _end_index
    and _interval); "dense_first" (num_dense_layers); "listed" (moe_layers_enum, else as "first").
    `shared`: how many shared experts; `shared_inner`: the size of each, when it is not that of the others. `width`: the
    narrower width that experts work in. `router_bias`: one number for each expert.
    """

    number: str = "num_experts"
    inner: str = "moe_intermediate_size"
    where: str = "all"
    shared: str = ""
    shared_inner: str = ""
    shared_gate: bool = False
    shared_name: str = "shared_experts"
    router_bias: bool | str = False
    matrices: int = 3
    bias: bool = False
    width: str = ""
    idle: str = ""  # experts without weights, which the router knows nevertheless


class WeightRule(NamedTuple):
    """How the parameters of a family are counted. Names are those of the modules in its checkpoints."""

    attention: str = "self_attn"
    mixer: str = "mixer"
    mlp: str = "mlp"
    moe: str = ""  # the module that holds experts, "" for the same as mlp
    inner: str = "intermediate_size"
    mlp_matrices: int = 3  # gate, up, down; 2 without a gate
    qkv_bias: bool | str = "attention_bias"
    out_bias: bool | str = "attention_bias"
    mlp_bias: bool | str = "mlp_bias"
    norms: int = 2  # vectors of hidden_size in a layer
    norm_bias: bool = False
    qk_norm: str = ""  # "head": one vector of head_dim for each of q and k; "projection": of all heads
    qk_norm_flag: str = ""  # the flag that switches it on, "" for always
    gate: str = ""  # of the attention's output: "query" as wide as the queries, "head" one number a head
    sinks: str = ""  # one number a head: "all" layers, "flags" as MiMo's two flags say
    experts: Experts | None = None
    learned_positions: int = -1  # extra rows of a learned position table; -1: none
    head_bias: bool = False
    final_norm: int = 1
    embedding_norm: bool = False
    mixer_norm: bool = True  # Mamba-2's own norm over its channels
    two_rotations: bool = False  # sliding layers rotate by a base of their own though no field says so
    special: str = ""  # layers that follow rules of their own: see special.py
    defaults: Mapping[str, object] | None = None  # of fields that only weights depend on
