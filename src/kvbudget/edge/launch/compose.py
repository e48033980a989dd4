"""Decides what the services of a Compose file would start, with what environment and how many GPUs.

Variables of the file come from the shell or .env of who starts it; only their defaults (${NAME:-default}) are known.
"""

from collections.abc import Mapping

from kvbudget.edge.launch.kubernetes import of_one
from kvbudget.engines.commands.command import SAY_WITH_FLAGS, Invocation, Note, shown
from kvbudget.engines.commands.shell import processes_in, split_words
from kvbudget.errors import BadConfigError, InputError
from kvbudget.units import is_digits


def is_compose(document: object) -> bool:
    """Whether the document is a Compose file."""
    return isinstance(document, Mapping) and isinstance(document.get("services"), Mapping)


def invocations_of_compose(document: Mapping[str, object]) -> list[Invocation]:
    """One invocation for each service, whatever it runs. Raises BadConfigError for a service that is no mapping."""
    services = document["services"]
    assert isinstance(services, Mapping)  # noqa: S101 - is_compose said so
    found = []
    for name, service in services.items():
        if not isinstance(service, Mapping):
            raise BadConfigError(f"service {shown(str(name))} is not a mapping", fix="check the Compose file")
        found.append(_invocation(str(name), service))
    return found


def _invocation(name: str, service: Mapping[str, object]) -> Invocation:
    notes: list[Note] = []
    entrypoint = _words(service.get("entrypoint"))
    command = _words(service.get("command"))
    environment = _environment(service.get("environment"))
    if service.get("env_file") is not None:
        notes.append(Note("env_file is not read", SAY_WITH_FLAGS))
    replicas = _at(service, "deploy", "replicas")
    if isinstance(replicas, str) and is_digits(replicas) and int(replicas[:6]) > 1:
        notes.append(of_one(int(replicas[:6])))
    container = service.get("container_name")
    return Invocation(
        (*entrypoint, *command),
        environment,
        image=_expanded(str(service.get("image") or "")),
        entrypoint=bool(entrypoint),
        gpus=_gpus(service, notes),
        where=f"service {shown(name)}",
        names=(name, str(container)) if isinstance(container, str) else (name,),
        notes=tuple(notes),
    )


def _words(value: object) -> tuple[str, ...]:
    """A command: a list of arguments, or one text that is split as words but read by no shell."""
    if isinstance(value, list):
        return tuple(_expanded(str(item)) for item in value if not isinstance(item, dict | list))
    if isinstance(value, str) and value:
        return tuple(_expanded(word) for word in split_words(value))
    return ()


def _environment(value: object) -> dict[str, str]:
    pairs: dict[str, str] = {}
    if isinstance(value, Mapping):
        pairs = {str(name): _expanded(str(text)) for name, text in value.items() if isinstance(text, str)}
    elif isinstance(value, list):
        for item in value:
            name, equals, text = str(item).partition("=")
            if equals:
                pairs[name] = _expanded(text)
    return pairs


def _expanded(text: str) -> str:
    """Compose's interpolation: ${NAME:-default}, $NAME, $$ for a dollar. What nobody says is marked UNRESOLVED.

    It is done word by word, because a value is never split. Quotes and backslashes are plain text here.
    """
    if "$" not in text:
        return text
    out = []
    for index, part in enumerate(text.split("$$")):
        if index:
            out.append("$")
        quoted = part.replace("\\", "\\\\").replace('"', '\\"').replace("`", "\\`").replace("$(", "\\$(")
        try:
            processes = processes_in(f'x "{quoted}"')
        except InputError:
            out.append(part)
            continue
        out.append(processes[0].argv[1] if processes and len(processes[0].argv) > 1 else "")
    return "".join(out)


def _gpus(service: Mapping[str, object], notes: list[Note]) -> int | None:
    """deploy.resources.reservations.devices, or the shorter `gpus`."""
    short = service.get("gpus")
    if isinstance(short, str):
        return int(short[:6]) if is_digits(short) else None
    devices = short if isinstance(short, list) else _at(service, "deploy", "resources", "reservations", "devices")
    total: int | None = None
    for device in devices if isinstance(devices, list) else ():
        if not isinstance(device, Mapping):
            continue
        capabilities = device.get("capabilities")
        if isinstance(capabilities, list) and not any("gpu" in str(one) for one in capabilities):
            continue
        ids, count = device.get("device_ids"), device.get("count")
        if isinstance(ids, list):
            total = (total or 0) + len(ids)
        elif isinstance(count, str):
            count = _expanded(count)
            if is_digits(count):
                total = (total or 0) + int(count[:6])
            elif count != "all":
                notes.append(
                    Note(f"the number of GPUs is {shown(count)}, which is not defined in the text", "give --gpus N")
                )
    return total


def _at(value: object, *path: str) -> object:
    for step in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(step)
    return value
