"""Architectures with recurrent-state layers (Mamba, gated delta net, KDA, linear attention, convolution).

Class defaults are those of the published transformers config classes (5.19), of vLLM 0.32's own class for Kimi Linear,
and of the getattr defaults in vLLM 0.32's model file for Bailing, whose class ships with the checkpoint only.
"""

from collections.abc import Mapping

from kvbudget.model.families.family import Family, sizes
from kvbudget.model.hybrids import (
    bamba_layers,
    delta_net_drafts,
    delta_net_layers,
    falcon_h1_layers,
    granite_layers,
    jamba_layers,
    lfm2_layers,
    lightning_layers,
    mamba2_layers,
    mamba_layers,
    nemotron_h_drafts,
    nemotron_h_layers,
    olmo_hybrid_layers,
    zamba2_layers,
)
from kvbudget.model.latent import latent_drafts
from kvbudget.model.latent_hybrids import bailing_layers, kimi_linear_layers

_MAMBA = Family(
    {
        "num_hidden_layers": 32,
        "hidden_size": 768,
        "vocab_size": 50280,
        "num_attention_heads": 0,
        "state_size": 16,
        "expand": 2,
        "conv_kernel": 4,
        "tie_word_embeddings": True,
    },
    layers=mamba_layers,
)
_MAMBA2_MIXER: dict[str, object] = {
    "mamba_n_heads": 128,
    "mamba_d_head": "auto",
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}
DELTA_NET: dict[str, object] = {
    "head_dim": 256,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    # vLLM 0.32 `qwen3_next_mtp.py`, `qwen3_5_mtp.py`: one layer when the key is missing
    "num_nextn_predict_layers": 1,
}
QWEN3_5_SPELLING = {"num_nextn_predict_layers": "mtp_num_hidden_layers"}
_NEMOTRON_H = Family(
    sizes(
        52,
        4096,
        32,
        8,
        21504,
        131072,
        4096,
        head_dim=128,
        ssm_state_size=128,
        mamba_num_heads=128,
        mamba_head_dim=64,
        n_groups=8,
        conv_kernel=4,
        mamba_ssm_cache_dtype="float32",
        n_routed_experts=8,
        n_shared_experts=1,
        moe_intermediate_size=7688,
        moe_shared_expert_intermediate_size=7688,
    ),
    spelling={"n_groups": "mamba_n_groups", "conv_kernel": "mamba_d_conv"},  # the class takes both spellings
    layers=nemotron_h_layers,
    draft_layers=nemotron_h_drafts,
)
_MINIMAX = Family(sizes(32, 4096, 32, 8, 14336, 32000, 131072, head_dim=None), layers=lightning_layers)

RECURRENT: Mapping[str, Family] = {
    "mamba": _MAMBA,
    "falcon_mamba": _MAMBA,
    "mamba2": Family(
        {
            "num_hidden_layers": 64,
            "hidden_size": 4096,
            "vocab_size": 32768,
            "num_attention_heads": 0,
            "num_heads": 128,
            "head_dim": 64,
            "state_size": 128,
            "n_groups": 8,
            "expand": 2,
            "conv_kernel": 4,
        },
        layers=mamba2_layers,
    ),
    "jamba": Family(
        sizes(
            32,
            4096,
            32,
            8,
            14336,
            65536,
            262144,
            attn_layer_period=8,
            attn_layer_offset=4,
            mamba_d_state=16,
            mamba_d_conv=4,
            mamba_expand=2,
            num_experts=16,
            expert_layer_period=2,
            expert_layer_offset=1,
        ),
        layers=jamba_layers,
    ),
    "bamba": Family(sizes(32, 4096, 32, 8, 14336, 128000, 262144, **_MAMBA2_MIXER), layers=bamba_layers),
    "granitemoehybrid": Family(
        sizes(
            32, 4096, 32, None, 11008, 32000, 2048, **_MAMBA2_MIXER, num_local_experts=8, shared_intermediate_size=1024
        ),
        layers=granite_layers,
    ),
    "falcon_h1": Family(
        sizes(32, 4096, 32, 8, 14336, 128000, 8192, **{**_MAMBA2_MIXER, "mamba_d_ssm": 1024}),
        layers=falcon_h1_layers,
    ),
    "zamba2": Family(
        sizes(
            54,
            2560,
            32,
            None,
            10240,
            32000,
            4096,
            mamba_d_state=64,
            mamba_d_conv=4,
            mamba_expand=2,
            mamba_ngroups=1,
            n_mamba_heads=8,
            tie_word_embeddings=True,
        ),
        layers=zamba2_layers,
    ),
    "nemotron_h": _NEMOTRON_H,
    "nemotron_h_puzzle": _NEMOTRON_H,  # differs from layer to layer in its experts only
    "lfm2": Family(sizes(32, 2560, 32, 8, 12288, 65536, 128000, conv_L_cache=3), layers=lfm2_layers),
    "lfm2_moe": Family(
        sizes(
            32,
            2048,
            32,
            8,
            7168,
            65536,
            128000,
            conv_L_cache=3,
            moe_intermediate_size=1792,
            num_dense_layers=2,
            num_experts=32,
        ),
        layers=lfm2_layers,
    ),
    "qwen3_next": Family(
        sizes(
            48,
            2048,
            16,
            2,
            5632,
            151936,
            32768,
            **DELTA_NET,
            moe_intermediate_size=512,
            shared_expert_intermediate_size=512,
            num_experts=512,
            decoder_sparse_step=1,
        ),
        layers=delta_net_layers,
        draft_layers=delta_net_drafts,
    ),
    "qwen3_5_text": Family(
        sizes(32, 4096, 16, 4, 12288, 248320, 32768, **DELTA_NET),
        spelling=QWEN3_5_SPELLING,
        layers=delta_net_layers,
        draft_layers=delta_net_drafts,
    ),
    "qwen3_5_moe_text": Family(
        sizes(40, 2048, 16, 2, None, 248320, 32768, **DELTA_NET),
        spelling=QWEN3_5_SPELLING,
        layers=delta_net_layers,
        draft_layers=delta_net_drafts,
    ),
    "olmo_hybrid": Family(sizes(32, 3840, 30, None, 11008, 100352, 65536), layers=olmo_hybrid_layers),
    "minimax": _MINIMAX,
    "minimax_text_01": _MINIMAX,
    "minimax_m1": _MINIMAX,
    "kimi_linear": Family(
        sizes(32, 4096, 32, None, 11008, 163840, 4096, num_nextn_predict_layers=0),
        layers=kimi_linear_layers,
        draft_layers=latent_drafts,
    ),
    "bailing_hybrid": Family(
        {
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
            "short_conv_kernel_size": 4,
        },
        layers=bailing_layers,
        draft_layers=latent_drafts,
    ),
}
