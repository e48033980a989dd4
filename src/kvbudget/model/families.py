"""Which architectures we know: their class defaults, spellings, window rule and weight rule, by `model_type`.

Class defaults are those of the published transformers config classes (5.19, `models/*/configuration_*.py`), of the
checkpoint's own config class for internlm2, exaone and chatglm; a key that is missing in config.json means the default.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

_NO_SPELLING: Mapping[str, str] = MappingProxyType({})
_GPT2_SPELLING = MappingProxyType(
    {
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "max_position_embeddings": "n_positions",
        "intermediate_size": "n_inner",
    }
)


class WeightRule(NamedTuple):
    """How the parameters of a family are counted; a bias is a constant, or the name of the flag that decides it."""

    mlp_matrices: int = 3  # gate, up, down; 2 without a gate
    qkv_bias: bool | str = "attention_bias"
    out_bias: bool | str = "attention_bias"
    mlp_bias: bool | str = "mlp_bias"
    norms: int = 2  # vectors of hidden_size in a layer
    norm_bias: bool = False
    qk_norm: str = ""  # "head": one vector of head_dim for each of q and k; "projection": of all heads
    experts: str = ""  # "all" layers, "qwen" (sparse step, listed dense layers), "glm" (first layers dense)
    learned_positions: int = -1  # extra rows of a learned position table; -1: none
    head_bias: bool = False
    final_norm: int = 1
    embedding_norm: bool = False


class Family(NamedTuple):
    """One config class: what a missing key means, how keys are spelled, and when its window is active.

    `window`: "never" (the class has none), "always" (active when sliding_window is not null), "switch"
    (use_sliding_window and max_window_layers decide). `weights` None: attention is known, the parameter count is not.
    """

    defaults: Mapping[str, object]
    spelling: Mapping[str, str] = _NO_SPELLING
    window: str = "never"
    weights: WeightRule | None = WeightRule()


def _sizes(
    layers: int, hidden: int, heads: int, kv: int | None, inner: int | None, vocab: int, positions: int, **more: object
) -> dict[str, object]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": inner,
        "vocab_size": vocab,
        "max_position_embeddings": positions,
        **more,
    }


_PLAIN = WeightRule(mlp_matrices=2, norm_bias=True)
_NO_BIAS = WeightRule(qkv_bias=False, out_bias=False, mlp_bias=False)
_ALL_BIAS = WeightRule(mlp_matrices=2, qkv_bias=True, out_bias=True, mlp_bias=True, norm_bias=True)
_QWEN2 = WeightRule(qkv_bias=True, out_bias=False, mlp_bias=False)
_QWEN3 = WeightRule(mlp_bias=False, qk_norm="head")
_LLAMA = _sizes(32, 4096, 32, None, 11008, 32000, 2048)
_QWEN2_VL = Family(_sizes(80, 8192, 64, 8, 29568, 152064, 32768, max_window_layers=80), window="switch", weights=_QWEN2)

_FALCON = Family(
    _sizes(32, 4544, 71, None, None, 65024, 2048, multi_query=True, parallel_attn=True, tie_word_embeddings=True),
    spelling={"num_key_value_heads": "num_kv_heads", "intermediate_size": "ffn_hidden_size"},
    weights=_PLAIN._replace(qkv_bias="bias", out_bias="bias", mlp_bias="bias"),
)
_REFINED_WEB_SPELLING = {
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "num_key_value_heads": "n_head_kv",
}

FAMILIES: Mapping[str, Family] = {
    # Llama and its kin
    "llama": Family(_LLAMA),
    "hyperclovax": Family(_LLAMA, weights=None),
    "internlm3": Family(_sizes(32, 4096, 32, None, 11008, 128512, 32768, head_dim=None), weights=None),
    "mistral": Family(
        _sizes(32, 4096, 32, 8, 14336, 32000, 131072, sliding_window=4096), window="always", weights=_NO_BIAS
    ),
    "ministral3": Family(
        _sizes(34, 4096, 32, 8, 14336, 131072, 262144, head_dim=128), window="always", weights=_NO_BIAS
    ),
    "arcee": Family(_sizes(32, 2560, 32, None, 18432, 32000, 4096), weights=WeightRule(mlp_matrices=2)),
    "smollm3": Family(_sizes(36, 2048, 16, 4, 11008, 128256, 32768, tie_word_embeddings=True), window="switch"),
    "seed_oss": Family(
        _sizes(64, 4096, 80, 8, 27648, 155136, 524288, head_dim=128, attention_bias=True),
        weights=WeightRule(out_bias="attention_out_bias"),
    ),
    "helium": Family(_sizes(24, 2560, 20, 20, 7040, 48000, 4096, head_dim=128), weights=WeightRule(out_bias=False)),
    "granite": Family(_LLAMA),
    "olmo": Family(
        _sizes(32, 4096, 32, None, 11008, 50304, 2048), weights=WeightRule(mlp_bias=False, norms=0, final_norm=0)
    ),
    "olmo2": Family(
        _sizes(32, 4096, 32, None, 11008, 50304, 2048), weights=WeightRule(mlp_bias=False, qk_norm="projection")
    ),
    "apertus": Family(_sizes(32, 4096, 32, None, 14336, 131072, 65536), weights=None),
    "hunyuan_v1_dense": Family(
        _sizes(32, 4096, 32, None, 11008, 290943, 2048), weights=WeightRule(mlp_bias=False, qk_norm="head")
    ),
    "ernie4_5": Family(
        _sizes(18, 1024, 16, 2, 3072, 103424, 131072, head_dim=128, tie_word_embeddings=True),
        weights=WeightRule(qkv_bias="use_bias", out_bias="use_bias", mlp_bias="use_bias"),
    ),
    "internlm2": Family(
        _sizes(32, 4096, 32, None, 11008, 103168, 2048, bias=True),
        weights=WeightRule(qkv_bias="bias", out_bias="bias", mlp_bias=False),
    ),
    "exaone": Family(
        _sizes(32, 4096, 32, None, 16384, 102400, 2048),
        spelling={"num_hidden_layers": "num_layers"},
        weights=_NO_BIAS,
    ),
    "gemma": Family(
        _sizes(28, 3072, 16, 16, 24576, 256000, 8192, head_dim=256, tie_word_embeddings=True),
        weights=WeightRule(mlp_bias=False),
    ),
    "glm": Family(
        _sizes(40, 4096, 32, 2, 13696, 151552, 131072, head_dim=128, attention_bias=True),
        weights=WeightRule(out_bias=False, mlp_bias=False),
    ),
    "glm4": Family(
        _sizes(40, 4096, 32, 2, 13696, 151552, 131072, head_dim=128, attention_bias=True),
        weights=WeightRule(out_bias=False, mlp_bias=False, norms=4),
    ),
    "phi3": Family(_sizes(32, 3072, 32, None, 8192, 32064, 4096), window="always", weights=_NO_BIAS),
    "phi": Family(_sizes(24, 2048, 32, None, 8192, 51200, 2048), weights=_ALL_BIAS._replace(norms=1, head_bias=True)),
    "cohere": Family(
        _sizes(40, 8192, 64, None, 22528, 256000, 8192, tie_word_embeddings=True), weights=_NO_BIAS._replace(norms=1)
    ),
    "stablelm": Family(
        _sizes(32, 2560, 32, 32, 6912, 50304, 4096),
        weights=WeightRule(qkv_bias="use_qkv_bias", out_bias=False, mlp_bias=False, norm_bias=True),
    ),
    "nemotron": Family(_sizes(32, 6144, 48, None, 24576, 256000, 4096), weights=_PLAIN),
    "starcoder2": Family(
        _sizes(30, 3072, 24, 2, 12288, 49152, 4096, use_bias=True, tie_word_embeddings=True),
        window="always",
        weights=_PLAIN._replace(qkv_bias="use_bias", out_bias="use_bias", mlp_bias="use_bias"),
    ),
    # Qwen
    "qwen2": Family(
        _sizes(32, 4096, 32, 32, 22016, 151936, 32768, max_window_layers=28), window="switch", weights=_QWEN2
    ),
    "qwen3": Family(
        _sizes(32, 4096, 32, 32, 22016, 151936, 32768, head_dim=128, max_window_layers=28),
        window="switch",
        weights=_QWEN3,
    ),
    "qwen2_vl_text": _QWEN2_VL,
    "qwen2_5_vl_text": _QWEN2_VL,
    "qwen3_vl_text": Family(_sizes(32, 4096, 32, 32, 22016, 151936, 128000, head_dim=128), weights=_QWEN3),
    # Mixture of experts
    "mixtral": Family(
        _sizes(32, 4096, 32, 8, 14336, 32000, 131072, num_experts=8),
        spelling={"num_experts": "num_local_experts"},
        window="always",
        weights=_NO_BIAS._replace(experts="all"),
    ),
    "granitemoe": Family(
        {**_LLAMA, "num_experts": 8},
        spelling={"num_experts": "num_local_experts"},
        weights=WeightRule(mlp_bias=False, experts="all"),
    ),
    "olmoe": Family(
        _sizes(16, 2048, 16, None, 2048, 50304, 4096, num_experts=64),
        weights=WeightRule(mlp_bias=False, qk_norm="projection", experts="all"),
    ),
    "minimax_m2": Family(
        _sizes(62, 3072, 48, 8, 1536, 200064, 196608, head_dim=128, num_experts=256),
        spelling={"num_experts": "num_local_experts"},
        weights=_NO_BIAS._replace(qk_norm="projection", experts="all"),
    ),
    "qwen2_moe": Family(
        _sizes(
            24,
            2048,
            16,
            16,
            5632,
            151936,
            32768,
            max_window_layers=28,
            moe_intermediate_size=1408,
            num_experts=60,
            shared_expert_intermediate_size=5632,
            decoder_sparse_step=1,
        ),
        window="switch",
        weights=_QWEN2._replace(experts="qwen"),
    ),
    "qwen3_moe": Family(
        _sizes(24, 2048, 32, 4, 6144, 151936, 32768, moe_intermediate_size=768, num_experts=128, decoder_sparse_step=1),
        window="switch",
        weights=_QWEN3._replace(experts="qwen"),
    ),
    "qwen3_vl_moe_text": Family(
        _sizes(
            24,
            2048,
            16,
            16,
            5632,
            151936,
            128000,
            moe_intermediate_size=1408,
            num_experts=60,
            decoder_sparse_step=1,
            tie_word_embeddings=True,
        ),
        weights=_QWEN3._replace(experts="qwen"),
    ),
    "glm4_moe": Family(
        _sizes(
            46,
            4096,
            96,
            8,
            10944,
            151552,
            131072,
            moe_intermediate_size=1408,
            num_experts=128,
            n_shared_experts=1,
            first_k_dense_replace=1,
        ),
        spelling={"num_experts": "n_routed_experts"},
        weights=WeightRule(out_bias=False, mlp_bias=False, experts="glm", qk_norm="use_qk_norm"),
    ),
    "phimoe": Family(_sizes(32, 4096, 32, 8, 6400, 32064, 131072), window="always", weights=None),
    "ernie4_5_moe": Family(_sizes(28, 2560, 20, 4, 12288, 103424, 131072), weights=None),
    # Older decoders, each with its own spelling
    "gpt2": Family(
        _sizes(12, 768, 12, None, None, 50257, 1024, tie_word_embeddings=True),
        spelling=_GPT2_SPELLING,
        weights=_ALL_BIAS._replace(learned_positions=0),
    ),
    "gpt_bigcode": Family(
        _sizes(12, 768, 12, None, None, 50257, 1024, tie_word_embeddings=True, multi_query=True),
        spelling=_GPT2_SPELLING,
        weights=_ALL_BIAS._replace(learned_positions=0),
    ),
    "gptj": Family(
        _sizes(28, 4096, 16, None, None, 50400, 2048),
        spelling=_GPT2_SPELLING,
        weights=_ALL_BIAS._replace(qkv_bias=False, out_bias=False, norms=1, head_bias=True),
    ),
    "gpt_neox": Family(
        _sizes(44, 6144, 64, None, 24576, 50432, 2048, attention_bias=True),
        weights=_ALL_BIAS._replace(qkv_bias="attention_bias", out_bias="attention_bias"),
    ),
    "opt": Family(
        _sizes(12, 768, 12, None, 3072, 50272, 2048, tie_word_embeddings=True),
        spelling={"intermediate_size": "ffn_dim"},
        weights=_ALL_BIAS._replace(learned_positions=2),
    ),
    "bloom": Family(
        _sizes(2, 64, 8, None, None, 250880, 2048, tie_word_embeddings=True),
        spelling={"num_hidden_layers": "n_layer", "num_attention_heads": "n_head"},
        weights=_ALL_BIAS._replace(embedding_norm=True),
    ),
    "falcon": _FALCON,
    "RefinedWeb": _FALCON._replace(spelling=_REFINED_WEB_SPELLING),
    "RefinedWebModel": _FALCON._replace(spelling=_REFINED_WEB_SPELLING),
    "mpt": Family(
        _sizes(24, 2048, 16, None, None, 50368, 2048, no_bias=True, expansion_ratio=4, tie_word_embeddings=True),
        spelling={
            "hidden_size": "d_model",
            "num_hidden_layers": "n_layers",
            "num_attention_heads": "n_heads",
            "max_position_embeddings": "max_seq_len",
        },
        weights=WeightRule(mlp_matrices=2, qkv_bias=False, out_bias=False, mlp_bias=False),
    ),
    "chatglm": Family(
        _sizes(28, 4096, 32, None, 13696, 65024, 2048, head_dim=128),
        spelling={
            "num_hidden_layers": "num_layers",
            "head_dim": "kv_channels",
            "intermediate_size": "ffn_hidden_size",
            "vocab_size": "padded_vocab_size",
            "max_position_embeddings": "seq_length",
        },
        weights=None,
    ),
}

# Multimodal wrappers whose text part is one of the above, and the text type when the nested config names none.
WRAPPERS: Mapping[str, str] = {
    "qwen2_vl": "qwen2_vl_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "qwen2_audio": "qwen2",
    "llava": "llama",
    "llava_next": "llama",
    "llava_next_video": "llama",
    "llava_onevision": "qwen2",
    "mistral3": "mistral",
    "internvl": "qwen2",
    "internvl_chat": "internlm2",
    "idefics3": "llama",
    "smolvlm": "llama",
    "paligemma": "gemma",
    "ultravox": "llama",
    "glm4v": "glm4",
}
