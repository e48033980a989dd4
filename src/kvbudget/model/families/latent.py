"""Architectures that keep one latent per token (MLA), with or without a sparse-attention indexer or compression.

Class defaults are those of the published transformers config classes (5.19); a class that ships with the checkpoint
only (openPangu, Sarvam) has none here, so its sizes must be in config.json.
"""

from collections.abc import Mapping

from kvbudget.model.compressed import compressed_drafts, compressed_layers, sourced_layers
from kvbudget.model.families.family import Family, sizes
from kvbudget.model.latent import (
    latent_drafts,
    latent_layers,
    twin_latent_layers,
    typed_latent_drafts,
    typed_latent_layers,
)
from kvbudget.model.sparse import sparse_or_sliding_drafts, sparse_or_sliding_layers


def _latent(latent: int | None, nope: int | None, rope: int | None, value: int | None) -> dict[str, object]:
    """The sizes of a latent by our names."""
    return {"kv_lora_rank": latent, "qk_nope_head_dim": nope, "qk_rope_head_dim": rope, "v_head_dim": value}


def _experts(routed: int, inner: int, dense: int, shared: int = 1) -> dict[str, object]:
    """Mixture of experts by our names; the first `dense` layers have none."""
    return {
        "n_routed_experts": routed,
        "n_shared_experts": shared,
        "moe_intermediate_size": inner,
        "first_k_dense_replace": dense,
    }


def _indexer(heads: int) -> dict[str, object]:
    """A sparse-attention indexer of 2,048 chosen tokens by our names."""
    return {"index_topk": 2048, "index_head_dim": 128, "index_n_heads": heads}


_COMMON = _latent(512, 128, 64, 128)
_GLM = _latent(512, 192, 64, 256)

_DEEPSEEK_V3 = Family(
    sizes(61, 7168, 128, 128, 18432, 129280, 4096, num_nextn_predict_layers=1, **_COMMON, **_experts(256, 2048, 3)),
    layers=latent_layers,
    draft_layers=latent_drafts,
)
_OPEN = Family({}, layers=latent_layers, draft_layers=latent_drafts)

_LONGCAT = Family(
    sizes(28, 6144, 64, None, 12288, 131072, 131072, num_nextn_predict_layers=1, **_COMMON, n_routed_experts=512,
          zero_expert_num=256, expert_ffn_hidden_size=2048),
    spelling={"num_hidden_layers": "num_layers", "intermediate_size": "ffn_hidden_size"},
    layers=twin_latent_layers,
    draft_layers=latent_drafts,
)  # fmt: skip

LATENT: Mapping[str, Family] = {
    "deepseek_v2": Family(
        sizes(32, 4096, 32, None, 11008, 102400, 2048, **_COMMON, **_experts(64, 1407, 0, shared=2)),
        layers=latent_layers,
    ),
    "deepseek_v3": _DEEPSEEK_V3,
    "kimi_k2": _DEEPSEEK_V3,
    "deepseek_v32": Family(
        sizes(61, 7168, 128, 128, 18432, 129280, 4096, **_COMMON, **_indexer(64), **_experts(256, 2048, 3)),
        layers=latent_layers,
        draft_layers=latent_drafts,
    ),
    "glm_moe_dsa": Family(
        sizes(78, 6144, 64, 64, 12288, 154880, 202752, **_GLM, **_indexer(32), **_experts(256, 2048, 3)),
        layers=latent_layers,
        draft_layers=latent_drafts,
    ),
    "hy_v4": Family(
        sizes(34, 2816, 32, 32, 6912, 120832, 262144, num_nextn_predict_layers=1, hc_mult=4, **_GLM, **_indexer(16),
              **_experts(256, 768, 1)),
        layers=typed_latent_layers,
        draft_layers=typed_latent_drafts,
    ),
    "glm4_moe_lite": Family(
        sizes(47, 2048, 20, 20, 10240, 154880, 202752, **_GLM, **_experts(64, 1536, 1)),
        layers=latent_layers,
        draft_layers=latent_drafts,
    ),
    "longcat_flash": _LONGCAT,
    "longcat_flash_ngram": _LONGCAT,
    "minicpm3": Family(
        sizes(62, 2560, 40, 40, 6400, 73448, 32768, tie_word_embeddings=True, **_latent(256, 64, 32, None)),
        layers=latent_layers,
    ),
    "mistral4": Family(
        sizes(36, 4096, 32, 32, 12288, 131072, 1048576, **_latent(256, 64, 64, 128), **_experts(128, 2048, 0)),
        layers=latent_layers,
    ),
    "youtu": Family(
        sizes(32, 2048, 16, 16, 6144, 128256, 131072, tie_word_embeddings=True, **_COMMON),
        layers=latent_layers,
    ),
    "axk1": Family(
        sizes(61, 7168, 64, 64, 18432, 163840, 32768, **_COMMON, **_experts(192, 2048, 1)),
        layers=latent_layers,
    ),
    "pangu_ultra_moe": _OPEN,
    "sarvam_mla": _OPEN._replace(draft_layers=None),
    "deepseek_v4": Family(
        sizes(43, 4096, 64, 1, 2048, 129280, 1048576, num_nextn_predict_layers=1, head_dim=512, qk_rope_head_dim=64,
              sliding_window=128, index_head_dim=128, index_n_heads=64, q_lora_rank=1024, o_groups=8, o_lora_rank=1024,
              hc_mult=4, n_routed_experts=256, n_shared_experts=1, moe_intermediate_size=2048),
        spelling={"intermediate_size": "moe_intermediate_size"},
        layers=compressed_layers,
        draft_layers=compressed_drafts,
    ),
    # vLLM 0.32 transformers_utils/configs: deepseek_v41 has no defaults; dots3_note those of DeepSeek-V3
    "deepseek_v41": Family({}, layers=sourced_layers),
    "dots3_note": _DEEPSEEK_V3._replace(layers=sparse_or_sliding_layers, draft_layers=sparse_or_sliding_drafts),
}  # fmt: skip
