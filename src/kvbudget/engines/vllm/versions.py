"""What older versions of vLLM did differently.

The rule itself is that of 0.32, read in its source. Older ones are told apart by the traits below. From 0.8.5 on each
trait was read in the released sources of the version where it changed and of the one before (files named beside the
trait); what is older rests on public start-up logs and issues of vllm-project/vllm.
"""

from typing import NamedTuple

from kvbudget.errors import UnsupportedError
from kvbudget.units import is_digits

NEWEST = (0, 32)
_NEWEST_PATCH = 999  # "0.20" is the last patch of 0.20
_GIB = 1024**3


class Traits(NamedTuple):
    """How a version and those after it differ from 0.32. `since`: the first version that they hold for.

    `null_block`: block 0 is never given out. `checks_usable_blocks`: the start check leaves the null block out
    (#47272, 0.29); before, a request that needs the very last block started and hung. `hybrid_groups`: layers of
    different kinds have groups of their own (0.9.1); before, every layer kept all tokens. `chunked_groups`: those of
    chunked local attention too (0.14; between 0.10.1 and 0.13 only with an environment variable, before not at all).
    `near_equal_groups`: kinds that differ by less than half in number share the larger group size (0.12).
    `tokens_per_group`: the log prints blocks // groups x block size (up to 0.20.0, #43308) instead of concurrency x
    max_model_len. `batches_in_flight`: a sliding window keeps the tokens of all batches in flight (#47728, 0.26),
    before of one. `graphs_before_pool`: CUDA graphs are taken off before the pool is sized (0.20).
    `async_scheduling`: on by default (0.14). `hybrid_prefix_caching`: models with recurrent states have prefix caching
    on by default (0.28). `aligned_states`: with prefix caching such a model keeps two states (0.15), before one for
    each block of the longest request. `checkpoint_states`: and Mamba-2 one more at a prefill checkpoint (0.29).
    `refined_blocks`: scales of fp8 experts are refined where ranks cut through their blocks (0.29).
    `whole_model_check`: under pipeline parallelism the start check held the smallest stage's memory against all layers
    (#34076, 0.14 to 0.16). `chunked_beyond`: prompts are cut into chunks by default where max_model_len is beyond it
    (#10517); below, a batch takes a whole prompt. `batch_defaults`: of the API server, as (from this much device
    memory, batched tokens, sequences). `a100_is_small`: an A100 gets the defaults of small cards (0.9).
    """

    since: tuple[int, int, int]
    null_block: bool = True
    checks_usable_blocks: bool = True
    hybrid_groups: bool = True
    chunked_groups: bool = True
    near_equal_groups: bool = True
    tokens_per_group: bool = False
    batches_in_flight: bool = True
    graphs_before_pool: bool = True
    async_scheduling: bool = True
    hybrid_prefix_caching: bool = True
    aligned_states: bool = True
    checkpoint_states: bool = True
    refined_blocks: bool = True
    whole_model_check: bool = False
    chunked_beyond: int = 0
    gpu_memory_utilization: float = 0.92
    batch_defaults: tuple[tuple[int, int, int], ...] = (
        (160 * _GIB, 16384, 1024), (70 * _GIB, 8192, 1024), (0, 2048, 256)
    )  # fmt: skip
    a100_is_small: bool = True
    exact: bool = False


PRESENT = Traits((0, 32, 0), exact=True)
_OLDEST = (0, 4, 0)


def numbers_of(version: str) -> tuple[int, int, int]:
    """(0, 19, 1) of a `version` that `traits_of` takes; one without a patch number is the last patch, "" the newest."""
    return (_numbers(version) if version else None) or (*NEWEST, _NEWEST_PATCH)


def traits_of(version: str) -> Traits:
    """The traits of `version` ("0.19", "0.19.1rc1", "0.20.0"); "" is the newest that is known.

    A version without a patch number is the last patch. Raises UnsupportedError.
    """
    if not version:
        return PRESENT
    asked = _numbers(version)
    if asked is None or asked[:2] > NEWEST or asked < _OLDEST:
        raise UnsupportedError(
            f"--engine vllm@{version[:20]}: its pool rule is not known; known are {_OLDEST[0]}.{_OLDEST[1]} to "
            f"{NEWEST[0]}.{NEWEST[1]}, and pools of other versions differ",
            fix=f"use --engine vllm@{NEWEST[0]}.{NEWEST[1]} or the version that you run",
        )
    if asked >= PRESENT.since:
        return PRESENT
    from kvbudget.engines.vllm.past import PAST  # most plans are for the newest version

    return next(traits for traits in PAST if asked >= traits.since)


def _numbers(version: str) -> tuple[int, int, int] | None:
    """(0, 19, 1) of `v0.19.1rc1`; None for what is no version."""
    parts = version.removeprefix("v").split(".")
    if len(parts) < 2 or not all(_plain(part) for part in parts[:2]):
        return None
    patch = _NEWEST_PATCH
    if len(parts) > 2:
        digits = parts[2][: next((i for i, c in enumerate(parts[2]) if not "0" <= c <= "9"), len(parts[2]))]
        if not _plain(digits):
            return None
        patch = int(digits)
    return int(parts[0]), int(parts[1]), patch


def _plain(text: str) -> bool:
    return is_digits(text) and len(text) <= 3
