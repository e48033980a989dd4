"""Decides what the containers of Kubernetes manifests would start, with what environment and how many GPUs.

Containers are looked for wherever a `containers` list stands, so that Deployments, StatefulSets, Jobs, RayServices,
LeaderWorkerSets and resources of operators are all read.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from kvbudget.engines.commands.command import UNRESOLVED, Invocation, Note, shown
from kvbudget.units import is_digits

_ACCELERATOR_LABELS = (
    "nvidia.com/gpu.product",
    "cloud.google.com/gke-accelerator",
    "karpenter.k8s.aws/instance-gpu-name",
    "amd.com/gpu.product-name",
)
_PARTITION_LABELS = ("cloud.google.com/gke-gpu-partition-size",)
_MIG = "mig-"


class _Pod(NamedTuple):
    """Where a list of containers stands. `size`: pods of a group that serve together; `worker`: not the first."""

    spec: Mapping[str, object]
    size: int
    worker: bool
    replicas: int


def is_manifest(document: object) -> bool:
    """Whether the document is a Kubernetes resource."""
    return isinstance(document, Mapping) and isinstance(document.get("kind"), str) and "apiVersion" in document


def invocations_of_manifests(documents: Sequence[object]) -> list[Invocation]:
    """One invocation for each container, whatever it runs."""
    resources = [item for document in documents for item in _items(document)]
    maps = {_name(one): _texts(one.get("data")) for one in resources if one.get("kind") == "ConfigMap"}
    files = {name: text for data in maps.values() for name, text in data.items()}
    found: list[Invocation] = []
    for resource in resources:
        kind = str(resource.get("kind"))
        if kind == "ConfigMap":
            continue
        where = f"{kind}/{_name(resource)}"
        pods = list(_pods(resource, 1, worker=False, replicas=1))
        led = any(not pod.worker for pod in pods)
        for pod in pods:
            if not (pod.worker and led):
                found += [_invocation(one, pod, where, maps, files) for one in _mappings(pod.spec.get("containers"))]
        if kind == "InferenceService":
            found += _served(resource, where, maps)
    return found


def _items(document: object) -> Iterator[Mapping[str, object]]:
    """The resource itself, or those of a List."""
    if not is_manifest(document) or not isinstance(document, Mapping):
        return
    items = document.get("items")
    if str(document["kind"]).endswith("List") and isinstance(items, list):
        for item in items:
            yield from _items(item)
    else:
        yield document


def _pods(value: object, size: int, *, worker: bool, replicas: int) -> Iterator[_Pod]:
    if isinstance(value, list):
        for item in value:
            yield from _pods(item, size, worker=worker, replicas=replicas)
    if not isinstance(value, Mapping):
        return
    replicas = max(replicas, _number(value.get("replicas")) or 1)
    if isinstance(value.get("containers"), list):
        yield _Pod(value, size, worker, replicas)
    for key, inner in value.items():
        if key in ("containers", "initContainers"):
            continue
        group = size
        if key == "leaderWorkerTemplate" and isinstance(inner, Mapping):
            group = _number(inner.get("size")) or 1
        below = worker or key in ("workerTemplate", "workerSpec", "workerGroupSpecs")
        yield from _pods(inner, group, worker=below, replicas=replicas)


def _invocation(
    container: Mapping[str, object],
    pod: _Pod,
    where: str,
    maps: Mapping[str, Mapping[str, str]],
    files: Mapping[str, str],
) -> Invocation:
    notes: list[Note] = []
    environment = _environment(container, maps)
    if pod.size > 1:  # injected by the LeaderWorkerSet controller
        environment.setdefault("LWS_GROUP_SIZE", str(pod.size))
    command = _arguments(container.get("command"), environment)
    arguments = _arguments(container.get("args"), environment)
    gpus, profile = _gpus(container, notes)
    if pod.size > 1:
        notes.append(
            Note(
                f"{pod.size} pods serve together; their GPUs are counted together",
                "give --gpus N if it is another number",
            )
        )
        gpus = gpus * pod.size if gpus is not None else None
    if pod.replicas > 1:
        notes.append(of_one(pod.replicas))
    name = str(container.get("name", ""))
    return Invocation(
        (*command, *arguments),
        environment,
        image=str(container.get("image") or ""),
        entrypoint=bool(command),
        gpus=gpus,
        gpu=_label(pod.spec, _ACCELERATOR_LABELS),
        mig_profile=profile or _label(pod.spec, _PARTITION_LABELS),
        where=f"{where} container {shown(name)}",
        names=(where, where.partition("/")[2], name),
        notes=tuple(notes),
        files=files,
    )


def _served(resource: Mapping[str, object], where: str, maps: Mapping[str, Mapping[str, str]]) -> Iterator[Invocation]:
    """KServe's predictor.model: its huggingface runtime is vLLM, with names of its own for the model."""
    model = _at(resource, "spec", "predictor", "model")
    runtime = str(_at(model, "modelFormat", "name") or "").lower()
    if not isinstance(model, Mapping) or runtime not in ("huggingface", "vllm"):
        return
    environment = _environment(model, maps)
    arguments = ["vllm", "serve"]
    for argument in _arguments(model.get("args"), environment):
        flag, _, value = argument.partition("=")
        if flag in ("--model_id", "--model-id"):
            arguments += ["--model", value] if value else ["--model"]
        elif flag not in ("--model_name", "--model-name") or not value:
            arguments.append("--served-model-name" if flag in ("--model_name", "--model-name") else argument)
    uri = str(model.get("storageUri") or "")
    if uri.startswith("hf://") and "--model" not in arguments:
        arguments += ["--model", uri.removeprefix("hf://")]
    notes: list[Note] = []
    gpus, profile = _gpus(model, notes)
    yield Invocation(
        tuple(arguments),
        environment,
        gpus=gpus,
        mig_profile=profile,
        where=where,
        names=(where, where.partition("/")[2]),
        notes=tuple(notes),
    )


def _arguments(value: object, environment: Mapping[str, str]) -> tuple[str, ...]:
    items = value if isinstance(value, list) else [value] if isinstance(value, str) else []
    return tuple(_substituted(str(item), environment) for item in items if not isinstance(item, dict | list))


def _substituted(text: str, environment: Mapping[str, str]) -> str:
    """$(NAME) from the container's own environment, $$(NAME) for the text; one that is not there stays as it is."""
    out = []
    parts = text.split("$$(")
    for index, part in enumerate(parts):
        if index:
            out.append("$(")
        before, *rest = part.split("$(")
        out.append(before)
        for piece in rest:
            name, closed, after = piece.partition(")")
            known = closed and name in environment
            out.append(environment[name] + after if known else "$(" + piece)
    return "".join(out)


def _environment(container: Mapping[str, object], maps: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    environment: dict[str, str] = {}
    for source in _mappings(container.get("envFrom")):
        environment.update(maps.get(str(_at(source, "configMapRef", "name")), {}))
    for entry in _mappings(container.get("env")):
        name, value = str(entry.get("name", "")), entry.get("value")
        if isinstance(value, str):
            environment[name] = _substituted(value, environment)
            continue
        reference = _at(entry, "valueFrom", "configMapKeyRef")
        data = maps.get(str(_at(reference, "name")), {})
        key = str(_at(reference, "key"))
        environment[name] = data.get(key, f"{UNRESOLVED}${name}")
    return environment


def _gpus(container: Mapping[str, object], notes: list[Note]) -> tuple[int | None, str]:
    """nvidia.com/gpu, amd.com/gpu and the like; a MIG slice counts as one card. (how many, the slice's profile)."""
    for part in ("limits", "requests"):
        amounts = _at(container, "resources", part)
        if not isinstance(amounts, Mapping):
            continue
        total, profiles = None, []
        for key, value in amounts.items():
            name = str(key).rpartition("/")[2]
            number = _number(value)
            if number is None or not (name == "gpu" or name.startswith(_MIG) or str(key).startswith("gpu.intel.com")):
                continue
            total = (total or 0) + number
            if name.startswith(_MIG):
                profiles.append(shown(name.removeprefix(_MIG)))
        if len(set(profiles)) > 1:
            notes.append(Note(f"MIG slices of {len(profiles)} sizes: {', '.join(profiles)}", "give --gpu CARD:SLICE"))
        if total is not None:
            return total, profiles[0] if len(set(profiles)) == 1 else ""
    return None, ""


def of_one(replicas: int) -> Note:
    """What is planned is one of several engines alike, each of which brings its own cards."""
    return Note(
        f"{replicas} replicas; the plan is of one",
        f"leave it: each holds what is planned, all of them {replicas} times as much",
    )


def _label(spec: Mapping[str, object], labels: Sequence[str]) -> str:
    selector = spec.get("nodeSelector")
    if not isinstance(selector, Mapping):
        return ""
    return next((shown(str(selector[label])) for label in labels if label in selector), "")


def _mappings(value: object) -> list[Mapping[str, object]]:
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def _texts(value: object) -> dict[str, str]:
    return {str(k): v for k, v in value.items() if isinstance(v, str)} if isinstance(value, Mapping) else {}


def _name(resource: Mapping[str, object]) -> str:
    return shown(str(_at(resource, "metadata", "name") or ""))


def _number(value: object) -> int | None:
    return int(value) if isinstance(value, str) and is_digits(value) and len(value) < 7 else None


def _at(value: object, *path: str) -> object:
    for step in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(step)
    return value
