"""Architectures with recurrent or convolved layers beside caches that no other family has; few models are of them.

GLM5-Next and Qwen4-Exp (pooled keys), Inkling (convolved keys and values), Plamo 2.
"""

from collections.abc import Mapping

from kvbudget.model.convolved import convolved_drafts, convolved_layers
from kvbudget.model.families.family import Family, sizes
from kvbudget.model.families.recurrent import DELTA_NET, QWEN3_5_SPELLING
from kvbudget.model.plamo import plamo2_layers
from kvbudget.model.pooled import pooled_drafts, pooled_latent_drafts, pooled_latent_layers, pooled_layers

_GLM5_NEXT = Family(
    sizes(
        45,
        4096,
        64,
        64,
        12288,
        154880,
        1048576,
        kv_lora_rank=512,
        qk_nope_head_dim=256,
        qk_rope_head_dim=0,
        v_head_dim=256,
        index_head_dim=128,
        index_kpool=16,
        full_attention_interval=4,
        linear_head_dim=128,
        linear_num_heads=64,
        linear_conv_kernel_dim=4,
    ),
    layers=pooled_latent_layers,
    draft_layers=pooled_latent_drafts,
)
# vLLM 0.32 models/inkling/configs.py; its other defaults are not those of the published config class
_INKLING = Family(
    {"sliding_window_size": 512, "conv_kernel_size": 4, "vocab_size": 201024},
    layers=convolved_layers,
    draft_layers=convolved_drafts,
)

POOLED: Mapping[str, Family] = {
    # its config class ships in the checkpoint
    "plamo2": Family({}, layers=plamo2_layers),
    "glm5_next": _GLM5_NEXT,
    "glm5_next_text": _GLM5_NEXT,
    "inkling_model": _INKLING,
    "inkling_text": _INKLING,
    "qwen4_exp_text": Family(
        sizes(
            40,
            2048,
            16,
            2,
            None,
            248320,
            32768,
            **DELTA_NET,
            hc_count=4,
            ple_conv_kernel_size=4,
            ngram_size=3,
        ),
        spelling=QWEN3_5_SPELLING,
        layers=pooled_layers,
        draft_layers=pooled_drafts,
    ),
}
