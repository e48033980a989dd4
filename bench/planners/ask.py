"""Asks one planner for the KV bytes of one request: runs inside that planner's own environment, without network.

    PEER/bin/python ask.py PEER < [{"config": PATH, "tokens": N}, ...]

prints one JSON object a line: {"bytes": N}, {"refuses": WORDS} for a clean "not supported", or {"error": WORDS} for a
crash and for a silent nothing. bfloat16 cache, one rank. A planner whose command line wants the network is asked at the
function that its command calls once the config is there.
"""

import contextlib
import io
import json
import shutil
import socket
import sys
import tempfile
import warnings
from pathlib import Path

BF16_BYTES = 2.0


class RefusedError(Exception):
    """The planner says that it does not know this model."""


def kvfit(config, path, tokens):
    from kvfit.architectures import UnsupportedArchitecture, estimate_cache

    try:  # an indexer's keys are stored in fp8 by every engine
        return estimate_cache(config, context_tokens=tokens, kv_bytes=BF16_BYTES, index_bytes=1.0).total_bytes
    except UnsupportedArchitecture as refusal:
        raise RefusedError(str(refusal)) from None


def vramscout(config, path, tokens):
    from vramscout import modern_v06
    from vramscout.modern_core import ModernInspectionError
    from vramscout.modern_v07 import plan_modern

    modern_v06._selected_hub_metadata = lambda ref, revision: (10**9, 2 * 10**9)  # parameters and bytes of the weights

    try:
        plan = plan_modern(path, context=tokens, kv_dtype="bf16", weight_dtype="bf16", vram_gib=100_000.0)
    except ModernInspectionError as refusal:
        raise RefusedError(str(refusal)) from None
    beside = ("Model weights", "CUDA", "Prefill", "Safety")
    return sum(gib for name, gib in plan.parts_gib.items() if not name.startswith(beside)) * 2**30


def servcalc(config, path, tokens):
    from servcalc import work
    from vramcalc.loaders import load_arch

    try:
        arch = load_arch(path)
    except (ValueError, NotImplementedError) as refusal:
        raise RefusedError(str(refusal)) from None
    return work.kv_bytes_per_token(arch, 16) * tokens


def hf_mem(config, path, tokens):
    from hf_mem.safetensors.kv_cache import compute_safetensors_kv_cache_size

    if isinstance(config.get("text_config"), dict):  # as its run() does
        config = config["text_config"]
    return compute_safetensors_kv_cache_size(config, cache_dtype="BF16", max_model_len=tokens)


def llm_mem_planner(config, path, tokens):
    from llm_mem_planner.cli import estimate_kv_cache_gib, estimate_nsa_index_cache_gib, load_dims

    dims = load_dims(config)
    latent = estimate_kv_cache_gib(dims, batch=1, seq_len=tokens, kv_dtype_bytes=BF16_BYTES)
    return (latent + (estimate_nsa_index_cache_gib(dims, batch=1, seq_len=tokens) or 0)) * 2**30


def modelinfo_cli(config, path, tokens):
    from modelinfo.calculator import calculate_footprint

    return calculate_footprint({}, context_length=tokens, config=config)["kv_cache_bytes"]


def vllm_wizard(config, path, tokens):
    from vllm_wizard.models.metadata import _parse_config
    from vllm_wizard.planning.memory import compute_kv_cache_memory

    # Its factor of 1.15 for fragmentation is left out: it is the same for every model.
    return compute_kv_cache_memory(_parse_config(config, "m"), tokens, 1, fragmentation_factor=1.0)


def ridgepoint(config, path, tokens):
    import ridgepoint as package
    from ridgepoint import hf

    hf._download_json = lambda repo, name, revision: config
    hf._params_from_index = lambda repo, revision, cfg, text: 10**9  # of the weights alone
    answer = package.fit("some/model", "h100-80gb", count=64, ctx=tokens, kv_cache_dtype="bf16", as_json=True)
    return json.loads(answer)["capacity"]["bytes_per_seq"]


def llm_cal(config, path, tokens):
    from llm_cal.architecture.detector import detect
    from llm_cal.architecture.formulas.kv_cache import compute_kv_cache_bytes

    answer = compute_kv_cache_bytes(detect(config), tokens)
    if answer.label.name == "UNKNOWN":
        raise RefusedError(answer.source or "unknown")
    return answer.value


def aiconfigurator(config, path, tokens):
    from aiconfigurator.sdk import models
    from aiconfigurator.sdk.config import ModelConfig

    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(path, Path(folder) / "config.json")
        try:
            model = models.get_model(folder, ModelConfig(moe_tp_size=1, moe_ep_size=1), "vllm")
        except (ValueError, KeyError) as refusal:
            raise RefusedError(str(refusal)) from None
    return model.get_kvcache_bytes_per_sequence(tokens)


PEERS = {
    "kvfit": kvfit, "vramscout": vramscout, "hf-mem": hf_mem, "ridgepoint": ridgepoint, "llm-cal": llm_cal,
    "vllm-wizard": vllm_wizard, "modelinfo-cli": modelinfo_cli, "servcalc": servcalc,
    "llm-mem-planner": llm_mem_planner, "aiconfigurator": aiconfigurator,
}  # fmt: skip


def answer(peer, question):
    """One line of the answer; nothing that a planner raises or prints gets through."""
    path, tokens = question["config"], question["tokens"]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            found = PEERS[peer](json.loads(Path(path).read_text()), path, tokens)
    except RefusedError as refusal:
        return {"refuses": str(refusal)[:200]}
    except (Exception, SystemExit) as crash:
        return {"error": f"{type(crash).__name__}: {crash}"[:200]}
    return {"bytes": found} if found else {"error": "answers 0"}


def no_network(*_args, **_kwargs):
    raise OSError("this benchmark is offline")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    socket.socket.connect = socket.create_connection = socket.getaddrinfo = no_network
    for asked in json.load(sys.stdin):
        print(json.dumps(answer(sys.argv[1], asked)), flush=True)
