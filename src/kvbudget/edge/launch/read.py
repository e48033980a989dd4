"""Decides what kind of text `--command` was given (a line, a script, Compose, Kubernetes, an engine's own YAML file),
and which engine commands are in it. Nothing is executed, and no file is read but the given one and an engine's
`--config` beside it.
"""

import os
from collections.abc import Mapping, Sequence

from kvbudget.edge.launch.compose import invocations_of_compose, is_compose
from kvbudget.edge.launch.documents import MAX_YAML_CHARS, documents_in
from kvbudget.edge.launch.kubernetes import invocations_of_manifests, is_manifest
from kvbudget.engines.commands.command import SAY_WITH_FLAGS, UNRESOLVED, Command, Invocation, Note, Start, shown
from kvbudget.engines.commands.dialects import DIALECTS
from kvbudget.engines.commands.images import version_in
from kvbudget.engines.commands.read import command_of, config_path, with_config
from kvbudget.engines.commands.recognise import LOOKED_FOR, starts_of
from kvbudget.engines.commands.shell import processes_in
from kvbudget.errors import BadConfigError, BadValueError

MAX_FILE_BYTES = 4 * 1024 * 1024
_YAML_ENDINGS = (".yaml", ".yml", ".json")
_FILE_ENDINGS = (*_YAML_ENDINGS, ".sh", ".bash", ".txt", ".service", ".env")
# A document without one of these words starts no engine, and is not parsed.
_ENGINE_WORDS = ("vllm", "sglang", "llama", "text-generation", "trtllm", "tensorrt", "huggingface", "kind: ConfigMap")
_MOST_COMMANDS = 200
_MOST_WORDS = 50_000  # of shell text; a script that starts engines has some hundreds
_BREAKS = ";&|()<>\"'$`"


def read_commands(text_or_path: str) -> tuple[Command, ...]:
    """Every engine command of a command line, or of the file at a path; at least one.

    Raises BadValueError when there is none (saying what was looked for), when a value could not be used by the engine
    itself, or when the file is not there; BadConfigError when it is damaged or too large.
    """
    path = text_or_path if _names_a_file(text_or_path) else ""
    text = _read(path) if path else text_or_path
    if "\0" in text:
        raise BadValueError("--command: the text holds NUL characters", fix="give a command, a script or YAML")
    folder = os.path.dirname(os.path.abspath(path)) if path else ""
    what = f"--command {shown(path)}" if path else "--command"
    starts, seen = _starts(text, what, yaml=path.lower().endswith(_YAML_ENDINGS) or _looks_like_yaml(text))
    if not starts:
        raise BadValueError(
            f"{what}: no engine command found in {seen}; looked for {LOOKED_FOR}",
            fix="give the line that starts the engine",
        )
    if len(starts) > _MOST_COMMANDS:
        raise BadValueError(f"{what}: more than {_MOST_COMMANDS} engine commands", fix="give a part of the file")
    return tuple(command_of(_configured(start, folder)) for start in starts)


def one_command(commands: Sequence[Command], name: str = "") -> Command:
    """The command that `name` chooses (a service, a container, a resource such as Deployment/x), or the only one.

    Raises BadValueError when there is none of that name, or several to choose from.
    """
    chosen = [command for command in commands if name in command.names or name == command.where] if name else commands
    if len(chosen) == 1 or (chosen and all(_alike(chosen[0], other) for other in chosen[1:])):
        return chosen[0]
    listed = "; ".join(
        f"{command.where or 'a command'}: {command.engine} {shown(command.model)}".rstrip() for command in commands[:10]
    )
    if name and not chosen:
        raise BadValueError(f"--command: nothing is named {shown(name)!r}; there is {listed}", fix="use one of these")
    raise BadValueError(
        f"--command: {len(chosen)} engine commands: {listed}", fix="say which by its service or container name"
    )


def _alike(first: Command, second: Command) -> bool:
    return first._replace(where="", names=(), hidden=()) == second._replace(where="", names=(), hidden=())


def _names_a_file(text: str) -> bool:
    if "\n" in text or len(text) > 4096 or "\0" in text:
        return False
    if os.path.isfile(text):
        return True
    if text and " " not in text.strip() and text.lower().endswith(_FILE_ENDINGS):
        raise BadValueError(f"--command: {shown(text)} does not exist", fix="give a file, or the command in quotes")
    if text and os.path.isdir(text):
        raise BadValueError(f"--command: {shown(text)} is a folder", fix="give a file, or the command in quotes")
    return False


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise BadConfigError(f"{shown(path)}: cannot be read: {error.strerror}", fix="check the path") from error
    if len(data) > MAX_FILE_BYTES:
        raise BadConfigError(
            f"{shown(path)}: larger than {MAX_FILE_BYTES} bytes", fix="give the file that starts the engine"
        )
    if b"\0" in data:
        raise BadConfigError(f"{shown(path)}: is no text", fix="give a script, a Compose file or a manifest")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadConfigError(f"{shown(path)}: is no UTF-8 text", fix="save it as UTF-8") from error


def _looks_like_yaml(text: str) -> bool:
    """By the first line that says something: `---`, `key:`, `key: value`, or JSON's brace."""
    for line in text.splitlines()[:200]:
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            first = stripped.split()[0]
            return first in ("---", "%YAML", "{") or stripped.startswith('{"') or first.endswith(":")
    return False


def _starts(text: str, what: str, *, yaml: bool) -> tuple[list[Start], str]:
    """(the engines that are started, what was looked through)."""
    if not yaml:
        _refuse_many_words(text, what)
        processes = processes_in(_as_script(text) if "[Service]" in text else text)
        found: list[Start] = []
        for process in processes:
            where = f"line {process.line}" if "\n" in text else ""
            invocation = Invocation(process.argv, process.environment, where=where, notes=process.notes)
            found += starts_of(invocation)
        versions = {name: version for process in processes for name, version in _installed(process.argv)}
        found = [
            start if start.version or start.invocation.image else start._replace(version=versions.get(start.engine))
            for start in found
        ]
        return found, f"{len(processes)} command(s)"
    documents = [document for part in _parts(text) for document in documents_in(part, what)]
    invocations = [one for document in documents if is_compose(document) for one in _compose(document)]
    invocations += invocations_of_manifests([document for document in documents if is_manifest(document)])
    starts = [start for invocation in invocations for start in starts_of(invocation)]
    if invocations or len(documents) != 1:
        return starts, f"{len(invocations)} container(s)"
    return _own_file(text, what), "the settings of one YAML document"


def _refuse_many_words(text: str, what: str) -> None:
    """Before they are read one by one, which takes seconds for those of a file that was made for it."""
    if len(text.split()) + sum(map(text.count, _BREAKS)) > _MOST_WORDS:
        raise BadValueError(f"{what}: more than {_MOST_WORDS} words", fix="give the lines that start the engine")


def _installed(argv: Sequence[str]) -> list[tuple[str, str]]:
    """(engine, version) of requirements that a text installs: pip install vllm==0.32.0."""
    if "install" not in argv and "add" not in argv:
        return []
    found = [(engine, version_in(argument, engine)) for argument in argv for engine in ("vllm", "sglang")]
    return [(engine, version) for engine, version in found if version is not None]


def _as_script(unit: str) -> str:
    """A systemd unit as shell text: its Environment and ExecStart lines, continued ones kept."""
    lines: list[str] = []
    continued = False
    for line in unit.splitlines():
        key, _, value = line.partition("=")
        if continued:
            lines.append(line)
        elif key.strip() == "Environment":
            lines.append("export " + value)
        elif key.strip() == "ExecStart":
            lines.append(value.lstrip().lstrip("-@:+!"))
        else:
            lines.append("")
        continued = bool(lines[-1]) and line.endswith("\\")
    return "\n".join(lines)


def _compose(document: object) -> list[Invocation]:
    assert isinstance(document, Mapping)  # noqa: S101 - is_compose said so
    return invocations_of_compose(document)


def _parts(text: str) -> list[str]:
    """The documents of a YAML text that may start an engine; what is between others is not parsed at all."""
    parts: list[list[str]] = [[]]
    for line in text.splitlines(keepends=True):
        if line.startswith("---"):
            parts.append([])
        parts[-1].append(line)
    texts = ["".join(part) for part in parts]
    if len(texts) <= 2:
        return [text]
    wanted = [part for part in texts if any(word in part for word in _ENGINE_WORDS)]
    if sum(map(len, wanted)) > MAX_YAML_CHARS:
        raise BadConfigError(f"--command: more than {MAX_YAML_CHARS} characters of YAML", fix="give the one file alone")
    return wanted


def _own_file(text: str, what: str) -> list[Start]:
    """An engine's own settings file: the engine is the one whose flags the keys are."""
    document = documents_in(text, what, typed=True)[0]
    if not isinstance(document, Mapping) or not document:
        return []
    keys = ["--" + str(key).replace("_", "-") for key in document]
    if any(key in ("--kv-cache-config", "--max-seq-len", "--max-num-tokens", "--cuda-graph-config") for key in keys):
        engine = "trtllm"
    elif any(key in ("--model-path", "--mem-fraction-static", "--context-length") for key in keys):
        engine = "sglang"
    elif any(DIALECTS["vllm"].table.get(key) is not None for key in keys):
        engine = "vllm"
    else:
        return []
    settings = {str(key): value for key, value in document.items()}
    return [with_config(Start(engine, None, (), Invocation(())), settings)]


def _configured(start: Start, folder: str) -> Start:
    """`start` with the settings of its --config file, or a note that they could not be seen."""
    path = config_path(start)
    if not path:
        return start
    invocation = start.invocation
    what = f"--config {shown(path)}"
    brought = invocation.files.get(os.path.basename(path))
    if brought is not None:
        text = brought
    elif UNRESOLVED in path:
        return _noted(start, f"{what} is not defined in the text")
    elif invocation.image:
        return _noted(start, f"{what} is inside the container, and is not read")
    else:
        where = os.path.join(folder, path)
        if not path.lower().endswith((".yaml", ".yml")) or not os.path.isfile(where):
            return _noted(start, f"{what} is not a YAML file that is here, and is not read")
        text = _read(where)
    documents = documents_in(text, what, typed=True)
    settings = documents[0] if documents else {}
    if not isinstance(settings, Mapping):
        raise BadConfigError(f"{what}: holds no settings", fix="write key: value lines")
    return with_config(start, {str(key): value for key, value in settings.items()})


def _noted(start: Start, note: str) -> Start:
    return start._replace(
        invocation=start.invocation._replace(notes=(*start.invocation.notes, Note(note, SAY_WITH_FLAGS)))
    )
