"""Manifests tell what their containers start."""

from textwrap import dedent

import pytest

from kvbudget.edge.launch.documents import documents_in
from kvbudget.edge.launch.kubernetes import invocations_of_manifests, is_manifest
from kvbudget.engines.commands.command import UNRESOLVED, Invocation

POD = """
apiVersion: v1
kind: Pod
metadata: {{name: p}}
spec:
  containers:
    - name: c
      image: vllm/vllm-openai:v0.32.0
      {0}
"""


def containers(text: str) -> list[Invocation]:
    return invocations_of_manifests(documents_in(dedent(text), "f"))


def test_a_deployment_is_read() -> None:
    (found,) = containers("""
        apiVersion: apps/v1
        kind: Deployment
        metadata: {name: llm}
        spec:
          replicas: 3
          template:
            spec:
              nodeSelector: {nvidia.com/gpu.product: NVIDIA-L40S}
              initContainers: [{name: init, image: busybox}]
              containers:
                - name: server
                  image: vllm/vllm-openai:v0.32.0
                  args: [--model, org/m, --tensor-parallel-size, "2"]
                  env: [{name: A, value: "1"}]
                  resources: {limits: {nvidia.com/gpu: 2, memory: 64Gi}}
    """)
    assert (found.argv, found.entrypoint) == (("--model", "org/m", "--tensor-parallel-size", "2"), False)
    assert (found.gpus, found.gpu, found.environment) == (2, "NVIDIA-L40S", {"A": "1"})
    assert found.where == "Deployment/llm container server"
    assert found.names == ("Deployment/llm", "llm", "server")
    assert found.notes == ("3 replicas; the plan is of one",)


SLICED_POD = """
    apiVersion: v1
    kind: Pod
    metadata: {{name: p}}
    spec:
      nodeSelector: {{{labels}}}
      containers: [{{name: c, args: [serve], resources: {{limits: {{{limits}}}}}}}]
"""


@pytest.mark.parametrize(
    ("limits", "labels", "gpus", "profile"),
    [
        ("nvidia.com/mig-3g.40gb: 1", "", 1, "3g.40gb"),
        ("nvidia.com/mig-1g.10gb: 2", "", 2, "1g.10gb"),
        ("nvidia.com/gpu: 1", "cloud.google.com/gke-gpu-partition-size: 2g.20gb", 1, "2g.20gb"),
        ("nvidia.com/gpu: 1", "", 1, ""),
    ],
)
def test_a_slice_of_a_card_is_read_from_limits_or_labels(limits: str, labels: str, gpus: int, profile: str) -> None:
    (found,) = containers(SLICED_POD.format(limits=limits, labels=labels))
    assert (found.gpus, found.mig_profile, found.notes) == (gpus, profile, ())


def test_slices_of_several_sizes_are_named() -> None:
    (found,) = containers(SLICED_POD.format(limits="nvidia.com/mig-3g.40gb: 1, nvidia.com/mig-1g.10gb: 1", labels=""))
    assert (found.gpus, found.mig_profile) == (2, "")
    assert "3g.40gb, 1g.10gb" in found.notes[0]
    assert "--gpu CARD:SLICE" in found.notes[0].fix


def test_a_leader_speaks_for_its_group() -> None:
    (found,) = containers("""
        apiVersion: leaderworkerset.x-k8s.io/v1
        kind: LeaderWorkerSet
        metadata: {name: big}
        spec:
          leaderWorkerTemplate:
            size: 2
            leaderTemplate:
              spec:
                containers:
                  - name: leader
                    command: [sh, -c, "serve --pp $(LWS_GROUP_SIZE)"]
                    resources: {limits: {nvidia.com/gpu: "8"}}
            workerTemplate:
              spec:
                containers: [{name: worker, command: [join]}]
    """)
    assert (found.argv, found.gpus) == (("sh", "-c", "serve --pp 2"), 16)
    assert found.notes == ("2 pods serve together; their GPUs are counted together",)


def test_a_group_without_leader_template_is_read_from_its_workers() -> None:
    (found,) = containers("""
        apiVersion: leaderworkerset.x-k8s.io/v1
        kind: LeaderWorkerSet
        spec: {leaderWorkerTemplate: {size: 4, workerTemplate: {spec: {containers: [{command: [run]}]}}}}
    """)
    assert found.argv == ("run",)


def test_config_maps_give_variables_and_files() -> None:
    (found,) = containers("""
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: cm}
        data: {MODEL: org/m, vllm.yaml: "a: 1"}
        ---
        apiVersion: v1
        kind: Pod
        metadata: {name: p}
        spec:
          containers:
            - envFrom: [{configMapRef: {name: cm}}, {secretRef: {name: s}}]
              env:
                - {name: A, value: x-$(MODEL)}
                - {name: B, valueFrom: {configMapKeyRef: {name: cm, key: MODEL}}}
                - {name: C, valueFrom: {secretKeyRef: {name: s, key: k}}}
              args: ["$(A)", "$(B)", "$(NONE)", "$$(A)", "$(", "$(C)"]
    """)
    assert found.argv == ("x-org/m", "org/m", "$(NONE)", "$(A)", "$(", f"{UNRESOLVED}$C")
    assert found.files["vllm.yaml"] == "a: 1"


def test_lists_hold_resources() -> None:
    found = containers("""
        apiVersion: v1
        kind: List
        items:
          - {apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: x}]}}
          - {apiVersion: v1, kind: Service, metadata: {name: b}}
          - {apiVersion: v1, kind: Pod, metadata: {name: c}, spec: {containers: [{name: y}, {name: z}]}}
    """)
    assert [one.names[-1] for one in found] == ["x", "y", "z"]


def test_kserves_own_runtime_is_vllm() -> None:
    found = containers("""
        apiVersion: serving.kserve.io/v1beta1
        kind: InferenceService
        metadata: {name: a}
        spec:
          predictor:
            model:
              modelFormat: {name: huggingface}
              args: [--model_name=n, --model_id=org/m, --max-model-len=8192]
              resources: {limits: {nvidia.com/gpu: 1}}
        ---
        apiVersion: serving.kserve.io/v1beta1
        kind: InferenceService
        metadata: {name: b}
        spec: {predictor: {model: {modelFormat: {name: vLLM}, storageUri: "hf://org/n", args: [--model_name, b]}}}
        ---
        apiVersion: serving.kserve.io/v1beta1
        kind: InferenceService
        metadata: {name: c}
        spec: {predictor: {model: {modelFormat: {name: sklearn}}}}
    """)
    assert [one.argv for one in found] == [
        ("vllm", "serve", "--model", "org/m", "--max-model-len=8192"),
        ("vllm", "serve", "--served-model-name", "b", "--model", "org/n"),
    ]
    assert found[0].gpus == 1


@pytest.mark.parametrize(
    ("resources", "gpus"),
    [
        ('{limits: {nvidia.com/gpu: "4"}}', 4),
        ("{requests: {amd.com/gpu: 8}}", 8),
        ("{limits: {nvidia.com/mig-3g.40gb: 1}}", 1),
        ("{limits: {gpu.intel.com/i915: 2}}", 2),
        ("{limits: {memory: 4, cpu: 2}}", None),
        ("{limits: {nvidia.com/gpu: many}}", None),
        ("{limits: x}", None),
        ("[]", None),
    ],
)
def test_gpus_are_counted(resources: str, gpus: int | None) -> None:
    (found,) = containers(POD.format(f"resources: {resources}"))
    assert found.gpus == gpus


@pytest.mark.parametrize("fields", ["args: --x", "args: [{a: b}, [c]]", "env: x", "env: [x, {}]", "command: {a: b}"])
def test_crooked_containers_are_no_error(fields: str) -> None:
    (found,) = containers(POD.format(fields))
    assert found.argv in ((), ("--x",))


@pytest.mark.parametrize("document", [None, [], "x", {}, {"kind": "Pod"}, {"kind": [], "apiVersion": "v1"}])
def test_other_documents_are_no_manifests(document: object) -> None:
    assert not is_manifest(document)
    assert invocations_of_manifests([document]) == []
