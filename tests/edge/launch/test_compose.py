"""Compose files tell what their services start."""

from textwrap import dedent

import pytest

from kvbudget.edge.launch.compose import invocations_of_compose, is_compose
from kvbudget.edge.launch.documents import documents_in
from kvbudget.engines.commands.command import UNRESOLVED, Invocation
from kvbudget.errors import BadConfigError


def services(text: str) -> dict[str, Invocation]:
    (document,) = documents_in(dedent(text), "f")
    assert is_compose(document)
    assert isinstance(document, dict)
    return {one.names[0]: one for one in invocations_of_compose(document)}


def test_commands_come_as_texts_and_lists() -> None:
    found = services("""
        services:
          a: {image: i, command: "--x 'a b' > y"}
          b: {image: i, command: ["--x", "a b", 3, on]}
          c: {image: i, entrypoint: [python3, -m, v], command: --x}
          d: {image: i, entrypoint: "sh -c", command: ["run $$HOME ${X:-y}"]}
          e: {image: i}
    """)
    assert found["a"].argv == ("--x", "a b", ">", "y")
    assert found["b"].argv == ("--x", "a b", "3", "on")
    assert (found["c"].argv, found["c"].entrypoint) == (("python3", "-m", "v", "--x"), True)
    assert found["d"].argv == ("sh", "-c", "run $HOME y")
    assert (found["e"].argv, found["e"].entrypoint) == ((), False)


def test_variables_have_the_files_own_defaults_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TP", "8")
    found = services("""
        services:
          a:
            image: repo/img:${TAG:-v1}
            command: >
              --m ${M:-org/m} --tp $TP --t "${T-q}" --chat '{"a": "$$b"}'
    """)["a"]
    assert found.image == "repo/img:v1"
    assert found.argv == ("--m", "org/m", "--tp", f"{UNRESOLVED}$TP", "--t", "q", "--chat", '{"a": "$b"}')


def test_the_environment_is_a_list_or_a_mapping() -> None:
    found = services("""
        services:
          a: {environment: {A: 1, B: "${X:-x}", C: }}
          b: {environment: ["A=1", "B=c=d", "C"], env_file: .env}
    """)
    assert found["a"].environment == {"A": "1", "B": "x", "C": ""}
    assert (found["b"].environment, found["b"].notes) == ({"A": "1", "B": "c=d"}, ("env_file is not read",))


@pytest.mark.parametrize(
    ("devices", "gpus"),
    [
        ("[{driver: nvidia, count: 2, capabilities: [gpu]}]", 2),
        ("[{driver: nvidia, count: all, capabilities: [gpu]}]", None),
        ('[{device_ids: ["0", "3"], capabilities: [gpu]}]', 2),
        ("[{count: 1, capabilities: [gpu]}, {count: 1, capabilities: [gpu, utility]}]", 2),
        ("[{count: 3, capabilities: [tpu]}]", None),
        ("[{count: '${N:-4}', capabilities: [gpu]}]", 4),
        ("[]", None),
        ("x", None),
        ("[x, {count: [1]}]", None),
    ],
)
def test_reserved_devices_are_counted(devices: str, gpus: int | None) -> None:
    text = f"services: {{a: {{deploy: {{resources: {{reservations: {{devices: {devices}}}}}}}}}}}"
    assert services(text)["a"].gpus == gpus


def test_the_short_form_of_gpus_is_counted() -> None:
    found = services("services: {a: {gpus: all}, b: {gpus: 2}, c: {gpus: [{driver: nvidia, count: 3}]}}")
    assert [found[name].gpus for name in "abc"] == [None, 2, 3]


def test_a_number_that_nobody_says_is_noted() -> None:
    text = "services: {a: {deploy: {replicas: 3, resources: {reservations: {devices: [{count: $N}]}}}}}"
    found = services(text)["a"]
    assert found.gpus is None
    assert len(found.notes) == 2
    assert "3 replicas" in found.notes[0]
    assert "--data-parallel-size" not in found.notes[0].fix  # each replica brings cards of its own
    assert "$N" in found.notes[1]


def test_a_service_that_is_no_mapping_is_an_error() -> None:
    with pytest.raises(BadConfigError, match="service a is not a mapping"):
        services("services: {a: text}")


@pytest.mark.parametrize("document", [None, [], "x", {}, {"services": []}, {"services": None}])
def test_other_documents_are_no_compose_files(document: object) -> None:
    assert not is_compose(document)
