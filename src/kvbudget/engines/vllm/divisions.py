"""Decides over how many tensor-parallel ranks a model's matrices can be shared out: what they must divide.

`distributed/utils.py: divide`; `model_executor/layers/`: linear.py, vocab_parallel_embedding.py, fused_moe/config.py,
mamba/, quantization/. Within a layer attention is built before the feed-forward part, and layers in their order.
"""

from collections.abc import Iterator
from math import gcd
from typing import TYPE_CHECKING, NamedTuple

from kvbudget.engines.rule import Refusal
from kvbudget.model.layers import Attention, Compressed, CrossAttention, State
from kvbudget.model.read import Model
from kvbudget.model.weights.matrices import Matrix

if TYPE_CHECKING:
    from kvbudget.model.quantization import Quantization
    from kvbudget.model.weights.formats import Format

_UNREPLICATED = ("gpt_oss",)  # model_executor/models/gpt_oss.py divides KV heads by the ranks, rounded down
_VOCABULARY_PADDING = 64  # model_executor/layers/vocab_parallel_embedding.py
_HEADED_STATES = ("mamba2", "gdn", "kda", "linear")  # mamba_utils.py: the *_state_shape functions divide the heads
# Linear layers that are split by their input; of the others that are no part of a merged one, by their output.
_BY_INPUT = ("o_proj", "out_proj", "down_proj")
_BY_OUTPUT = ("q_b_proj", "kv_b_proj")
_EXLLAMA = ("half", "float16")  # kernels/linear/mixed_precision/exllama.py: of these types only
_SEARCHED = 10**6  # divisors are looked for up to here


class Shared(NamedTuple):
    """Something that ranks share: `size` of it in pieces of `piece` elements. `code`, `refused`: of the refusal where
    they cannot, in the engine's words, in which {size}, {part}, {piece} and {ranks} stand for figures."""

    code: str
    size: int
    piece: int
    refused: str

    def holds(self, ranks: int) -> bool:
        """Whether so many ranks get whole pieces."""
        return self.size % ranks == 0 and (self.piece == 1 or self.size // ranks % self.piece == 0)


def division_refusals(model: Model, ranks: int, dtype: str = "auto") -> list[Refusal]:
    """At most one, the first that the engine would meet. `dtype`: as asked for."""
    if ranks == 1:
        return []
    kv_heads = _kv_heads(model)
    parts = [*_heads(model), *_vocabulary(model), *_states(model), *_matrices(model, exllama=dtype in _EXLLAMA)]
    broken = next((part for part in parts if not part.holds(ranks)), None)
    uneven = next((heads for heads in kv_heads if heads % ranks and ranks % heads), None)
    if uneven is not None and (broken is None or broken.code != "heads_not_divisible"):
        broken = Shared(  # model_executor/models/llama.py: assertions on total_num_kv_heads
            "kv_heads_not_divisible",
            uneven,
            1,
            "{size} KV heads can be neither split over nor replicated on tensor parallel size {ranks} (assertion on "
            "total_num_kv_heads).",
        )
    if broken is not None:
        figures = {"size": broken.size, "part": broken.size // ranks, "piece": broken.piece, "ranks": ranks}
        fix = f"use --tensor-parallel-size {_ranks_that_work(parts, kv_heads, ranks)}"
        return [Refusal(broken.code, broken.refused.format(**figures), fix)]
    if model.model_type in _UNREPLICATED and any(heads < ranks for heads in kv_heads):
        return [
            Refusal(
                "kv_heads_not_divisible",
                f"ZeroDivisionError: integer modulo by zero ({model.model_type} does not replicate its {kv_heads[0]} "
                f"KV heads over {ranks} ranks)",
                f"use --tensor-parallel-size {kv_heads[0]}",
            )
        ]
    return []


def largest_divisor(number: int, limit: int) -> int:
    """The largest divisor of `number` that is at most `limit`."""
    return max((n for n in _divisors(number) if n <= limit), default=1)


def _ranks_that_work(parts: list[Shared], kv_heads: list[int], limit: int) -> int:
    """The most ranks up to `limit` that share all parts out."""
    common = gcd(*(part.size for part in parts))
    return max(
        n
        for n in _divisors(common)
        if n <= limit
        and all(part.piece == 1 or part.holds(n) or n == 1 for part in parts)
        and all(heads % n == 0 or n % heads == 0 for heads in kv_heads)
    )


def _divisors(number: int) -> set[int]:
    small = [n for n in range(1, min(int(number**0.5), _SEARCHED) + 1) if number % n == 0]
    return {1, *small, *(number // n for n in small)}


def _kv_heads(model: Model) -> list[int]:
    caches = [cache for layer in dict.fromkeys(model.layers) for cache in layer.caches]
    return [cache.kv_heads for cache in caches if isinstance(cache, Attention | CrossAttention)]


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
    padded = -(-model.vocab_size // _VOCABULARY_PADDING) * _VOCABULARY_PADDING
    yield Shared("vocabulary_not_divisible", padded, 1, "AssertionError: {size} is not divisible by {ranks}")


def _states(model: Model) -> Iterator[Shared]:
    for layer in dict.fromkeys(model.layers):
        for cache in layer.caches:
            if isinstance(cache, State) and cache.mixer in _HEADED_STATES and cache.heads and not cache.replicated:
                words = "AssertionError: {size} is not divisible by {ranks} (heads of a recurrent state)"
                if cache.mixer == "mamba2":  # mamba_mixer2.py
                    words = "AssertionError: Tensor parallel world size must divide num heads. ({size} over {ranks})"
                yield Shared("state_heads_not_divisible", cache.heads, 1, words)
                if cache.mixer == "mamba2" and cache.groups > 1:
                    words = (
                        "AssertionError: If tensor parallel world size does not divide num_groups, then num_groups "
                        "must equal 1. ({size} over {ranks})"
                    )
                    yield Shared("state_heads_not_divisible", cache.groups, 1, words)


def _matrices(model: Model, *, exllama: bool) -> Iterator[Shared]:
    """Feed-forward parts, and what a quantised matrix cannot be cut through. `exllama`: that kernel
    may run integers of any cut."""
    if model.parameters is None:
        return
    quantization = model.quantization
    layers = {id(layer): (index, layer) for index, layer in reversed(list(enumerate(model.parameters.layers)))}
    for index, layer in sorted(layers.values(), key=lambda pair: pair[0]):
        for matrix in layer.matrices:
            if matrix.ranks == 1:
                continue
            last = matrix.name.rpartition(".")[2]
            if last == "down_proj":
                yield _inner(matrix, gated=any(other.name.endswith("gate_proj") for other in layer.matrices))
            if quantization is not None and not _is_compressed(model):
                stored = quantization.format_of(index, matrix.name)
                if stored is not None:
                    yield from _quantised(matrix, last, stored, quantization, exllama=exllama)


def _inner(matrix: Matrix, *, gated: bool) -> Shared:
    """linear.py: MergedColumnParallelLinear, or ColumnParallelLinear where nothing is merged; FusedMoEConfig."""
    words = "AssertionError: assert all(output_size % self.tp_size == 0 for output_size in output_sizes)"
    if ".experts." in matrix.name:
        words = "AssertionError: assert self.intermediate_size % tp_size == 0"
    elif not gated:
        words = "AssertionError: {size} is not divisible by {ranks}"
    words += " (intermediate size {size} over {ranks} ranks)"
    return Shared("intermediate_size_not_divisible", matrix.columns, 1, words)


def _is_compressed(model: Model) -> bool:
    """DeepSeek-V4's attention has linear layers of its own."""
    return any(isinstance(cache, Compressed) for layer in dict.fromkeys(model.layers) for cache in layer.caches)


def _quantised(
    matrix: Matrix, last: str, stored: "Format", quantization: "Quantization", *, exllama: bool
) -> Iterator[Shared]:
    experts = ".experts." in matrix.name
    if stored.block is not None and stored.bits == 8:  # quantization/utils/fp8_utils.py: validate_fp8_block_shape
        rows, columns = stored.block
        if experts and last == "down_proj":
            words = (
                "The output_size of gate's and up's weight = {part} is not divisible by weight quantization block_n = "
            )
            yield Shared("quantised_block_not_divisible", matrix.columns, rows, words + "{piece}.")
            words = (
                "The input_size of down's weight = {part} is not divisible by weight quantization block_k = {piece}."
            )
            yield Shared("quantised_block_not_divisible", matrix.columns, columns, words)
        elif not experts and last in _BY_INPUT:
            words = (
                "Weight input_size_per_partition = {part} is not divisible by weight quantization block_k = {piece}."
            )
            yield Shared("quantised_block_not_divisible", matrix.columns, columns, words)
        elif not experts and last in _BY_OUTPUT:
            words = "Weight output_partition_size = {part} is not divisible by weight quantization block_n = {piece}."
            yield Shared("quantised_block_not_divisible", matrix.rows, rows, words)
    elif stored.name.startswith("int") and 0 < stored.group < matrix.columns and not experts and last in _BY_INPUT:
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
            yield Shared("quantised_block_not_divisible", matrix.columns, stored.group, words)
