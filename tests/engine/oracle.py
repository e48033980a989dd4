"""Decides what a real vLLM 0.32 would make of a model's KV pool: jobs as a JSON list on stdin, answers on stdout.

Runs with the python of the engine's virtual environment; needs no weights, no GPU and nothing of kvbudget. vLLM's own
code does all of it: the engine config, the model's class built on torch's "meta" device, the spec that each of its
layers states, the grouping, the number of blocks and the figures of the start-up log. Replaced is only what makes the
CPU build answer for a CPU (`ANSWERS_LIKE_CUDA` below), and expert weights, which keep no cache.

A job: config (a config.json), memory (bytes for the cache on a rank), max_model_len, and as far as they are not vLLM's
defaults: tensor_parallel, pipeline_parallel, context_parallel, speculation ({method, num_speculative_tokens}), draft (a
config.json) and `flags`, arguments of vLLM's EngineArgs. An answer: num_blocks, tokens, concurrency, in_flight, and for
each group blocks_per_request, block_sizes and layers; or `refused` with vLLM's words; or `broken`, when the model could
not be built.
"""

# What it imports is in the engine's environment, not here.
# mypy: ignore-errors
import importlib.util
import json
import os
import sys
import tempfile
import traceback
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

BATCHED_TOKENS = 8192  # vLLM's default on a card of 70 GiB and more (engine/arg_utils.py: get_batch_defaults)
KERNEL_TOKENS = {"attention": 16, "latent": 64}  # FlashAttention: multiples of; FlashMLA: exactly


def main() -> None:
    """Answer the jobs of stdin, each in a process of its own: vLLM keeps much of what it made in globals."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what vLLM prints is no answer
    prepare()
    json.dump(list(answered(json.load(sys.stdin))), answers)
    answers.close()


def answered(jobs: list[dict]) -> Iterator[dict]:
    """The answers in the order of the jobs, as many at a time as there are processors."""
    under_way = deque()
    for job in jobs:
        under_way.append(begun(job))
        if len(under_way) == os.cpu_count():
            yield ended(*under_way.popleft())
    for child in under_way:
        yield ended(*child)


def begun(job: dict) -> tuple[int, int]:
    """`answer(job)` in a fork, so that importing vLLM is paid for once: its id, and the end of a pipe to read from."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            found = answer(job)
        except Exception:
            found = {"broken": traceback.format_exc()[-2000:]}
        with os.fdopen(writer, "w") as pipe:
            json.dump(found, pipe)
        os._exit(0)
    os.close(writer)
    return child, reader


def ended(child: int, reader: int) -> dict:
    """What the fork answered."""
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    return json.loads(text) if text else {"broken": f"the process ended with status {status}"}


def answer(job: dict) -> dict:
    """The pool of one job."""
    from vllm.config import set_current_vllm_config
    from vllm.v1.core import kv_cache_utils as pool

    with tempfile.TemporaryDirectory() as folder:
        stages = job.get("pipeline_parallel", 1)
        specs = []
        for stage in range(stages):
            config = engine_config(job, Path(folder))
            specs.append(specs_of_stage(config, stage, stages))
    with set_current_vllm_config(config):
        try:
            ranks = pool.get_kv_cache_configs(config, specs, [job["memory"]] * stages)
        except ValueError as refusal:
            return {"refused": str(refusal)}
        tokens, concurrency = pool.get_kv_cache_capacity(config, pool.generate_scheduler_kv_cache_config(ranks))
        groups = [(group.kv_cache_spec, len(group.layer_names)) for group in ranks[0].kv_cache_groups]
        blocks = [-(-spec.max_memory_usage_bytes(config) // spec.page_size_bytes) for spec, _ in groups]
    return {
        "num_blocks": ranks[0].num_blocks,
        "tokens": tokens,
        "concurrency": concurrency,
        "blocks_per_request": blocks,
        "layers": [layers for _, layers in groups],
        "block_sizes": [spec.block_size for spec, _ in groups],
        "in_flight": config.max_in_flight_tokens,
    }


def engine_config(job: dict, folder: Path):
    """vLLM's configuration; parallel sizes are written in later, as it would look for that many devices."""
    from vllm.engine.arg_utils import EngineArgs

    model = written(folder / "model", job["config"])
    flags = {"enable_prefix_caching": True, "max_num_seqs": 256, "max_num_batched_tokens": BATCHED_TOKENS}
    flags |= job.get("flags", {})
    speculation = job.get("speculation")
    if speculation:
        draft = written(folder / "draft", job["draft"]) if "draft" in job else model
        ngram = {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
        flags["speculative_config"] = speculation | (ngram if speculation["method"] == "ngram" else {"model": draft})
    config = EngineArgs(
        model=model,
        skip_tokenizer_init=True,
        load_format="dummy",
        enforce_eager=True,
        dtype="bfloat16",
        max_model_len=job["max_model_len"],
        **flags,
    ).create_engine_config()
    config.cache_config.cache_dtype = flags.get("kv_cache_dtype", "auto")
    of_draft = config.speculative_config.draft_parallel_config if speculation else None
    for parallel in (config.parallel_config, of_draft):
        if parallel is not None:
            parallel.tensor_parallel_size = job.get("tensor_parallel", 1)
            parallel.pipeline_parallel_size = job.get("pipeline_parallel", 1)
            parallel.decode_context_parallel_size = job.get("context_parallel", 1)
    return config


def written(folder: Path, config: dict) -> str:
    """A folder with this config.json."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def specs_of_stage(config, stage: int, stages: int) -> dict:
    """What each layer of a pipeline stage says of its cache, by the layer's name. The last stage holds the draft."""
    from vllm.config import set_current_vllm_config
    from vllm.config.vllm import get_layers_from_vllm_config
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
    from vllm.platforms import current_platform
    from vllm.platforms.interface import Platform
    from vllm.v1.attention.backends import utils as layouts
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    be_rank(config, stage, stages)
    build(config, draft=stage == stages - 1)
    with set_current_vllm_config(config):
        Platform.update_block_size_for_backend.__func__(type(current_platform), config)
        specs = GPUModelRunner.get_kv_cache_spec(SimpleNamespace(vllm_config=config, shared_kv_cache_layers={}))
        backends = [
            layer.get_attn_backend() for layer in get_layers_from_vllm_config(config, AttentionLayerBase).values()
        ]
        names = [layout.name for layout in layouts.get_supported_kv_cache_layouts(backends)]
        layouts.resolve_kv_cache_layout(config, [names], list(specs.values()))
    return specs


def be_rank(config, stage: int, stages: int) -> None:
    """The first tensor-parallel rank of `stage`, without any other process: its groups only say so."""
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.distributed import parallel_state

    parallel = config.parallel_config
    tensor_parallel = parallel.tensor_parallel_size
    if not torch.distributed.is_initialized():
        parallel.tensor_parallel_size = parallel.pipeline_parallel_size = 1
        with set_current_vllm_config(config), tempfile.TemporaryDirectory() as folder:
            parallel_state.init_distributed_environment(1, 0, f"file://{folder}/meeting", 0, "gloo")
            parallel_state.initialize_model_parallel(1, 1)
        parallel.tensor_parallel_size, parallel.pipeline_parallel_size = tensor_parallel, stages
    tensor, pipeline = parallel_state._TP, parallel_state._PP
    tensor.world_size, tensor.rank_in_group = tensor_parallel, 0
    pipeline.world_size, pipeline.rank_in_group = stages, stage
    pipeline.ranks, pipeline.rank = list(range(stages)), stage
    parallel_state._DCP.world_size = parallel.decode_context_parallel_size


def build(config, *, draft: bool) -> None:
    """The model and its draft, without memory behind their tensors; layers register themselves in `config`."""
    import torch
    from vllm.compilation.backends import set_model_tag
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader.utils import initialize_model

    with torch.device("meta"), set_current_vllm_config(config):
        initialize_model(config)
        speculative = config.speculative_config
        if draft and speculative is not None and speculative.uses_draft_kv_cache():
            with set_model_tag("eagle_head"):
                initialize_model(config, model_config=speculative.draft_model_config)


def prepare() -> None:
    """Import vLLM, and replace what would answer for a CPU."""
    os.environ |= {
        "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
        "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "OMP_NUM_THREADS": "1", "VLLM_ENABLE_GEMM_RS": "0",
    }  # fmt: skip
    import torch
    import vllm
    from vllm.model_executor.models import registry

    assert vllm.__version__.startswith("0.32."), f"the figures are those of vLLM 0.32, this is {vllm.__version__}"
    torch.set_num_threads(1)
    if not importlib.util.find_spec("torchvision"):  # imported beside text models by some files, never called
        sys.modules |= {name: MagicMock() for name in TORCHVISION}
    # A class is looked at here and not in a subprocess of its own.
    registry._LazyRegisteredModel.inspect_model_cls = lambda self: registry._ModelInfo.from_model_cls(
        self.load_model_cls()
    )
    for replace in ANSWERS_LIKE_CUDA:
        replace()


def asynchronous_and_as_asked() -> None:
    """The CPU platform overrules flags that its kernels lack; CUDA keeps them, and schedules asynchronously."""
    from vllm.platforms.cpu import CpuPlatform

    overrule = CpuPlatform.check_and_update_config.__func__

    def keep(cls, config) -> None:
        cache, scheduler = config.cache_config, config.scheduler_config
        asked = [(cache, "mamba_ssm_cache_dtype"), (cache, "enable_prefix_caching")]
        asked += [
            (scheduler, name) for name in ("max_num_batched_tokens", "enable_chunked_prefill", "async_scheduling")
        ]
        if cache.user_specified_block_size:
            asked.append((cache, "block_size"))
        values = [getattr(owner, name) for owner, name in asked]
        overrule(cls, config)
        for (owner, name), value in zip(asked, values, strict=True):
            setattr(owner, name, value)

    CpuPlatform.check_and_update_config = classmethod(keep)


def cuda_kernel_blocks() -> None:
    """Block sizes are chosen by what the attention kernels take, whatever the processor of this machine has."""
    import torch
    from vllm.platforms.cpu import CpuPlatform
    from vllm.v1.attention.backend import MultipleOf
    from vllm.v1.attention.backends import cpu_attn
    from vllm.v1.attention.backends.mla import cpu_mla

    torch.cpu._is_amx_tile_supported = lambda: False  # with it, another latent backend with blocks of its own is taken
    attention, latent = KERNEL_TOKENS["attention"], KERNEL_TOKENS["latent"]
    backend = cpu_attn.CPUAttentionBackend
    backend.get_supported_kernel_block_sizes = staticmethod(lambda kv_cache_spec=None: [MultipleOf(attention)])
    backend.supports_block_size = classmethod(lambda cls, size: size is None or size % attention == 0)
    backend.supports_head_size = classmethod(lambda cls, size: True)
    backend.supported_kv_cache_layouts = classmethod(lambda cls: None)
    for backend in [c for name, c in vars(cpu_mla).items() if name.startswith("CPU") and name.endswith("Backend")]:
        backend.get_supported_kernel_block_sizes = staticmethod(lambda kv_cache_spec=None: [latent])
        backend.supports_block_size = classmethod(lambda cls, size: size is None or size % latent == 0)
        backend.supported_kv_cache_layouts = classmethod(lambda cls: None)
    choose = CpuPlatform.get_attn_backend_cls.__func__

    def dense(cls, selected_backend, attn_selector_config, num_heads=None):
        # Sparse attention differs in its kernels, not in its cache.
        return choose(cls, selected_backend, attn_selector_config._replace(use_sparse=False), num_heads)

    CpuPlatform.get_attn_backend_cls = classmethod(dense)


def cuda_and_triton_there() -> None:
    """Triton decides which model runner there is, and so how many batches are in flight; some models make events."""
    import torch
    import vllm.config.vllm as config

    config.HAS_TRITON = True
    torch.cuda.Event = torch.cuda.Stream = MagicMock


def no_experts() -> None:
    """Expert layers hold weights only, and lack kernels on a CPU."""
    import torch
    import vllm.model_executor.layers.fused_moe as moe
    from vllm.model_executor.layers.fused_moe import layer

    class Experts(torch.nn.Module):
        def __getattr__(self, name: str):
            try:
                return super().__getattr__(name)
            except AttributeError:
                if name.startswith("_"):
                    raise
                return MagicMock()

    moe.FusedMoEFactory = layer.FusedMoEFactory = lambda *args, **kwargs: Experts()


ANSWERS_LIKE_CUDA = (asynchronous_and_as_asked, cuda_kernel_blocks, cuda_and_triton_there, no_experts)
TORCHVISION = (
    "torchvision",
    "torchvision.transforms",
    "torchvision.transforms.v2",
    "torchvision.transforms.functional",
)

if __name__ == "__main__":
    main()
