"""Decides whether a process starts an engine, and which of its arguments are the engine's own.

Wrappers (nohup, sudo, numactl, uv run, srun, ray job submit ...) need no list: the engine's name is looked for in the
whole argument list, and texts that a shell would read are read too.
"""

from collections.abc import Sequence

from kvbudget.engines.commands.command import Invocation, Start
from kvbudget.engines.commands.containers import RUNTIMES, run_command
from kvbudget.engines.commands.images import image_named, version_in
from kvbudget.engines.commands.shell import processes_in
from kvbudget.errors import InputError

# What is told when nothing was found.
LOOKED_FOR = (
    "vllm serve, python -m vllm.entrypoints.openai.api_server, sglang serve, python -m sglang.launch_server, "
    "llama-server, llama-cli, text-generation-launcher, trtllm-serve, and images that start one of them"
)
_MODULES = {
    "vllm.entrypoints.openai.api_server": "vllm",
    "vllm.entrypoints.api_server": "vllm",
    "vllm.entrypoints.grpc_server": "vllm",
    "sglang.launch_server": "sglang",
    "sglang.srt.entrypoints.http_server": "sglang",
    "tensorrt_llm.commands.serve": "trtllm",
}
_PROGRAMS = {
    "llama-server": "llamacpp",
    "llama-cli": "llamacpp",
    "llama-completion": "llamacpp",
    "text-generation-launcher": "tgi",
    "trtllm-serve": "trtllm",
}
# Engines whose program has subcommands; only this one starts a server.
_SERVING = {"vllm": "serve", "sglang": "serve"}
_PACKAGES = {"vllm": "vllm", "sglang": "sglang", "trtllm": "tensorrt-llm"}
# They name engines, and start none.
_TALKING = (
    "echo", "printf", "cat", "grep", "egrep", "rg", "pgrep", "pkill", "which", "type", "command", "man", "pip", "pip3",
    "apt", "apt-get", "git", "curl", "wget", "ls", "cd", "rm", "kill", "killall", "test", "[", "[[", "sed",
    "awk", "helm", "kubectl", "tail", "less",
)  # fmt: skip
_MAX_DEPTH = 4
_ANY_START = ("vllm", "sglang", "llama", "text-generation", "trtllm", "tensorrt")


def starts_of(invocation: Invocation, depth: int = 0) -> tuple[Start, ...]:
    """Every engine that the process starts: none, mostly one, several when it is a shell with a text of its own."""
    argv = invocation.argv
    if depth > _MAX_DEPTH:
        return ()
    name = _base_name(argv[0]) if argv else ""
    if name not in _TALKING:
        direct = _direct(invocation, depth)
        if direct:
            return direct
        read = _from_texts(invocation, depth)
        if read:
            return read
    image = image_named(invocation.image)
    if not invocation.entrypoint and image.entrypoint and not _other_program(argv):
        return _direct(invocation._replace(argv=image.entrypoint + argv, entrypoint=True), depth)
    if image.engine == "llamacpp" and name in ("--server", "-s"):  # the image that holds all tools
        return _direct(invocation._replace(argv=("llama-server", *argv[1:]), entrypoint=True), depth)
    return ()


def _direct(invocation: Invocation, depth: int) -> tuple[Start, ...]:
    argv = invocation.argv
    own: dict[str, str] = {}
    for index, argument in enumerate(argv):
        name = _base_name(argument)
        if name in RUNTIMES:
            inner = run_command(argv, index, invocation.environment)
            if inner is not None:
                return starts_of(_within(invocation, inner), depth + 1)
        engine, skipped = _started_at(argv, index)
        if engine:
            version = _version(argv[: index + 1], engine)
            image = image_named(invocation.image)
            if version is None and image.engine == engine:
                version = image.version
            inside = invocation._replace(environment={**invocation.environment, **own})
            return (Start(engine, version, argv[index + skipped :], inside),)
        key, equals, value = argument.partition("=")
        if equals and key.replace("_", "a").isalnum() and not key[0].isdigit():
            own[key] = value  # env NAME=value program
    return ()


def _started_at(argv: Sequence[str], index: int) -> tuple[str, int]:
    """(engine, how many arguments from `index` on are not its own), ("", 0) when no engine is started there."""
    argument = argv[index]
    name = _base_name(argument).removesuffix(".exe")
    following = argv[index + 1] if index + 1 < len(argv) else ""
    package = next((one for one in _SERVING if name == one or version_in(name, one)), "")
    if package and following == _SERVING[package]:
        return package, 2
    if argument == "-m" and following in _MODULES:
        return _MODULES[following], 2
    if argument == "-m" and following in ("vllm", "vllm.entrypoints.cli.main", "sglang", "sglang.cli.main"):
        if index + 2 < len(argv) and argv[index + 2] == "serve":
            return following.partition(".")[0], 3
        return "", 0
    if name in _PROGRAMS:
        serving = _PROGRAMS[name] == "trtllm" and following == "serve"
        return _PROGRAMS[name], 2 if serving else 1
    for module, engine in _MODULES.items():  # a script by its path
        if argument.endswith("/" + module.replace(".", "/") + ".py"):
            return engine, 1
    return "", 0


def _from_texts(invocation: Invocation, depth: int) -> tuple[Start, ...]:
    """Engines in arguments that are texts for a shell: sh -c "...", ssh host "...", tmux new "..."."""
    found: list[Start] = []
    for argument in invocation.argv:
        if not any(char.isspace() for char in argument) or not any(word in argument for word in _ANY_START):
            continue
        try:
            processes = processes_in(argument, invocation.environment)
        except InputError:
            continue
        for process in processes:
            inner = invocation._replace(
                argv=process.argv,
                environment=process.environment,
                notes=invocation.notes + process.notes,
                entrypoint=True,
            )
            found += starts_of(inner, depth + 1)
    return tuple(found)


def _within(outer: Invocation, inner: Invocation) -> Invocation:
    return inner._replace(where=outer.where, names=outer.names, notes=outer.notes + inner.notes, files=outer.files)


def _other_program(argv: Sequence[str]) -> bool:
    """Whether arguments behind an image look like a program of their own, so that no entry point takes them."""
    name = _base_name(argv[0]) if argv else ""
    return name in ("sh", "bash", "python", "python3", "sleep", "tail", "ray", "nvidia-smi") or name in _TALKING


def _version(argv: Sequence[str], engine: str) -> str | None:
    package = _PACKAGES.get(engine, "")
    if not package:
        return None
    return next((version for one in argv if (version := version_in(_base_name(one), package))), None)


def _base_name(argument: str) -> str:
    return argument.replace("\\", "/").rsplit("/", 1)[-1]
