"""Decides which planners are compared, at which version, and how each is installed and started."""

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "bench-planners"
CONFIGS = Path(__file__).parent / "configs"
INSTALL_S = 600
CALL_S = 60


class Peer(NamedTuple):
    """A planner on PyPI. `start`: its cheapest command that does its work, or --help where that wants the network;
    {config} is a config.json and {folder} its folder. `large`: only with --all.
    """

    name: str
    version: str
    start: tuple[str, ...]
    asked: str
    large: bool = False


PEERS = (
    Peer("kvfit", "0.3.0", ("kvfit", "--help"), "function; its command wants a hub id"),
    Peer("aiconfigurator", "0.12.0", ("aiconfigurator", "--help"), "function", large=True),
    Peer("vramscout", "0.7.0", ("vramscout", "{config}", "--context", "8192", "--vram-gib", "80", "--json"),
         "function, with weights told: its command refuses MoE offline"),
    Peer("hf-mem", "0.5.6", ("hf-mem", "--help"), "function; its command wants a hub id"),
    Peer("ridgepoint", "0.1.2", ("ridgepoint", "fit", "llama-3-70b", "--json"), "function; its command wants a hub id"),
    Peer("llm-cal", "0.2.0", ("llm-cal", "--help"), "function; its command wants a hub id"),
    Peer("vllm-wizard", "0.2.0", ("vllm-wizard", "plan", "--model", "{folder}", "--vram-gb", "80", "--gpu", "H100",
                                  "--json"), "function, without its factor of 1.15"),
    Peer("modelinfo-cli", "1.4.4", ("modelinfo", "--help"), "function; its command wants weights"),
    Peer("servcalc", "0.1.0", ("servcalc", "estimate", "{config}", "--gpu", "h100", "--json"), "function"),
    Peer("llm-mem-planner", "0.2.2", ("llm-mem", "--config", "{config}", "--seq-len", "8192"), "function"),
)  # fmt: skip
# Of PyPI too, but they plan only built-in models, want the network, or are larger than what they are compared for.
NOT_ASKED = {
    "workingset": "eight built-in models",
    "llm-d-planner": "wants the network and transformers",
    "hf-vram-calc": "wants torch and accelerate",
    "infercap": "wants an installed GPU vLLM",
    "gguf-parser-go": "reads GGUF files only",
}


def python_of(peer: Peer) -> Path:
    """The interpreter of the peer's own environment."""
    return CACHE / peer.name / "bin" / "python"


def install(peer: Peer) -> str:
    """Make the peer's environment; the reason when that failed, else nothing."""
    ready = CACHE / peer.name / f".ready-{peer.version}"
    if ready.exists():
        return ""
    CACHE.mkdir(parents=True, exist_ok=True)
    steps = (
        [sys.executable, "-m", "venv", CACHE / peer.name],
        [python_of(peer), "-m", "pip", "install", "-q", "--disable-pip-version-check", f"{peer.name}=={peer.version}"],
        [python_of(peer), "-m", "compileall", "-q", CACHE / peer.name / "lib"],  # no compiling while it is timed
    )
    for step in steps:
        try:
            done = subprocess.run(step, capture_output=True, text=True, timeout=INSTALL_S, check=False)
        except subprocess.TimeoutExpired:
            return f"did not install within {INSTALL_S} s"
        if done.returncode and "compileall" not in step:
            return f"did not install: {done.stderr.strip().splitlines()[-1][:120]}"
    ready.touch()
    return ""
