"""Architectures with sliding-window or chunked layers beside full ones.

Class defaults and patterns are those of the transformers config classes (5.19, `models/*/configuration_*.py`), of vLLM
0.32 `transformers_utils/configs` for muse_glimmer and Step; which layer keeps which window is vLLM 0.32
`model_executor/models`.
"""

from collections.abc import Mapping

from kvbudget.model.attention import cohere_layers
from kvbudget.model.families.family import Family, sizes
from kvbudget.model.mixed import (
    chunked_layers,
    mimo_draft_layers,
    mimo_layers,
    step_draft_layers,
    step_layers,
    typed_draft_layers,
    typed_layers,
)
from kvbudget.model.sharing import gemma3_layers, gemma4_layers

_GEMMA3 = Family(
    sizes(26, 2304, 8, 4, 9216, 262208, 131072, head_dim=256, sliding_window=4096, sliding_window_pattern=6,
          tie_word_embeddings=True),
    window="last", layers=gemma3_layers,
)  # fmt: skip
_GEMMA4 = sizes(
    30, 2304, 8, 4, 9216, 262144, 131072, head_dim=256, sliding_window=512, sliding_window_pattern=6,
    tie_word_embeddings=True,
)  # fmt: skip
_GRANITE_SWA = Family(
    sizes(24, 2560, 20, 4, 8192, 100352, 8192, sliding_window=128, tie_word_embeddings=True),
    window="first",
)
_EXAONE4 = sizes(32, 4096, 32, 32, 16384, 102400, 2048, sliding_window=4096, sliding_window_pattern=4)
_LLAMA4 = sizes(48, 5120, 40, 8, 8192, 202048, 131072, head_dim=128, attention_chunk_size=8192)
_MIMO = sizes(
    48, 4096, 64, 4, 16384, 152576, 131072, head_dim=192, v_head_dim=128, sliding_window=128
)  # fmt: skip
_STEP = sizes(48, 5120, 40, 8, 13312, 65536, 4096)
_COHERE2 = sizes(
    40, 8192, 64, None, 22528, 256000, 8192, sliding_window=4096, sliding_window_pattern=4, tie_word_embeddings=True
)

SLIDING: Mapping[str, Family] = {
    "gemma2": Family(
        sizes(26, 2304, 8, 4, 9216, 256000, 8192, head_dim=256, sliding_window=4096, sliding_window_pattern=2,
              tie_word_embeddings=True),
        window="last",
    ),
    "vaultgemma": Family(
        sizes(26, 2304, 8, 4, 9216, 256000, 8192, head_dim=256, sliding_window=4096, sliding_window_pattern=2,
              tie_word_embeddings=True),
        window="last",
    ),
    "gemma3_text": _GEMMA3,
    "gemma3n_text": Family(
        sizes(35, 2048, 8, 2, 16384, 262400, 32768, head_dim=256, sliding_window=512, sliding_window_pattern=5,
              num_kv_shared_layers=15, tie_word_embeddings=True),
        window="last", layers=gemma3_layers,
    ),
    "gemma4_text": Family(_GEMMA4, window="last", layers=gemma4_layers),
    "gemma4_unified_text": Family(
        {**_GEMMA4, "max_position_embeddings": 262144, "sliding_window": 1024},
        window="last", layers=gemma4_layers,
    ),
    # Its class has no attention_k_eq_v, which then counts as set.
    "diffusion_gemma_text": Family(
        {**_GEMMA4, "attention_k_eq_v": True}, window="last", layers=gemma4_layers
    ),
    "cohere2": Family(_COHERE2, window="last", layers=cohere_layers),
    "cohere2_moe": Family(
        {**_COHERE2, "head_dim": 128, "prefix_dense_sliding_window_pattern": 1, "first_k_dense_replace": 0},
        window="prefixed", layers=cohere_layers,
    ),
    "cohere_compass_text": Family(
        {**_COHERE2, "sliding_window_pattern": None}, window="named"
    ),
    "gpt_oss": Family(
        sizes(36, 2880, 64, 8, 2880, 201088, 131072, head_dim=64, sliding_window=128, sliding_window_pattern=2),
        window="last",
    ),
    "exaone4": Family(_EXAONE4, window="last"),
    "exaone_moe": Family(
        _EXAONE4, window="last", layers=typed_layers, draft_layers=typed_draft_layers
    ),
    "olmo3": Family(
        sizes(32, 4096, 32, None, 11008, 50304, 2048, sliding_window=4096, sliding_window_pattern=4),
        window="last",
    ),
    "afmoe": Family(
        sizes(32, 2048, 16, None, 6144, 200192, 16384, head_dim=128, sliding_window=1024, sliding_window_pattern=4),
        spelling={"sliding_window_pattern": "global_attn_every_n_layers"}, window="last",
    ),
    "cwm": Family(
        sizes(64, 6144, 48, 8, 21504, 128256, 131072, head_dim=128, sliding_window=8192),
        window="first",
    ),
    "granite_swa": _GRANITE_SWA,
    "granitemoe_swa": _GRANITE_SWA._replace(
        defaults=sizes(32, 4096, 32, None, 11008, 32000, 2048, sliding_window=128)
    ),
    "muse_glimmer_text": Family(
        sizes(52, 6656, 32, 2, 19968, 202048, 16384, head_dim=128, sliding_window=2048),
        window="backward",
    ),
    "laguna": Family(
        sizes(40, 2048, 48, 8, 8192, 100352, 131072, head_dim=128, sliding_window=512), window="named"
    ),
    "mellum": Family(
        sizes(28, 2304, 32, 4, 7168, 98304, 131072, head_dim=128, sliding_window=1024), window="named"
    ),
    "ministral": Family(
        sizes(32, 4096, 32, 8, 14336, 32000, 131072, sliding_window=4096), window="always"
    ),
    "dots1": Family(
        sizes(62, 4608, 32, 32, 10944, 152064, 2048, sliding_window=4096, max_window_layers=62),
        window="beyond",
    ),
    "llama4_text": Family(_LLAMA4, layers=chunked_layers),
    "llama4": Family(_LLAMA4, layers=chunked_layers),
    "mimo_v2_flash": Family(_MIMO, layers=mimo_layers, draft_layers=mimo_draft_layers),
    "mimo_v2": Family(_MIMO, layers=mimo_layers, draft_layers=mimo_draft_layers),
    "step3p5": Family(
        _STEP, spelling={"num_key_value_heads": "num_attention_groups"}, layers=step_layers,
        draft_layers=step_draft_layers,
    ),
    "step3p7": Family(
        {**_STEP, "max_position_embeddings": 128000}, spelling={"num_key_value_heads": "num_attention_groups"},
        layers=step_layers, draft_layers=step_draft_layers,
    ),
}  # fmt: skip
