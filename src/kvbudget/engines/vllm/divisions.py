"""Decides over how many tensor-parallel ranks a model's matrices can be shared out: what they must divide.

`distributed/utils.py: divide`; `model_executor/layers/`: linear.py, vocab_parallel_embedding.py, fused_moe/config.py,
mamba/, quantization/. Within a layer attention is built before the feed-forward part, and layers in their order.
"""

from collections.abc import Iterator
from functools import lru_cache
from math import gcd
from typing import TYPE_CHECKING, NamedTuple

from kvbudget.engines.flags import Settings
from kvbudget.engines.rule import Refusal
from kvbudget.model.layers import Attention, Compressed, CrossAttention, Layer, State
from kvbudget.model.read import Model
from kvbudget.model.same import Same
from kvbudget.model.weights.matrices import LayerWeights, Matrix

if TYPE_CHECKING:
    from kvbudget.model.quantization import Quantization
    from kvbudget.model.weights.formats import Format

_UNREPLICATED = ("gpt_oss",)  # model_executor/models/gpt_oss.py divides KV heads by the ranks, rounded down
_VOCABULARY_PADDING = 64  # model_executor/layers/vocab_parallel_embedding.py
_HEADED_STATES = ("mamba2", "gdn", "kda", "linear")  # mamba_utils.py: the *_state_shape functions divide the heads
# Linear layers that are split by their input; of the others that are no part of a merged one, by their output.
_BY_INPUT = ("o_proj", "out_proj", "down_proj")
_BY_OUTPUT = ("q_b_proj", "kv_b_proj")
_FLOAT16 = ("half", "float16")  # kernels/linear/mixed_precision/exllama.py: of this type only
# fused_moe/oracle/fp8.py: refine_fp8_moe_block_shape, of quantization/fp8.py alone; moe_wna16.py: create_weights, which
# halves groups: smaller ones are not made
_LEAST_BLOCK = 32
_BLOCKS_VALIDATED = ("fp8", "compressed-tensors")  # of experts, in their create_weights
_GROUPS_HALVED = ("gptq", "gptq_marlin", "awq", "awq_marlin")  # auto_gptq.py, auto_awq.py: what Marlin does not take
_WORD_BITS = 32  # compressed-tensors packs zero points into words
_LEAST_INPUT = {"mxfp8": 32, "nvfp4": 16}  # quantization/modelopt.py: KMxfp8Static, KNvfp4Static
_FP8_IN_TRITON = (8, 9)  # fused_moe/experts/triton_moe.py, the one kernel with smaller blocks
_SEARCHED = 10**6  # divisors are looked for up to here
_MODELS_KEPT = 64


class Shared(NamedTuple):
    """Something that ranks share: `size` of it in pieces of `piece` elements. `code`, `refused`: of the refusal where
    they cannot, in the engine's words, in which {size}, {part}, {piece} and {ranks} stand for figures.

    `replicated`: more ranks than there are may have copies. `refined`: pieces may be made smaller, to a common divisor
    with this; 0: they may not. `halved`: they may be halved, until they divide this too. `experts`: of routed experts,
    which the ranks of all data-parallel engines share. `alone`: one rank must have whole pieces as well. `strict`: so
    asked by the newest versions alone.
    """

    code: str
    size: int
    piece: int
    refused: str
    replicated: bool = False
    refined: int = 0
    halved: int = 0
    experts: bool = False
    alone: bool = False
    strict: bool = False

    def holds(self, split: "Split", ranks: int) -> bool:
        """Whether so many tensor-parallel ranks get whole pieces."""
        if self.strict and not split.strict:
            return True
        ranks = self.shares(split, ranks)
        if ranks == 1 and not self.alone:
            return True
        if self.size % ranks:
            return self.replicated and ranks % self.size == 0
        if self.halved:
            return self._halves(self.size // ranks)
        return self.size // ranks % self.piece == 0 or (self.refines(split, ranks) and split.kernel)

    def shares(self, split: "Split", ranks: int) -> int:
        """The ranks that share this, of so many tensor-parallel ones in each engine."""
        if not self.experts:
            return ranks
        return 1 if split.whole_experts else ranks * split.engines

    def _halves(self, part: int) -> bool:
        """moe_wna16.py: create_weights: the group as it is, or a half of it, a quarter, but none below 32."""
        piece = self.piece
        while part % piece or self.halved % piece:
            piece //= 2
            if piece < _LEAST_BLOCK:
                return False
        return True

    def refines(self, split: "Split", ranks: int) -> bool:
        """Whether smaller pieces are made for so many ranks of all engines."""
        common = gcd(self.size // ranks, self.refined) if split.refines and self.refined else 0
        return common >= _LEAST_BLOCK and self.size % ranks == 0


class Split(NamedTuple):
    """`engines`: data-parallel ones, whose ranks share every expert's matrices (fused_moe/config.py:
    flatten_tp_across_dp_and_pcp) unless `whole_experts`. `refines`: this version makes smaller blocks of an expert's
    scales where ranks cut through them; `kernel`: the card has one for those. `float16`: the model's type is that.
    `strict`: this version checks the groups of compressed-tensors experts; older ones load them wrong.
    """

    engines: int = 1
    whole_experts: bool = False
    refines: bool = True
    kernel: bool = True
    float16: bool = False
    strict: bool = True


def split_of(model: Model, settings: Settings, *, refines: bool, strict: bool) -> Split:
    """How these settings share a model out. `refines`, `strict`: see Split."""
    known = settings.capability > (0, 0)
    dtype = settings.dtype
    if dtype == "auto":  # config/model.py: _resolve_auto_dtype
        dtype = "float16" if known and settings.capability < (8, 0) else model.stored_dtype
    return Split(
        engines=settings.data_parallel_size,
        whole_experts=settings.expert_parallel,
        refines=refines,
        kernel=not (known and settings.capability < _FP8_IN_TRITON),
        float16=dtype in _FLOAT16,
        strict=strict,
    )


def division_refusals(model: Model, ranks: int, split: Split = Split()) -> list[Refusal]:  # noqa: B008 # a value
    """At most one, the first that the engine would meet."""
    parts = _parts(Same(model), split.float16)
    broken = next((part for part in parts if not part.holds(split, ranks)), None)
    if broken is not None:
        return [_refused(parts, broken, split, ranks)]
    if model.model_type in _UNREPLICATED and any(part.replicated and part.size < ranks for part in parts):
        heads = next(part.size for part in parts if part.replicated)
        return [
            Refusal(
                "kv_heads_not_divisible",
                f"ZeroDivisionError: integer modulo by zero ({model.model_type} does not replicate its {heads} "
                f"KV heads over {ranks} ranks)",
                f"use --tensor-parallel-size {heads}",
            )
        ]
    return []


def largest_divisor(number: int, limit: int) -> int:
    """The largest divisor of `number` that is at most `limit`."""
    return max((n for n in _divisors(number) if n <= limit), default=1)


def _refused(parts: tuple[Shared, ...], broken: Shared, split: Split, ranks: int) -> Refusal:
    cut = broken.shares(split, ranks)
    figures = {"size": broken.size, "part": broken.size // cut, "piece": broken.piece, "ranks": cut}
    code, words = broken.code, broken.refused
    if broken.refines(split, cut):  # fused_moe/oracle/fp8.py: select_fp8_moe_backend, before the blocks are validated
        code = "fp8_experts_unsupported"
        words = (
            "NotImplementedError: No FP8 MoE backend supports the deployment configuration. ({part} channels of a rank "
            "cut through blocks of {piece}; the kernel that takes smaller ones needs compute capability 8.9)"
        )
    fix = f"use --tensor-parallel-size {_ranks_that_work(parts, split, ranks)}"
    if not broken.holds(split._replace(engines=1), 1):
        return Refusal(code, words.format(**figures), "serve the model in another format: no number of ranks helps")
    if broken.experts and split.engines > 1:  # fewer ranks of each engine may not be enough, whole experts are
        fix = "use --enable-expert-parallel, or another --data-parallel-size"
    return Refusal(code, words.format(**figures), fix)


def _ranks_that_work(parts: tuple[Shared, ...], split: Split, limit: int) -> int:
    """The most ranks up to `limit` that share all parts out; 1 where none do."""
    common = gcd(*(part.size for part in parts if not part.replicated))
    works = (n for n in _divisors(common) if n == 1 or (n <= limit and all(part.holds(split, n) for part in parts)))
    return max(works)


def _divisors(number: int) -> set[int]:
    small = [n for n in range(1, min(int(number**0.5), _SEARCHED) + 1) if number % n == 0]
    return {1, *small, *(number // n for n in small)}


@lru_cache(maxsize=_MODELS_KEPT)
def _parts(same: "Same[Model]", exllama: bool) -> tuple[Shared, ...]:
    """All that ranks share, in the order in which the engine builds it, each once. `exllama`: that kernel may run
    integers of any cut."""
    model = same.value
    found = [*_heads(model), *_vocabulary(model)]
    for index, layer, weights in _distinct_layers(model):
        found += _caches(layer)
        found += _matrices(model, index, weights, exllama=exllama)
    return tuple(dict.fromkeys(found))


def _distinct_layers(model: Model) -> Iterator[tuple[int, Layer, LayerWeights | None]]:
    """The first of the layers that are alike, in order, with its weights where they are known."""
    seen = set()
    quantization = model.quantization
    for index, layer in enumerate(model.layers):
        weights = model.parameters.layers[index] if model.parameters is not None else None
        key = (layer, id(weights), quantization.apart(index) if quantization is not None else None)
        if key not in seen:
            seen.add(key)
            yield index, layer, weights


def _heads(model: Model) -> Iterator[Shared]:
    """config/model.py: verify_with_parallel_config, before anything is built."""
    if model.attention_heads:
        yield Shared(
            "heads_not_divisible",
            model.attention_heads,
            1,
            "Total number of attention heads ({size}) must be divisible by tensor parallel size ({ranks}).",
        )


def _vocabulary(model: Model) -> Iterator[Shared]:
    if model.vocab_size:
        padded = -(-model.vocab_size // _VOCABULARY_PADDING) * _VOCABULARY_PADDING
        yield Shared("vocabulary_not_divisible", padded, 1, "AssertionError: {size} is not divisible by {ranks}")


def _caches(layer: Layer) -> Iterator[Shared]:
    for cache in layer.caches:
        if isinstance(cache, Attention | CrossAttention):
            yield Shared(  # model_executor/models/llama.py: assertions on total_num_kv_heads
                "kv_heads_not_divisible",
                cache.kv_heads,
                1,
                "{size} KV heads can be neither split over nor replicated on tensor parallel size {ranks} (assertion "
                "on total_num_kv_heads).",
                replicated=True,
            )
        elif isinstance(cache, State) and cache.mixer in _HEADED_STATES and cache.heads and not cache.replicated:
            words = "AssertionError: {size} is not divisible by {ranks} (heads of a recurrent state)"
            if cache.mixer == "mamba2":  # mamba_mixer2.py
                words = "AssertionError: Tensor parallel world size must divide num heads. ({size} over {ranks})"
            yield Shared("state_heads_not_divisible", cache.heads, 1, words)
            if cache.mixer == "mamba2" and cache.groups > 1:
                words = (
                    "AssertionError: If tensor parallel world size does not divide num_groups, then num_groups must "
                    "equal 1. ({size} over {ranks})"
                )
                yield Shared("state_heads_not_divisible", cache.groups, 1, words)


def _matrices(model: Model, index: int, weights: LayerWeights | None, *, exllama: bool) -> Iterator[Shared]:
    """Feed-forward parts, and what a quantised matrix cannot be cut through."""
    if weights is None:
        return
    quantization = None if _is_compressed(model) else model.quantization
    gated = any(matrix.name.endswith("gate_proj") for matrix in weights.matrices)
    for matrix in weights.matrices:
        last = matrix.name.rpartition(".")[2]
        if matrix.ranks == 1 or last not in (*_BY_INPUT, *_BY_OUTPUT):
            continue
        if last == "down_proj":
            yield _inner(matrix, gated=gated)
        stored = quantization.format_of(index, matrix.name) if quantization is not None else None
        if quantization is not None and stored is not None:
            if ".experts." in matrix.name:
                yield from _quantised_experts(matrix, last, stored, quantization)
            else:
                yield from _quantised(matrix, last, stored, quantization, exllama=exllama)


def _inner(matrix: Matrix, *, gated: bool) -> Shared:
    """linear.py: MergedColumnParallelLinear, or ColumnParallelLinear where nothing is merged; FusedMoEConfig."""
    words = "AssertionError: assert all(output_size % self.tp_size == 0 for output_size in output_sizes)"
    experts = ".experts." in matrix.name
    if experts:
        words = "AssertionError: assert self.intermediate_size % tp_size == 0"
    elif not gated:
        words = "AssertionError: {size} is not divisible by {ranks}"
    words += " (intermediate size {size} over {ranks} ranks)"
    return Shared("intermediate_size_not_divisible", matrix.columns, 1, words, experts=experts)


def _is_compressed(model: Model) -> bool:
    """DeepSeek-V4's attention has linear layers of its own."""
    return any(isinstance(cache, Compressed) for layer in dict.fromkeys(model.layers) for cache in layer.caches)


def _quantised_experts(matrix: Matrix, last: str, stored: "Format", quantization: "Quantization") -> Iterator[Shared]:
    """Of one expert: its width, which ranks share, and the model's own, which they do not."""
    if last != "down_proj":
        return
    if stored.block is not None and stored.bits == 8 and quantization.method in _BLOCKS_VALIDATED:
        yield from _blocks_of_experts(matrix, stored.block, refined=quantization.method == "fp8")
    elif stored.name.startswith("int") and stored.group > 0:
        yield from _groups_of_experts(matrix, stored, quantization.method)
    elif stored.name == "mxfp8" and quantization.method.startswith("modelopt"):  # ModelOptMxFp8FusedMoE: create_weights
        if matrix.rows % stored.group:
            words = f"MXFP8 MoE requires hidden_size divisible by {stored.group}, got {matrix.rows}."
            yield _never(matrix.columns, words)
        words = "MXFP8 MoE requires intermediate_size_per_partition divisible by {piece}, got {part}."
        yield _expert_groups(matrix.columns, stored.group, words)


def _blocks_of_experts(matrix: Matrix, block: tuple[int, int], *, refined: bool) -> Iterator[Shared]:
    """quantization/utils/fp8_utils.py: validate_fp8_block_shape_moe, unless smaller blocks are made instead."""
    rows, columns = block
    common = gcd(rows, columns, matrix.rows) if refined else 0
    code = "quantised_block_not_divisible"
    words = "The output_size of gate's and up's weight = {part} is not divisible by weight quantization block_n = "
    yield Shared(code, matrix.columns, rows, words + "{piece}.", refined=common, experts=True, alone=True)
    words = "The input_size of down's weight = {part} is not divisible by weight quantization block_k = {piece}."
    yield Shared(code, matrix.columns, columns, words, refined=common, experts=True)


def _groups_of_experts(matrix: Matrix, stored: "Format", method: str) -> Iterator[Shared]:
    """Integers with a scale for each group; Marlin takes no cut that the other kernel does not."""
    code = "quantised_block_not_divisible"
    if method in _GROUPS_HALVED:
        words = "AssertionError: assert group_size >= 32 ({part} channels of a rank, groups of {piece})"
        yield Shared(code, matrix.columns, stored.group, words, halved=matrix.rows, experts=True, alone=True)
    if method != "compressed-tensors":
        return
    if matrix.rows % stored.group:
        words = "CompressedTensors WNA16 MoE requires hidden_size "
        words += f"({matrix.rows}) to be divisible by group_size ({stored.group})."
        yield _never(matrix.columns, words, strict=True)
    words = (
        "CompressedTensors WNA16 MoE with static group scales requires the MoE intermediate size per tensor-parallel "
        "partition ({part}) to be divisible by group_size ({piece}). Scale groups would otherwise cross TP shard "
        "boundaries; use a compatible TP size or enable expert parallelism."
    )
    yield _expert_groups(matrix.columns, stored.group, words, strict=True)
    if stored.zero_bits:
        words = (
            "CompressedTensors WNA16 MoE: gate+up output channels per TP rank (2 * intermediate_size_per_partition = "
            "{part}) must be divisible by packed_factor ({piece})."
        )
        yield _expert_groups(2 * matrix.columns, _WORD_BITS // stored.bits, words, strict=True)


def _expert_groups(size: int, piece: int, words: str, *, strict: bool = False) -> Shared:
    """Pieces that every rank must have whole, also a single one."""
    return Shared("quantised_block_not_divisible", size, piece, words, experts=True, alone=True, strict=strict)


def _never(size: int, words: str, *, strict: bool = False) -> Shared:
    """What no number of ranks has: the model's own width is no multiple of what its format needs."""
    return _expert_groups(size, size + 1, words, strict=strict)


def _quantised(
    matrix: Matrix, last: str, stored: "Format", quantization: "Quantization", *, exllama: bool
) -> Iterator[Shared]:
    code = "quantised_block_not_divisible"
    modelopt = quantization.method.startswith("modelopt")
    if modelopt and stored.name in _LEAST_INPUT and last in _BY_INPUT:
        words = "MXFP8 requires input size divisible by {piece}, got {part}"
        if stored.name == "nvfp4":
            words = "Unsupported model when in features size is not multiple of {piece} ({part} of a rank)"
        yield Shared(code, matrix.columns, _LEAST_INPUT[stored.name], words, alone=True)
    elif modelopt and stored.block is not None:  # its last block of outputs may be partial
        if last in _BY_INPUT:
            words = "FP8_PB_WO requires in divisible by {piece}, got {part}"
            yield Shared(code, matrix.columns, stored.block[1], words, alone=True)
    elif stored.block is not None and stored.bits == 8:  # quantization/utils/fp8_utils.py: validate_fp8_block_shape
        rows, columns = stored.block
        if last in _BY_INPUT:
            words = (
                "Weight input_size_per_partition = {part} is not divisible by weight quantization block_k = {piece}."
            )
            yield Shared(code, matrix.columns, columns, words)
        else:
            words = "Weight output_partition_size = {part} is not divisible by weight quantization block_n = {piece}."
            yield Shared(code, matrix.rows, rows, words)
    elif stored.name.startswith("int") and 0 < stored.group < matrix.columns and last in _BY_INPUT:
        words = (  # kernels/linear/__init__.py: choose_mp_linear_kernel; all but Exllama
            "Failed to find a kernel that can implement the WNA16 linear layer. Reasons: in_features per partition "
            "{part} is not divisible by group_size = {piece}."
        )
        if quantization.method.startswith("awq"):  # quantization/auto_awq.py: BaseAWQLinearMethod
            words = (
                "The input size is not aligned with the quantized weight shape. This can be caused by too large tensor "
                "parallel size. ({part} of a rank, groups of {piece})"
            )
            exllama = False
        if not exllama:
            yield Shared(code, matrix.columns, stored.group, words)
