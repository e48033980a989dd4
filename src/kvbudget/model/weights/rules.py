"""Which architectures' weights we can count, by model_type. An architecture that is not here is not guessed.

Checked against the parameter counts that authors publish, and against vLLM 0.32 (`model_executor/models/`) built
without memory.
"""

from collections.abc import Mapping

from kvbudget.model.weights.rule import Experts, WeightRule

_BIASED = WeightRule(mlp_bias=False)  # attention_bias decides
_PLAIN = WeightRule(qkv_bias=False, out_bias=False, mlp_bias=False)
_QUERY_BIAS = WeightRule(qkv_bias=True, out_bias=False, mlp_bias=False)
_ALL_BIAS = WeightRule(mlp_matrices=2, qkv_bias=True, out_bias=True, mlp_bias=True, norm_bias=True)
_QWEN3 = WeightRule(mlp_bias=False, qk_norm="head")
_GLM = WeightRule(out_bias=False, mlp_bias=False)
_FALCON = WeightRule(mlp_matrices=2, norm_bias=True, qkv_bias="bias", out_bias="bias", mlp_bias="bias")
_MIXTRAL = Experts("num_local_experts", "intermediate_size")
_STEPPED = Experts(where="step")
_STEPPED_SHARED = Experts(
    where="step", shared_inner="shared_expert_intermediate_size", shared_gate=True, shared_name="shared_expert"
)
_DEEPSEEK = Experts("n_routed_experts", where="first", shared="n_shared_experts", router_bias=True)
_MLA = WeightRule(mlp_bias=False, experts=_DEEPSEEK)
_NEXT = WeightRule(
    mlp_bias=False,
    qk_norm="head",
    gate="query",
    mixer="linear_attn",
    defaults={"attn_output_gate": True},
)
_NEXT_MOE = _NEXT._replace(
    experts=_STEPPED_SHARED,
    defaults={"attn_output_gate": True, "num_experts": 256, "moe_intermediate_size": 512,
              "shared_expert_intermediate_size": 512},
)  # fmt: skip
_SANDWICH = WeightRule(mlp_bias=False, norms=4)
_GEMMA3 = _SANDWICH._replace(qk_norm="head", two_rotations=True)
_GEMMA3N: Mapping[str, object] = {
    "altup_num_inputs": 4, "laurel_rank": 64, "hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 262144,
    "tie_word_embeddings": True,
}  # fmt: skip
_GEMMA4 = WeightRule(
    mlp_bias=False, norms=4, qk_norm="head", special="gemma4", experts=Experts(), moe="moe",
    defaults={"vocab_size_per_layer_input": 262144, "hidden_size_per_layer_input": 256, "tie_word_embeddings": True},
)  # fmt: skip
_MIMO = _PLAIN._replace(sinks="flags", experts=_DEEPSEEK)
_STEP = _PLAIN._replace(
    qk_norm="head",
    gate="head",
    moe="moe",
    experts=Experts(
        "moe_num_experts",
        where="listed",
        shared_inner="share_expert_dim",
        shared_name="share_expert",
        router_bias="use_moe_router_bias",
    ),
    defaults={"use_head_wise_attn_gate": True},
)
_LLAMA4 = _PLAIN._replace(
    mlp="feed_forward",
    inner="intermediate_size_mlp",
    experts=Experts("num_local_experts", "intermediate_size", "interleaved", shared_inner="intermediate_size",
                    shared_name="shared_expert"),
    defaults={"intermediate_size_mlp": 16384, "interleave_moe_layer_step": 1, "num_local_experts": 16},
)  # fmt: skip
_KIMI = _PLAIN._replace(
    experts=Experts(where="first", shared="num_shared_experts", router_bias=True, width="routed_expert_hidden_size"),
    moe="block_sparse_moe",
    special="kimi",
)
_GRANITE = WeightRule(
    mlp_bias=False, mlp="shared_mlp", moe="block_sparse_moe", mixer="mamba", experts=_MIXTRAL, special="granite"
)
_DEEPSEEK_V4 = _PLAIN._replace(
    mlp="ffn",
    experts=Experts("n_routed_experts", shared="n_shared_experts"),
    special="deepseek_v4",
    defaults={"n_shared_experts": 1},
)
_MAMBA = _PLAIN._replace(norms=1, special="none")
_BAILING = WeightRule(
    qkv_bias="use_qkv_bias", out_bias="use_bias", mlp_bias="use_bias", qk_norm="head", qk_norm_flag="use_qk_norm",
    attention="attention",
    experts=Experts(where="first", shared="num_shared_experts", router_bias="moe_router_enable_expert_bias"),
    defaults={"use_qk_norm": False},
)  # fmt: skip

RULES: Mapping[str, WeightRule] = {
    # Llama and its kin
    "llama": WeightRule(),
    "iquestcoder": WeightRule(),
    "telechat3": WeightRule(),
    "granite_swa": WeightRule(sinks="all"),
    "nemotron-nas": WeightRule(special="pruned"),
    "deci": WeightRule(special="pruned"),
    "hyperclovax": WeightRule(norms=4),
    "mistral": _PLAIN,
    "ministral": _PLAIN,
    "ministral3": _PLAIN,
    "cwm": WeightRule(),
    "arcee": WeightRule(mlp_matrices=2),
    "smollm3": WeightRule(),
    "seed_oss": WeightRule(out_bias="attention_out_bias"),
    "helium": WeightRule(out_bias=False),
    "granite": WeightRule(),
    "internlm2": WeightRule(qkv_bias="bias", out_bias="bias", mlp_bias=False),
    "internlm3": WeightRule(qkv_bias="qkv_bias", out_bias="bias", mlp_bias="bias"),
    "exaone": _PLAIN,
    "exaone4": _PLAIN._replace(qk_norm="head"),
    "minicpm": _BIASED,
    "baichuan": _PLAIN,
    "orion": _PLAIN._replace(norm_bias=True),
    "hunyuan_v1_dense": WeightRule(mlp_bias=False, qk_norm="head"),
    "ernie4_5": WeightRule(qkv_bias="use_bias", out_bias="use_bias", mlp_bias="use_bias"),
    "olmo": WeightRule(mlp_bias=False, norms=0, final_norm=0),
    "olmo2": WeightRule(mlp_bias=False, qk_norm="projection"),
    "olmo3": WeightRule(mlp_bias=False, qk_norm="projection"),
    "cohere": WeightRule(mlp_bias=False, norms=1, qk_norm="projection", qk_norm_flag="use_qk_norm"),
    "cohere2": WeightRule(mlp_bias=False, norms=1),
    "glm": _GLM,
    "glm4": _GLM._replace(norms=4),
    "glm4v_text": _GLM._replace(norms=4),
    "phi": _ALL_BIAS._replace(norms=1, head_bias=True),
    "phi3": _PLAIN,
    "stablelm": WeightRule(qkv_bias="use_qkv_bias", out_bias=False, mlp_bias=False, norm_bias=True),
    "nemotron": WeightRule(mlp_matrices=2, norm_bias=True),
    "starcoder2": WeightRule(mlp_matrices=2, norm_bias=True, qkv_bias="use_bias",
                             out_bias="use_bias", mlp_bias="use_bias"),
    "apertus": WeightRule(mlp_matrices=2, qk_norm="head"),
    # Gemma
    "gemma": _BIASED,
    "gemma2": _SANDWICH,
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "vaultgemma": _BIASED,
    "gemma4": _GEMMA4,
    "gemma4_text": _GEMMA4,
    "gemma3n": _GEMMA3._replace(special="gemma3n", defaults=_GEMMA3N),
    "gemma3n_text": _GEMMA3._replace(special="gemma3n", defaults=_GEMMA3N),
    # Qwen
    "qwen2": _QUERY_BIAS,
    "mimo": _QUERY_BIAS,
    "qwen2_vl_text": _QUERY_BIAS,
    "qwen2_5_omni_text": _QUERY_BIAS,
    "qwen2_5_vl_text": _QUERY_BIAS,
    "qwen3": _QWEN3,
    "qwen3_vl_text": _QWEN3,
    "qwen2_moe": _QUERY_BIAS._replace(experts=_STEPPED_SHARED),
    "qwen3_moe": _QWEN3._replace(experts=_STEPPED),
    "qwen3_vl_moe_text": _QWEN3._replace(experts=_STEPPED),
    "qwen3_omni_moe_text": _QWEN3._replace(experts=_STEPPED),
    "qwen3_next": _NEXT._replace(
        experts=_STEPPED_SHARED,
        defaults={"attn_output_gate": True, "num_experts": 512, "moe_intermediate_size": 512,
                  "shared_expert_intermediate_size": 512},
    ),
    "qwen3_5": _NEXT,
    "qwen3_5_text": _NEXT,
    "qwen3_5_moe": _NEXT_MOE,
    "qwen3_5_moe_text": _NEXT_MOE,
    # Mixture of experts
    "mixtral": _PLAIN._replace(experts=_MIXTRAL, moe="block_sparse_moe"),
    "phimoe": _PLAIN._replace(
        qkv_bias=True, out_bias=True, norm_bias=True, head_bias=True, experts=_MIXTRAL,
        moe="block_sparse_moe",
        defaults={"num_local_experts": 16},
    ),
    "granitemoe": _BIASED._replace(experts=_MIXTRAL, moe="block_sparse_moe"),
    "granitemoeshared": _GRANITE,
    "olmoe": WeightRule(mlp_bias=False, qk_norm="projection", experts=Experts("num_experts", "intermediate_size")),
    "flex_olmo": WeightRule(
        mlp_bias=False, qk_norm="projection", experts=Experts("num_experts", "intermediate_size"),
        defaults={"num_experts": 7},
    ),
    "minimax_m2": _PLAIN._replace(
        qk_norm="projection",
        experts=_MIXTRAL._replace(router_bias="use_routing_bias"),
        moe="block_sparse_moe",
        defaults={"use_routing_bias": True},
    ),
    "glm4_moe": _GLM._replace(experts=_DEEPSEEK, qk_norm="head", qk_norm_flag="use_qk_norm"),
    "glm4v_moe_text": _GLM._replace(experts=_DEEPSEEK, qk_norm="head", qk_norm_flag="use_qk_norm"),
    "exaone_moe": _PLAIN._replace(
        qk_norm="head",
        experts=Experts(where="first", shared="num_shared_experts", router_bias=True),
        defaults={"num_experts": 64, "num_shared_experts": 1, "moe_intermediate_size": 1024,
                  "first_k_dense_replace": 1},
    ),
    "laguna": _PLAIN._replace(
        qk_norm="head", gate="head",
        experts=_STEPPED_SHARED._replace(where="first", shared_gate=False, router_bias=True),
        defaults={"num_experts": 256, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
                  "first_k_dense_replace": 1, "use_head_wise_attn_gate": True},
    ),
    "ernie4_5_moe": WeightRule(
        qkv_bias="use_bias", out_bias="use_bias", mlp_bias="use_bias",
        experts=Experts("moe_num_experts", where="range", shared="moe_num_shared_experts",
                        router_bias="moe_use_aux_free"),
        defaults={"moe_num_experts": 64, "moe_num_shared_experts": 2, "moe_layer_start_index": 1,
                  "moe_layer_end_index": -1, "moe_layer_interval": 1, "moe_intermediate_size": 1536,
                  "moe_use_aux_free": True, "tie_word_embeddings": True},
    ),
    "dots1": WeightRule(
        mlp_bias=False, qk_norm="head", experts=_DEEPSEEK,
        defaults={"n_routed_experts": 128, "n_shared_experts": 2, "moe_intermediate_size": 1408,
                  "first_k_dense_replace": 0},
    ),
    "bailing_moe": _BAILING,
    "bailing_moe_v2": _BAILING,
    "afmoe": _PLAIN._replace(
        norms=4, qk_norm="head", gate="output",
        experts=Experts(where="dense_first", shared="num_shared_experts", router_bias=True),
        defaults={"num_experts": 64, "num_dense_layers": 1, "num_shared_experts": 2, "moe_intermediate_size": 1408},
    ),
    "gpt_oss": WeightRule(
        "attn", qkv_bias=True, out_bias=True, mlp_bias=False, sinks="all",
        experts=Experts("num_local_experts", "intermediate_size", bias=True, router_bias=True),
        defaults={"num_local_experts": 128},
    ),
    "llama4": _LLAMA4,
    "llama4_text": _LLAMA4,
    "mimo_v2_flash": _MIMO,
    "mimo_v2": _MIMO,
    "step3p5": _STEP,
    "step3p7": _STEP,
    # MLA
    "deepseek_v2": _MLA._replace(experts=_DEEPSEEK._replace(router_bias=False)),
    "deepseek_v3": _MLA,
    "kimi_k2": _MLA,
    "mistral4": _MLA._replace(
        experts=_DEEPSEEK._replace(router_bias=False),
        defaults={"n_routed_experts": 128, "n_shared_experts": 1, "moe_intermediate_size": 2048,
                  "first_k_dense_replace": 0, "q_lora_rank": 1024},
    ),
    "youtu": _BIASED._replace(defaults={"q_lora_rank": 1536}),
    "deepseek_v32": _MLA,
    "glm_moe_dsa": _MLA,
    "glm4_moe_lite": _MLA,
    "minicpm3": _BIASED,
    "longcat_flash": _PLAIN._replace(
        special="longcat", norms=4, inner="ffn_hidden_size",
        experts=Experts("n_routed_experts", "expert_ffn_hidden_size", router_bias=True, idle="zero_expert_num"),
        defaults={"zero_expert_num": 0, "n_routed_experts": 512, "expert_ffn_hidden_size": 2048,
                  "ffn_hidden_size": 12288},
    ),
    "deepseek_v4": _DEEPSEEK_V4,
    "deepseek_ref": _DEEPSEEK_V4,
    # Recurrent
    "kimi_linear": _KIMI,
    "kimi_k3": _KIMI,
    "nemotron_h": WeightRule(
        "mixer", mlp="mixer", norms=1, mlp_matrices=2, mlp_bias="mlp_bias", special="nemotron_h",
        experts=Experts("n_routed_experts", shared="n_shared_experts",
                        shared_inner="moe_shared_expert_intermediate_size",
                        router_bias=True, matrices=2, width="moe_latent_size"),
        defaults={"n_shared_experts": 1},
    ),
    "jamba": _PLAIN._replace(
        mixer="mamba", mlp="feed_forward", special="jamba",
        experts=Experts("num_experts", "intermediate_size", "period"),
        defaults={"num_experts": 16, "expert_layer_period": 2, "expert_layer_offset": 1},
    ),
    "bamba": _PLAIN._replace(mixer="mamba", mlp="feed_forward"),
    "falcon_h1": _PLAIN._replace(mixer="mamba", mlp="feed_forward", mixer_norm=False),
    "granitemoehybrid": _GRANITE,
    "zamba2": _PLAIN._replace(
        attention="shared_transformer.self_attn", mixer="mamba", norms=1, special="zamba2",
        defaults={"adapter_rank": 128, "num_mem_blocks": 1},
    ),
    "lfm2": _PLAIN._replace(
        mixer="conv", mlp="feed_forward", qk_norm="head", special="lfm2",
        defaults={"block_auto_adjust_ff_dim": True, "block_multiple_of": 256, "tie_word_embeddings": True},
    ),
    "lfm2_moe": _PLAIN._replace(
        mixer="conv", mlp="feed_forward", qk_norm="head", special="lfm2",
        experts=Experts(where="dense_first", router_bias="use_expert_bias"),
        defaults={"num_experts": 32, "num_dense_layers": 2, "moe_intermediate_size": 1792, "use_expert_bias": True,
                  "tie_word_embeddings": True},
    ),
    "mamba": _MAMBA,
    "mamba2": _MAMBA,
    "falcon_mamba": _MAMBA,
    # Older decoders
    "gpt2": _ALL_BIAS._replace(learned_positions=0),
    "gpt_bigcode": _ALL_BIAS._replace(learned_positions=0),
    "gptj": _ALL_BIAS._replace(qkv_bias=False, out_bias=False, norms=1, head_bias=True),
    "gpt_neox": _ALL_BIAS._replace(qkv_bias="attention_bias", out_bias="attention_bias"),
    "opt": _ALL_BIAS._replace(learned_positions=2),
    "persimmon": _ALL_BIAS._replace(qk_norm="head"),
    "bloom": _ALL_BIAS._replace(embedding_norm=True),
    "falcon": _FALCON,
    "RefinedWeb": _FALCON,
    "RefinedWebModel": _FALCON,
    "mpt": WeightRule(mlp_matrices=2, qkv_bias=False, out_bias=False, mlp_bias=False),
    "chatglm": WeightRule("self_attention", qkv_bias="add_qkv_bias", out_bias="add_bias_linear",
                          mlp_bias="add_bias_linear"),
}  # fmt: skip
