"""Text Generation Inference: what it makes of its flags, and the blocks of its pool.

`server/text_generation_server/models/flash_causal_lm.py: warmup`, `models/globals.py`, `launcher/src/main.rs`. The pool
is what a warm-up batch of --max-batch-prefill-tokens leaves of the card, less some room: sliding layers keep all
tokens, CUDA graphs must do with the room. --max-batch-total-tokens is ignored where the pool is measured.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from kvbudget.engines.flags import LLAMACPP_ONLY, EngineFlags, Settings, refuse_flags
from kvbudget.engines.rule import Pool, Refusal, Stage, Taken
from kvbudget.engines.tokens import (
    SeparatePools,
    caches_of,
    length_of,
    refuse_unknown_caches,
    stored,
    weight_element_bytes,
)
from kvbudget.errors import BadValueError, UnsupportedError
from kvbudget.model.layers import Attention, Latent, Layer
from kvbudget.model.read import Model
from kvbudget.pool.groups import Group, LayerKind
from kvbudget.units import Blocks, Bytes, Tokens, is_digits, whole_blocks

NEWEST = (3, 3)
_CONCURRENT_REQUESTS = 128  # --max-concurrent-requests
_PREFILL_TOKENS = 4096  # --max-batch-prefill-tokens
_FLASHINFER_SIZES = (64, 128, 256)  # launcher/src/main.rs: resolve_attention
_LACKING = (
    *LLAMACPP_ONLY, "window_pools", "data_parallel_size", "async_scheduling", "disable_hybrid_kv_cache_manager",
    "mamba_cache_dtype", "mamba_ssm_cache_dtype", "pp_layer_partition", "enable_chunked_prefill",
)  # fmt: skip
_ELEMENTS = {"fp8_e4m3fn": 1, "fp8_e5m2": 1, "fp8": 1, "fp8_e4m3": 1, "float16": 2, "bfloat16": 2}


class _Traits(NamedTuple):
    """`since`: the first version. `kept`: the share of what is free that the pool takes, of the TOTAL card where
    `of_total`. `block`: tokens in a block, 0 where the attention kernel decides. `longest`: --max-total-tokens when it
    is not given, 0 for the model's own; where `fitted`, no more than the pool holds."""

    since: tuple[int, int]
    kept: Fraction
    of_total: bool
    block: int
    longest: int
    fitted: bool = False


_ALL = (
    _Traits((3, 0), Fraction(9, 10), of_total=True, block=0, longest=0, fitted=True),
    _Traits((2, 4), Fraction(9, 10), of_total=False, block=0, longest=0),
    _Traits((2, 3), Fraction(95, 100), of_total=False, block=0, longest=0),
    _Traits((2, 0), Fraction(95, 100), of_total=False, block=16, longest=4096),
    _Traits((0, 9), Fraction(1), of_total=False, block=16, longest=2048),
)


class Tgi:
    """The rule of one version, 3.3 unless told otherwise. Stateless."""

    name = "tgi"
    needs_memory = True

    def __init__(self, version: str = "") -> None:
        self._traits = _traits_of(version)
        self.version = version or "3.3"
        self.memory_version = (0, 9) if self._traits.since >= (2, 0) else (0, 6)  # of about the same time

    def settle(self, model: Model, flags: EngineFlags, device_memory: int, device_name: str) -> Settings:
        """What the engine runs with. `max_model_len` is --max-total-tokens."""
        refuse_unknown_caches(model, self.name)
        for flag, value in (
            ("--pipeline-parallel-size", flags.pipeline_parallel_size),
            ("--decode-context-parallel-size", flags.decode_context_parallel_size),
        ):
            if value > 1:
                raise BadValueError(f"{flag} {value}: TGI only splits layers over shards", fix=f"leave {flag} out")
        refuse_flags(flags, "TGI", _LACKING)
        if flags.speculation is not None and flags.speculation.method not in ("ngram", "medusa"):
            raise UnsupportedError(
                f"--speculative-config: TGI has no method {flags.speculation.method[:40]!r}", fix="use ngram or medusa"
            )
        element = weight_element_bytes(flags.dtype)
        if flags.kv_cache_dtype != "auto" and flags.kv_cache_dtype not in _ELEMENTS:
            raise BadValueError(
                f"--kv-cache-dtype: {flags.kv_cache_dtype[:40]!r} is not one of TGI",
                fix=f"use one of auto, {', '.join(_ELEMENTS)}",
            )
        longest = flags.max_model_len
        if longest is None and self._traits.longest:
            longest = min(self._traits.longest, model.longest_given or self._traits.longest)
        batched = flags.max_num_batched_tokens or _PREFILL_TOKENS
        return Settings(
            max_model_len=length_of(model, longest, "TGI"),
            auto_length=flags.max_model_len is None and self._traits.fitted,
            max_num_seqs=flags.max_num_seqs or _CONCURRENT_REQUESTS,
            max_num_batched_tokens=Tokens(batched),
            max_in_flight_tokens=Tokens(batched),
            block_size=Tokens(flags.block_size or self._traits.block or _block_of(model)),
            kv_cache_dtype=flags.kv_cache_dtype,
            kv_element_bytes=Bytes(_ELEMENTS.get(flags.kv_cache_dtype, element)),
            element_bytes=element,
            tensor_parallel_size=flags.tensor_parallel_size,
            pipeline_parallel_size=1,
            gpu_memory_utilization=1.0 if flags.gpu_memory_utilization is None else flags.gpu_memory_utilization,
            async_scheduling=False,
            num_gpu_blocks_override=flags.num_gpu_blocks_override,
            prefix_caching=flags.enable_prefix_caching is not False and self._traits.since >= (2, 3),
            enforce_eager=flags.enforce_eager,
            speculation=flags.speculation,
        )

    def usable_memory(self, total: int, settings: Settings) -> Bytes:
        """--cuda-memory-fraction of the card, less the room for graphs where that is a share of the card."""
        share = Fraction(str(settings.gpu_memory_utilization))
        return Bytes(int(total * (share * self._traits.kept if self._traits.of_total else share)))

    def cache_memory(self, total: int, taken: Taken, settings: Settings) -> int:
        """What the warm-up batch leaves; its own cache counts as free. Before 3.0 the room is a share of what is free.

        There the warm-up batch's own cache is spared from it, which is left out here: at most 0.5 GiB for 4,096 tokens.
        """
        left = self.usable_memory(total, settings) - taken.weights - taken.activation - taken.non_torch
        return left if self._traits.of_total else int(left * self._traits.kept)

    def stages(self, model: Model, settings: Settings) -> tuple[Stage, ...]:
        """One stage: the shards split every layer."""
        return (Stage(0, len(model.layers), _layout(model.layers, settings)),)

    def pool(self, model: Model, settings: Settings, stages: Sequence[Stage], available: Sequence[int]) -> Pool:
        """max_batch_total_tokens, inferred: the smallest of all shards, which are alike here."""
        layout = stages[0].layout
        blocks = whole_blocks(max(0, available[0]), layout.bytes_per_block)
        if settings.num_gpu_blocks_override is not None:
            blocks = Blocks(settings.num_gpu_blocks_override)
        tokens = blocks * settings.block_size
        length = settings.max_model_len
        if settings.auto_length:  # warmup: max_total_tokens
            length = Tokens(min(length, tokens or length))
        need = layout.blocks_for(length)
        return Pool(
            stage=0,
            num_blocks=blocks,
            usable_blocks=blocks,
            bytes=Bytes(blocks * layout.bytes_per_block),
            max_model_len=length,
            blocks_per_request=need,
            tokens=tokens,
            concurrency=blocks / need,
            largest_max_model_len=Tokens(min(tokens, model.longest_given or tokens)),
            checked_blocks=blocks,
        )

    def refusals(self, model: Model, settings: Settings, stages: Sequence[Stage], pool: Pool) -> list[Refusal]:
        """Everything that would stop the start, in the order in which the engine would meet it."""
        found = []
        ranks = settings.tensor_parallel_size
        attention = [c for c in caches_of(dict.fromkeys(model.layers)) if isinstance(c, Attention)]
        heads = [model.attention_heads, *(c.kv_heads for c in attention if c.kv_heads > 1)]
        uneven = next((count for count in heads if count % ranks), 0)
        if uneven:
            fitting = next(n for n in range(min(ranks, uneven), 0, -1) if all(count % n == 0 for count in heads))
            found.append(
                Refusal(
                    "heads_not_divisible",
                    f"`num_heads` must be divisible by `num_shards` (got `num_heads`: {uneven} and `num_shards`: "
                    f"{ranks}",
                    f"use --tensor-parallel-size {fitting}",
                )
            )
        if pool.num_blocks <= 0:
            found.append(
                Refusal(
                    "no_kv_memory",
                    f"Not enough memory to handle {settings.max_num_batched_tokens} prefill tokens. You need to "
                    "decrease `--max-batch-prefill-tokens`",
                    "quantise the weights or use more shards; fewer prefill tokens help little",
                )
            )
        elif pool.max_model_len > pool.tokens:
            found.append(
                Refusal(
                    "max_model_len_too_large",
                    f"Not enough memory to handle `max_total_tokens={pool.max_model_len}`",
                    f"use --max-model-len {pool.tokens} (--max-total-tokens)",
                )
            )
        return found

    def overruns(self, settings: Settings, total: int, taken: Taken, pool: Pool) -> list[Refusal]:
        """None: the warm-up batch runs before the pool is sized."""
        return []

    def log_line(self, settings: Settings, pool: Pool) -> str:
        """backends/v3/src/lib.rs, router/src/main.rs."""
        return f"Setting max batch total tokens to {pool.tokens}"


def _traits_of(version: str) -> _Traits:
    """Raises UnsupportedError for a version whose rule is not known."""
    if not version:
        return _ALL[0]
    parts = version.removeprefix("v").split(".")[:2]
    known = all(is_digits(part) and len(part) <= 3 for part in parts)
    asked = (int(parts[0]), int(parts[1]) if len(parts) > 1 else 99) if known else (-1, -1)
    if len(parts) == 1 and asked[0] == NEWEST[0]:
        asked = NEWEST
    if not _ALL[-1].since <= asked <= NEWEST:
        raise UnsupportedError(
            f"--engine tgi@{version[:20]}: its pool rule is not known; known are 0.9 to {NEWEST[0]}.{NEWEST[1]}",
            fix="use --engine tgi@3.3 or the version that you run",
        )
    return next(traits for traits in _ALL if asked >= traits.since)


def _block_of(model: Model) -> int:
    """models/globals.py: 1 with FlashInfer; 256 with flash decoding, for head sizes that FlashInfer lacks and MLA."""
    caches = caches_of(dict.fromkeys(model.layers))
    sizes = {cache.key_size for cache in caches if isinstance(cache, Attention)}
    latent = any(isinstance(cache, Latent) for cache in caches)
    return 1 if sizes and not latent and sizes <= set(_FLASHINFER_SIZES) and model.model_type != "falcon" else 256


def _layout(layers: Sequence[Layer], settings: Settings) -> SeparatePools:
    """All layers keep all tokens; MLA as one wide key and value of every head (models/__init__.py: DEEPSEEK_V2)."""
    token = count = 0
    for cache in caches_of(layers):
        if isinstance(cache, Attention):
            heads, size = cache.kv_heads, cache.key_size
        elif isinstance(cache, Latent):
            heads, size = cache.heads, max(cache.key_size, cache.value_size)
        else:
            raise UnsupportedError(
                f"--engine tgi: it has no model with a {cache.kind} cache that is known here",
                fix="plan this model with --engine vllm@0.32",
            )
        token += max(1, heads // settings.tensor_parallel_size) * 2 * size * settings.kv_element_bytes
        count += 1
    block = token * settings.block_size
    mixed = Bytes(block if block % count else 0)
    group = Group(LayerKind.FULL, count, settings.block_size, Bytes(-(-block // count)), mixed)
    return SeparatePools((group,), stored(token, 0, 0, 0))
