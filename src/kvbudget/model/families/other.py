"""Architectures whose layers differ in other ways: pruned or repeated, windows by list, or cross attention."""

from collections.abc import Mapping

from kvbudget.model.families.family import Family, sizes
from kvbudget.model.mixed import cross_layers, listed_window_layers, pruned_layers
from kvbudget.model.sharing import looped_layers, recurrent_depth_layers, unshared_layers

_NAS = Family(sizes(32, 4096, 32, None, 11008, 32000, 2048), layers=pruned_layers)
_HUNYUAN = sizes(32, 4096, 32, None, 11008, 290943, 2048)

OTHER: Mapping[str, Family] = {
    "nemotron-nas": _NAS,
    "deci": _NAS,
    "hunyuan_v1_moe": Family(_HUNYUAN, layers=unshared_layers),
    "iquestloopcoder": Family({}, layers=looped_layers),
    "hrm_text": Family(
        sizes(16, 1536, 12, None, 4096, 151808, 2048, head_dim=128, H_cycles=2, L_cycles=3),
        layers=recurrent_depth_layers,
    ),
    # vLLM 0.32 models/openpangu.py; the config class ships in the checkpoint.
    "PanguEmbedded": Family({}, layers=listed_window_layers),
    "plamo3": Family({}, layers=listed_window_layers),
    "pangu_embedded": Family({}, layers=listed_window_layers),
    # model/decoders.py gives the decoder's sizes by our names
    "cohere_asr": Family({}, layers=cross_layers),
    "nemotron_parse": Family({}, layers=cross_layers),
    "whisper": Family(
        sizes(4, 384, 6, None, 1536, 51865, 448, max_source_positions=1500, tie_word_embeddings=True),
        spelling={
            "hidden_size": "d_model",
            "num_hidden_layers": "decoder_layers",
            "num_attention_heads": "decoder_attention_heads",
            "intermediate_size": "decoder_ffn_dim",
            "max_position_embeddings": "max_target_positions",
        },
        layers=cross_layers,
    ),
}
