"""Decides what `docker run` starts: the image, the arguments after it, the environment and the GPUs."""

from collections.abc import Mapping, Sequence

from kvbudget.engines.commands.command import SAY_WITH_FLAGS, UNRESOLVED, Invocation, Note, shown
from kvbudget.units import is_digits

RUNTIMES = ("docker", "podman", "nerdctl")
_VERBS = ("run", "create")
# docker run --help: options that take no value
_SWITCHES = (
    "--detach", "--disable-content-trust", "--init", "--interactive", "--no-healthcheck", "--oom-kill-disable",
    "--privileged", "--publish-all", "--quiet", "--read-only", "--rm", "--sig-proxy", "--tty", "--replace", "--help",
    "--use-api-socket",
)  # fmt: skip
_SHORT_SWITCHES = "ditPq"


def run_command(argv: Sequence[str], start: int, environment: Mapping[str, str]) -> Invocation | None:
    """The process of `docker run` when argv[start] is a container runtime, else None."""
    at = start + 1
    if argv[at : at + 1] == ["container"] or tuple(argv[at : at + 1]) == ("container",):
        at += 1
    if at >= len(argv) or argv[at] not in _VERBS:
        return None
    at += 1
    inside: dict[str, str] = {}
    notes: list[Note] = []
    entrypoint: str | None = None
    gpus: int | None = None
    while at < len(argv) and argv[at].startswith("-") and argv[at] != "--":
        flag, equals, value = argv[at].partition("=")
        at += 1
        if not flag.startswith("--") and len(flag) > 2 and _takes_value(flag[:2]):
            flag, equals, value = flag[:2], "=", (flag + equals + value)[2:]  # -p8000:8000, -eNAME=value
        if not equals and _takes_value(flag):
            value = argv[at] if at < len(argv) else ""
            at += 1
        if flag in ("--env", "-e"):
            name, given, text = value.partition("=")
            if given:
                inside[name] = text
            elif name in environment:
                inside[name] = environment[name]
        elif flag == "--env-file":
            notes.append(Note(f"--env-file {shown(value)} is not read", SAY_WITH_FLAGS))
        elif flag == "--entrypoint":
            entrypoint = value
        elif flag in ("--gpus", "--device"):
            gpus = _gpus(flag, value, gpus, notes)
    if at >= len(argv):
        return None
    image = argv[at]
    arguments = tuple(argv[at + 1 :])
    if entrypoint:
        arguments = (entrypoint, *arguments)
    return Invocation(arguments, inside, image=image, entrypoint=entrypoint is not None, gpus=gpus, notes=tuple(notes))


def _takes_value(flag: str) -> bool:
    if flag.startswith("--"):
        return flag not in _SWITCHES
    return not all(char in _SHORT_SWITCHES for char in flag[1:])


def _gpus(flag: str, value: str, before: int | None, notes: list[Note]) -> int | None:
    """--gpus 2, --gpus all, --gpus '"device=0,1"', --device nvidia.com/gpu=0 (CDI, once for each)."""
    if flag == "--device":
        kind, _, which = value.partition("=")
        if not kind.endswith("/gpu") or which == "all":
            return before
        return (before or 0) + 1
    text = value.strip("\"'")
    if is_digits(text):
        return int(text[:6])
    fields = text.split(",")
    for index, field in enumerate(fields):
        name, _, rest = field.partition("=")
        if name == "count" and is_digits(rest):
            return int(rest[:6])
        if name == "device" and UNRESOLVED not in rest:
            return len([one for one in [rest, *fields[index + 1 :]] if one and "=" not in one])
    if text != "all":
        notes.append(Note(f"--gpus {shown(value)}: how many is not said", "give --gpus N"))
    return before
