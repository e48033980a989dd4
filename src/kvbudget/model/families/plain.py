"""Further architectures with one attention for all layers, of which only the caches are known, not the weights.

Those with an empty first argument ship their config class in the checkpoint: nothing has a default, every size must be
in config.json. The class of the layers is vLLM 0.32 `model_executor/models`.
"""

from collections.abc import Mapping
from types import MappingProxyType

from kvbudget.model.attention import grouped_layers, one_draft_layer
from kvbudget.model.families.family import Family, sizes
from kvbudget.model.sparse import indexed_drafts, indexed_layers

_LLAMA = sizes(32, 4096, 32, None, 11008, 32000, 2048)
_HUNYUAN = sizes(32, 4096, 32, None, 11008, 290943, 2048)
_GPT2_SPELLING = MappingProxyType(
    {
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "max_position_embeddings": "n_positions",
    }
)
_NO_DEFAULTS: Mapping[str, object] = MappingProxyType({})
_FROM_CHECKPOINT = Family(_NO_DEFAULTS)
_ERNIE_MOE = Family(sizes(28, 2560, 20, 4, 12288, 103424, 131072, tie_word_embeddings=True))

PLAIN: Mapping[str, Family] = {
    **dict.fromkeys(
        ("bailing_moe", "bailing_moe_v2", "orion", "minicpm", "iquestcoder", "k2_horizon", "param2moe", "sarvam_moe",
         "telechat3", "TeleFLM", "teleflm", "solar", "deepseek", "nanbeige", "baichuan", "internlm", "aquila",
         "xverse", "skywork", "phi4siglip", "fireredasr2"),
        _FROM_CHECKPOINT,
    ),
    # Qwen's text model with its own keys at the top level, beside those of the vision or audio part.
    **dict.fromkeys(
        ("minicpmv", "minicpmo", "Keye", "KeyeVL1_5", "kimi_audio"), Family(_NO_DEFAULTS, window="switch")
    ),
    "mimo": Family(_NO_DEFAULTS, window="switch", draft_layers=one_draft_layer),
    "phi3_v": Family(_NO_DEFAULTS, window="always"),
    "phi4mm": Family(_NO_DEFAULTS, window="always"),
    **dict.fromkeys(
        ("telechat", "telechat2"),
        Family(
            _NO_DEFAULTS,
            spelling={"num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
                      "intermediate_size": "ffn_hidden_size"},
        ),
    ),
    "step1": Family(
        _NO_DEFAULTS, spelling={"num_key_value_heads": "num_attention_groups"}, layers=grouped_layers
    ),
    "step3_text": Family(
        sizes(61, 7168, 64, 1, 18432, 128815, 65536, head_dim=256),
        spelling={"num_key_value_heads": "num_attention_groups", "max_position_embeddings": "max_seq_len"},
    ),
    "dbrx": Family(
        sizes(24, 2048, 16, None, None, 32000, 2048),
        spelling={"hidden_size": "d_model", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
                  "max_position_embeddings": "max_seq_len"},
    ),
    "molmo": Family(_NO_DEFAULTS),
    "molmo2_text": Family(_NO_DEFAULTS),
    "moondream3_text": Family(
        sizes(24, 2048, 32, 32, 8192, 51200, 4096),
        spelling={"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
                  "num_key_value_heads": "n_kv_heads", "max_position_embeddings": "max_context",
                  "intermediate_size": "ff_dim"},
    ),
    **dict.fromkeys(
        ("minimax_m3_text", "minimax_m3"),
        Family(
            sizes(60, 6144, 64, 4, 3072, 200064, 524288, head_dim=128, num_nextn_predict_layers=1),
            spelling={"num_nextn_predict_layers": "num_mtp_modules"},
            layers=indexed_layers, draft_layers=indexed_drafts,
        ),
    ),
    "hy_v3": Family(
        sizes(80, 4096, 64, 8, 13312, 120832, 131072, head_dim=128), draft_layers=one_draft_layer
    ),
    "granitemoeshared": Family(_LLAMA),
    "flex_olmo": Family(sizes(32, 4096, 32, None, 11008, 100352, 4096)),
    "jais2": Family(sizes(32, 3328, 26, None, 26624, 150272, 8192)),
    "aria_text": Family(sizes(32, 4096, 32, None, 4096, 32000, 2048)),
    "ernie4_5_vl_moe_text": _ERNIE_MOE,
    "ernie4_5_moe_vl": _ERNIE_MOE,
    "glm4v_text": Family(sizes(40, 4096, 32, 2, 13696, 151552, 32768)),
    "glm4v_moe_text": Family(sizes(46, 4096, 96, 8, 10944, 151424, 65536)),
    "glm_ocr_text": Family(sizes(16, 1024, 16, 8, 4096, 59392, 131072)),
    "paddleocr_vl_text": Family(
        sizes(18, 1024, 16, 2, 3072, 103424, 131072, head_dim=128, tie_word_embeddings=True)
    ),
    "qwen3_omni_moe_text": Family(sizes(28, 2048, 28, 4, 18944, 3584, 32768)),
    "qwen2_5_omni_text": Family(
        sizes(28, 3584, 28, 4, 18944, 152064, 32768, sliding_window=32768, max_window_layers=28),
        window="switch",
    ),
    "hunyuan_vl_text": Family(_HUNYUAN, spelling={"head_dim": "attention_head_dim"}),
    "phi4_multimodal": Family(sizes(32, 3072, 32, 8, 8192, 200064, 131072), window="always"),
    "solar_open": Family(sizes(48, 4096, 64, 8, None, 196608, 131072, head_dim=128)),
    "emu3_text_model": Family(sizes(32, 4096, 32, 8, 14336, 184622, 9216)),
    "persimmon": Family(sizes(36, 4096, 64, None, 16384, 262144, 16384)),
    "bitnet": Family(sizes(30, 2560, 20, 5, 6912, 128256, 2048)),
    "nanochat": Family(sizes(12, 768, 6, None, 8192, 50304, 2048)),
    "biogpt": Family(sizes(24, 1024, 16, None, 4096, 42384, 1024)),
    "codegen": Family(sizes(28, 4096, 16, None, None, 50400, 2048), spelling=_GPT2_SPELLING),
}  # fmt: skip
