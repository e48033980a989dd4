"""Decides how much memory an engine takes besides weights and pool: activation peak, CUDA graphs, and non-torch.

A physical model of vLLM's start-up, read from its source (v1/worker/gpu_worker.py, gpu_model_runner.py, vLLM 0.32),
with few constants that `scripts/fit_overheads.py` fits on figures of public start-up logs. What makes the peak:

- sampling: `max_num_seqs` rows of logits of the whole vocabulary, in float32, several copies of them at once;
- forward: one batch of `max_num_batched_tokens` through the widest part, the MLP; only this part shrinks with TP;
- expert workspace: what the fused MoE kernels keep through both (since 0.17);
- compiling: a first start benchmarks kernels on a copy of the embedding table, and that is charged as activation.

The largest of sampling, forward and compiling counts. Everything here is estimated: three numbers, not one.
"""

from typing import NamedTuple

from kvbudget.units import GIB, MIB, Bytes

Version = tuple[int, int]

_LOGIT_BYTES = 4  # logits are sampled in float32


class Interval(NamedTuple):
    """Bytes on one GPU: `low` and `high` hold nine of ten receipts, `best` is the single number to plan with."""

    low: Bytes
    best: Bytes
    high: Bytes


class Shape(NamedTuple):
    """What of a model decides it. Sizes are counts of elements of the whole model, before any parallelism.

    `expert_intermediate_size`: of one routed expert. `experts_per_token` is 0 for dense models and for kernels without
    a workspace of their own (MXFP4). `recurrent`: some layers keep a state (Mamba, linear attention). `multimodal`: the
    engine runs the encoder too.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    experts_per_token: int = 0
    expert_intermediate_size: int = 0
    multimodal: bool = False
    recurrent: bool = False


class Run(NamedTuple):
    """How the engine runs. `version` is (major, minor): see `version_of`. Parallel sizes are numbers of GPUs.

    `samples`: this pipeline stage is the last one, which has the logits. `nvlink`: the GPUs are joined by it, which
    lets the engine set up fused all-reduce buffers. `compile_cached`: an earlier start with the same settings left its
    compile cache (True), none did (False), or it is not known (None: planned as a first start). `largest_graph`: tokens
    of the largest CUDA graph; 512, and 1,024 on data-centre Blackwell in 0.32.
    """

    version: Version
    max_num_seqs: int
    max_num_batched_tokens: int
    element_bytes: int = 2
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    samples: bool = True
    enforce_eager: bool = False
    nvlink: bool = True
    compile_cached: bool | None = None
    largest_graph: int = 512


class Era(NamedTuple):
    """Releases that account alike. Copies are multiples of the float32 logits or of a token's hidden vector."""

    since: Version
    sampling_copies: float
    hidden_copies: float  # of the forward pass, beside the MLP
    non_torch_gib: float
    parallel_gib: float  # more of it with tensor parallelism, cards joined by PCIe
    nvlink_gib: float  # the same, cards joined by NVLink
    parallel_spread: float  # GiB to either side
    expert_workspace: bool
    compile_copy: bool
    graphs_mib: float  # of one captured graph, where they are taken off before the pool is sized; 0 where not


class Constants(NamedTuple):
    """What is fitted, and a user's own correction of it. Factors multiply; the rest is added, in GiB."""

    eras: tuple[Era, ...]
    sampling_hidden_copies: float  # of one batch, kept while sampling
    peak_gib: float  # small allocations beside it
    multimodal_gib: float  # encoder outputs, kept through the forward pass
    encoder_gib: float  # peak of the encoder's own run, on items of the largest size
    recurrent_factor: float  # wider temporaries of a linear-attention layer, against an MLP of the same width
    activation_factor: float = 1.0
    graphs_factor: float = 1.0
    non_torch_gib: float = 0.0
    spread_factor: float = 1.0


class Overheads(NamedTuple):
    """The three parts that vLLM takes off before it sizes the pool, on one GPU.

    `cuda_graphs` is zero where the release captures them after sizing the pool (before 0.20): then `graphs_later` says
    what they take of the memory outside of the engine's share. From 0.20 on both are the same.
    """

    activation: Interval
    cuda_graphs: Interval
    non_torch: Interval
    graphs_later: Interval

    @property
    def total(self) -> Interval:
        """All that is taken off. Parts err independently: their spreads are added in squares."""
        parts = (self.activation, self.cuda_graphs, self.non_torch)
        best = sum(part.best for part in parts)
        below = sum((part.best - part.low) ** 2 for part in parts) ** 0.5
        above = sum((part.high - part.best) ** 2 for part in parts) ** 0.5
        return Interval(Bytes(max(0, int(best - below))), Bytes(best), Bytes(int(best + above)))


# Fitted by scripts/fit_overheads.py, rounded; it also prints the medians that non-torch and graphs are. The steps
# between eras are in the engine's source: 0.17 samples top-k/top-p without sorting, 0.20 profiles CUDA graphs, 0.29 has
# the second model runner for all models, whose profiling run neither copies logits to float32 nor sorts them.
_E = Era
CONSTANTS = Constants(
    eras=(
        _E((0, 0), 9.52, 3.05, 0.19, 0.13, 0.45, 0.30, False, False, 0.0),
        _E((0, 8), 9.52, 4.2, 0.06, 0.15, 1.30, 0.80, False, False, 0.0),
        _E((0, 11), 9.52, 4.2, 0.13, 0.30, 0.42, 0.90, False, False, 0.0),
        _E((0, 17), 3.65, 4.2, 0.13, 0.30, 0.42, 0.90, True, True, 0.0),
        _E((0, 18), 3.65, 4.2, 0.25, 0.10, 1.85, 0.30, True, True, 0.0),
        _E((0, 20), 3.65, 4.2, 0.25, 0.10, 1.85, 0.30, True, True, 7.6),
        _E((0, 29), 0.40, 2.2, 0.25, 0.10, 1.85, 0.30, True, True, 5.3),
    ),
    sampling_hidden_copies=1.24,
    peak_gib=0.025,
    multimodal_gib=0.13,
    encoder_gib=1.2,
    recurrent_factor=1.5,
)
# The second runner served dense text models before it served all, and did not profile their CUDA graphs yet.
_SECOND_RUNNER: Version = (0, 26)
_ALL_SECOND_RUNNER: Version = (0, 29)
_GRAPHS_COUNTED: Version = (0, 20)
_NON_TORCH_PER_DOUBLING = 0.07  # GiB more for each doubling of the ranks beyond two
_STAGE_GIB = 0.07  # non-torch of a pipeline stage that never samples


def version_of(text: str) -> Version:
    """(major, minor) of `0.32`, `0.32.0`, `v0.19.1rc1`; (99, 0) for a version that cannot be read, taken as newest."""
    numbers = []
    for part in text.strip().lower().lstrip("v").split(".")[:2]:
        digits = ""
        for char in part:
            if not "0" <= char <= "9" or len(digits) == 4:
                break
            digits += char
        if not digits:
            return (99, 0)
        numbers.append(int(digits))
    return (numbers[0], numbers[1]) if len(numbers) == 2 else (99, 0)


def overheads(shape: Shape, run: Run, constants: Constants = CONSTANTS) -> Overheads:
    """All three parts for one GPU of one engine. See the module for what is modelled."""
    activation = activation_peak(shape, run, constants)
    graphs = cuda_graphs(shape, run, constants)
    counted = graphs if graphs_are_counted(shape, run) else Interval(Bytes(0), Bytes(0), Bytes(0))
    return Overheads(activation, counted, non_torch(shape, run, constants), graphs)


def activation_peak(shape: Shape, run: Run, constants: Constants = CONSTANTS) -> Interval:
    """The peak of PyTorch's allocations over the profiling run, beyond weights. Sampling's does not shrink with TP."""
    era = _era(shape, run, constants)
    workspace = _expert_workspace(shape, run, era)
    forward = _forward(shape, run, era, constants)
    sampling = _sampling(shape, run, era, constants) if run.samples else 0.0
    compiling = 0.0 if run.compile_cached else _compiling(shape, run, era)
    encoder = constants.encoder_gib * GIB * shape.multimodal
    beside = workspace + constants.multimodal_gib * GIB * shape.multimodal
    if sampling > forward:
        beside += constants.peak_gib * GIB
    warm = max(beside + max(forward, sampling), encoder) * constants.activation_factor
    best = max(warm, (beside + compiling) * constants.activation_factor)
    spread = (0.05 * best + 0.05 * GIB) * constants.spread_factor
    low = best if run.compile_cached is False else min(best, warm)
    high = best + spread * (1 + 5 * shape.multimodal + 2 * shape.recurrent)
    if run.compile_cached is None:
        high = max(high, best + 0.1 * GIB * constants.spread_factor)
    return Interval(Bytes(max(0, int(low - spread))), Bytes(int(best)), Bytes(int(high)))


def cuda_graphs(shape: Shape, run: Run, constants: Constants = CONSTANTS) -> Interval:
    """What captured graphs take (from 0.20: what the engine expects them to take). Zero with --enforce-eager."""
    if run.enforce_eager:
        return Interval(Bytes(0), Bytes(0), Bytes(0))
    era = _era(shape, run, constants)
    each = (era.graphs_mib or 7.6) * MIB
    best = graph_count(run) * each * constants.graphs_factor
    if shape.recurrent:
        best *= 1.6  # more kernels a layer; 0.4 to 1.9 GiB on public logs
    wide = constants.spread_factor
    return Interval(
        Bytes(int(best * (1 - 0.5 * wide))), Bytes(int(best)), Bytes(int(best * (1 + 0.9 * wide) + 0.1 * GIB))
    )


def graphs_are_counted(shape: Shape, run: Run) -> bool:
    """Whether this release takes CUDA graphs off before it sizes the pool."""
    if run.version < _GRAPHS_COUNTED:
        return False
    return not (_SECOND_RUNNER <= run.version < _ALL_SECOND_RUNNER and _second_runner(shape, run))


def non_torch(shape: Shape, run: Run, constants: Constants = CONSTANTS) -> Interval:
    """CUDA context beyond the first snapshot, kernels' own memory, and buffers of NCCL and fused all-reduce."""
    era = _era(shape, run, constants)
    best, spread = era.non_torch_gib, 0.12
    if run.pipeline_parallel_size > 1 and not run.samples:
        best = _STAGE_GIB
    if run.tensor_parallel_size > 1:
        best += era.nvlink_gib if run.nvlink else era.parallel_gib
        best += _NON_TORCH_PER_DOUBLING * (run.tensor_parallel_size.bit_length() - 2)
        spread = era.parallel_spread
    best = max(0.0, best + constants.non_torch_gib)
    low = max(0.0, best - spread * constants.spread_factor)
    high = best + (spread + 0.2 + (0.9 if shape.recurrent else 0.0)) * constants.spread_factor
    return Interval(Bytes(int(low * GIB)), Bytes(int(best * GIB)), Bytes(int(high * GIB)))


def graph_count(run: Run) -> int:
    """Graphs that vLLM captures by default, piecewise and decode-only (0.32 config/vllm.py _set_cudagraph_sizes)."""
    largest = min(2 * run.max_num_seqs, run.largest_graph, run.max_num_batched_tokens)
    return _sizes_up_to(largest) + _sizes_up_to(min(run.max_num_seqs, largest))


def _era(shape: Shape, run: Run, constants: Constants) -> Era:
    version = run.version
    if _SECOND_RUNNER <= version < _ALL_SECOND_RUNNER and _second_runner(shape, run):
        version = _ALL_SECOND_RUNNER
    return next(era for era in reversed(constants.eras) if era.since <= version or era.since == (0, 0))


def _second_runner(shape: Shape, run: Run) -> bool:
    if run.version >= _ALL_SECOND_RUNNER:
        return True
    return run.version >= _SECOND_RUNNER and not (shape.multimodal or shape.recurrent or shape.experts_per_token)


def _forward(shape: Shape, run: Run, era: Era, constants: Constants) -> float:
    """Bytes of one batch: gate and up, their product, and some hidden vectors a token."""
    inner = 0 if shape.experts_per_token else -(-shape.intermediate_size // run.tensor_parallel_size)
    width = 3 * inner + era.hidden_copies * shape.hidden_size
    if shape.recurrent:
        width *= constants.recurrent_factor
    return run.max_num_batched_tokens * width * run.element_bytes


def _sampling(shape: Shape, run: Run, era: Era, constants: Constants) -> float:
    rows = min(run.max_num_seqs, run.max_num_batched_tokens)
    kept = constants.sampling_hidden_copies * run.max_num_batched_tokens * shape.hidden_size * run.element_bytes
    return era.sampling_copies * rows * shape.vocab_size * _LOGIT_BYTES + kept


def _expert_workspace(shape: Shape, run: Run, era: Era) -> float:
    """Two buffers of the MoE kernels (vLLM 0.32 fused_moe/modular_kernel.py), for every routed copy of a token."""
    if not era.expert_workspace or not shape.experts_per_token:
        return 0.0
    inner = -(-shape.expert_intermediate_size // run.tensor_parallel_size)
    width = max(2 * inner, shape.hidden_size) + max(inner, shape.hidden_size)
    return float(run.max_num_batched_tokens * shape.experts_per_token * width * run.element_bytes)


def _compiling(shape: Shape, run: Run, era: Era) -> float:
    """The copy of the embedding that Inductor benchmarks on. Multimodal models embed outside of the compiled part."""
    if not era.compile_copy or run.enforce_eager or shape.multimodal:
        return 0.0
    table = shape.vocab_size * shape.hidden_size // run.tensor_parallel_size
    return float((table + run.max_num_batched_tokens * shape.hidden_size) * run.element_bytes)


def _sizes_up_to(largest: int) -> int:
    """How many of 1, 2, 4, then every 8th to 256, then every 16th, are at most `largest`."""
    small = sum(1 for size in (1, 2, 4) if size <= largest)
    return small + min(largest, 256) // 8 + max(0, largest - 256) // 16
