"""Architectures whose layers all keep the same attention cache: defaults, spellings and window.

Class defaults are those of the published transformers config classes (5.19, `models/*/configuration_*.py`), of the
checkpoint's own config class for internlm2, exaone and chatglm; a key that is missing in config.json means the default.
"""

from collections.abc import Mapping
from types import MappingProxyType

from kvbudget.model.attention import one_draft_layer
from kvbudget.model.families.family import Family, sizes
from kvbudget.model.mixed import llama_layers

_GPT2_SPELLING = MappingProxyType(
    {
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "max_position_embeddings": "n_positions",
        "intermediate_size": "n_inner",
    }
)

_LLAMA = sizes(32, 4096, 32, None, 11008, 32000, 2048)
_QWEN2_VL = Family(
    sizes(80, 8192, 64, 8, 29568, 152064, 32768, sliding_window=4096, max_window_layers=80),
    window="switch",
)

_FALCON = Family(
    sizes(32, 4544, 71, None, None, 65024, 2048, multi_query=True, parallel_attn=True, tie_word_embeddings=True),
    spelling={"num_key_value_heads": "num_kv_heads", "intermediate_size": "ffn_hidden_size"},
)
_REFINED_WEB_SPELLING = {
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "num_key_value_heads": "n_head_kv",
}
_REFINED_WEB = _FALCON._replace(
    defaults={**_FALCON.defaults, "max_position_embeddings": None}, spelling=_REFINED_WEB_SPELLING
)

UNIFORM: Mapping[str, Family] = {
    # Llama and its kin
    "llama": Family(_LLAMA, layers=llama_layers),
    "hyperclovax": Family(_LLAMA),
    "internlm3": Family(sizes(32, 4096, 32, None, 11008, 128512, 32768, head_dim=None)),
    "mistral": Family(sizes(32, 4096, 32, 8, 14336, 32000, 131072, sliding_window=4096), window="always"),
    "ministral3": Family(sizes(34, 4096, 32, 8, 14336, 131072, 262144, head_dim=128), window="always"),
    "arcee": Family(sizes(32, 2560, 32, None, 18432, 32000, 4096)),
    "smollm3": Family(sizes(36, 2048, 16, 4, 11008, 128256, 32768, tie_word_embeddings=True), window="norope"),
    "seed_oss": Family(
        sizes(64, 4096, 80, 8, 27648, 155136, 524288, head_dim=128, attention_bias=True),
    ),
    "helium": Family(sizes(24, 2560, 20, 20, 7040, 48000, 4096, head_dim=128)),
    "granite": Family(_LLAMA),
    "olmo": Family(sizes(32, 4096, 32, None, 11008, 50304, 2048)),
    "olmo2": Family(sizes(32, 4096, 32, None, 11008, 50304, 2048)),
    "apertus": Family(sizes(32, 4096, 32, None, 14336, 131072, 65536)),
    "hunyuan_v1_dense": Family(sizes(32, 4096, 32, None, 11008, 290943, 2048)),
    "ernie4_5": Family(
        sizes(18, 1024, 16, 2, 3072, 103424, 131072, head_dim=128, tie_word_embeddings=True),
    ),
    "internlm2": Family(
        sizes(32, 4096, 32, None, 11008, 103168, 2048, bias=True),
    ),
    "exaone": Family(
        sizes(32, 4096, 32, None, 16384, 102400, 2048),
        spelling={"num_hidden_layers": "num_layers"},
    ),
    "gemma": Family(
        sizes(28, 3072, 16, 16, 24576, 256000, 8192, head_dim=256, tie_word_embeddings=True),
    ),
    "glm": Family(
        sizes(40, 4096, 32, 2, 13696, 151552, 131072, head_dim=128, attention_bias=True),
    ),
    "glm4": Family(
        sizes(40, 4096, 32, 2, 13696, 151552, 131072, head_dim=128, attention_bias=True),
    ),
    "phi3": Family(sizes(32, 3072, 32, None, 8192, 32064, 4096), window="always"),
    "phi": Family(sizes(24, 2048, 32, None, 8192, 51200, 2048)),
    "cohere": Family(sizes(40, 8192, 64, None, 22528, 256000, 8192, tie_word_embeddings=True)),
    "stablelm": Family(
        sizes(32, 2560, 32, 32, 6912, 50304, 4096),
    ),
    "nemotron": Family(sizes(32, 6144, 48, None, 24576, 256000, 4096)),
    "starcoder2": Family(
        sizes(30, 3072, 24, 2, 12288, 49152, 4096, use_bias=True, tie_word_embeddings=True),
        window="always",
    ),
    # Qwen
    "qwen2": Family(
        sizes(32, 4096, 32, 32, 22016, 151936, 32768, sliding_window=4096, max_window_layers=28),
        window="switch",
    ),
    "qwen3": Family(
        sizes(32, 4096, 32, 32, 22016, 151936, 32768, head_dim=128, sliding_window=4096, max_window_layers=28),
        window="switch",
    ),
    "qwen2_vl_text": _QWEN2_VL,
    "qwen2_5_vl_text": _QWEN2_VL,
    "qwen3_vl_text": Family(sizes(32, 4096, 32, 32, 22016, 151936, 128000, head_dim=128)),
    # Mixture of experts
    "mixtral": Family(
        sizes(32, 4096, 32, 8, 14336, 32000, 131072, num_experts=8),
        spelling={"num_experts": "num_local_experts"},
        window="always",
    ),
    "granitemoe": Family(
        {**_LLAMA, "num_experts": 8},
        spelling={"num_experts": "num_local_experts"},
    ),
    "olmoe": Family(
        sizes(16, 2048, 16, None, 2048, 50304, 4096, num_experts=64),
    ),
    "minimax_m2": Family(
        sizes(62, 3072, 48, 8, 1536, 200064, 196608, head_dim=128, num_experts=256),
        spelling={"num_experts": "num_local_experts"},
    ),
    "qwen2_moe": Family(
        sizes(
            24,
            2048,
            16,
            16,
            5632,
            151936,
            32768,
            sliding_window=4096,
            max_window_layers=28,
            moe_intermediate_size=1408,
            num_experts=60,
            shared_expert_intermediate_size=5632,
            decoder_sparse_step=1,
        ),
        window="switch",
    ),
    "qwen3_moe": Family(
        sizes(
            24,
            2048,
            32,
            4,
            6144,
            151936,
            32768,
            sliding_window=4096,
            moe_intermediate_size=768,
            num_experts=128,
            decoder_sparse_step=1,
        ),
        window="flag",
    ),
    "qwen3_vl_moe_text": Family(
        sizes(
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
    ),
    "glm4_moe": Family(
        sizes(
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
        draft_layers=one_draft_layer,
    ),
    "phimoe": Family(sizes(32, 4096, 32, 8, 6400, 32064, 131072), window="always"),
    "ernie4_5_moe": Family(sizes(28, 2560, 20, 4, 12288, 103424, 131072), draft_layers=one_draft_layer),
    # Older decoders, each with its own spelling
    "gpt2": Family(
        sizes(12, 768, 12, None, None, 50257, 1024, tie_word_embeddings=True),
        spelling=_GPT2_SPELLING,
    ),
    "gpt_bigcode": Family(
        sizes(12, 768, 12, None, None, 50257, 1024, tie_word_embeddings=True, multi_query=True),
        spelling=_GPT2_SPELLING,
    ),
    "gptj": Family(
        sizes(28, 4096, 16, None, None, 50400, 2048),
        spelling=_GPT2_SPELLING,
    ),
    "gpt_neox": Family(
        sizes(44, 6144, 64, None, 24576, 50432, 2048, attention_bias=True),
    ),
    "opt": Family(
        sizes(12, 768, 12, None, 3072, 50272, 2048, tie_word_embeddings=True),
        spelling={"intermediate_size": "ffn_dim"},
    ),
    "bloom": Family(
        sizes(2, 64, 8, None, None, 250880, None, tie_word_embeddings=True),
        spelling={"num_hidden_layers": "n_layer", "num_attention_heads": "n_head"},
    ),
    "falcon": _FALCON,
    "RefinedWeb": _REFINED_WEB,
    "RefinedWebModel": _REFINED_WEB,
    "mpt": Family(
        sizes(24, 2048, 16, None, None, 50368, 2048, no_bias=True, expansion_ratio=4, tie_word_embeddings=True),
        spelling={
            "hidden_size": "d_model",
            "num_hidden_layers": "n_layers",
            "num_attention_heads": "n_heads",
            "max_position_embeddings": "max_seq_len",
        },
    ),
    "chatglm": Family(
        sizes(28, 4096, 32, None, 13696, 65024, 2048, head_dim=128),
        spelling={
            "num_hidden_layers": "num_layers",
            "head_dim": "kv_channels",
            "intermediate_size": "ffn_hidden_size",
            "vocab_size": "padded_vocab_size",
            "max_position_embeddings": "seq_length",
        },
    ),
}
