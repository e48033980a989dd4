"""`docker run` tells image, arguments, environment and GPUs apart."""

import pytest

from kvbudget.engines.commands.command import Invocation
from kvbudget.engines.commands.containers import run_command
from kvbudget.engines.commands.shell import processes_in


def run(text: str) -> Invocation:
    (process,) = processes_in(text)
    found = run_command(process.argv, 0, process.environment)
    assert found is not None
    return found


def test_what_follows_the_image_is_the_engines() -> None:
    found = run("docker run --rm -itd -p8000:8000 -v ~/a:/a --name x --ipc=host --shm-size 16g img:1 --model m -tp 2")
    assert (found.image, found.argv, found.entrypoint) == ("img:1", ("--model", "m", "-tp", "2"), False)


def test_an_entry_point_comes_first() -> None:
    found = run("podman run --entrypoint python3 img -m vllm.entrypoints.openai.api_server")
    assert (found.argv[:2], found.entrypoint) == (("python3", "-m"), True)


def test_variables_are_given_or_passed_on() -> None:
    found = run("B=2 docker container run -eA=1 --env B --env C --env=D=x=y --env-file secrets.env img")
    assert found.environment == {"A": "1", "B": "2", "D": "x=y"}
    assert found.notes == ("--env-file secrets.env is not read",)


@pytest.mark.parametrize(
    ("flags", "gpus"),
    [
        ("--gpus 2", 2),
        ("--gpus all", None),
        ("--gpus=all", None),
        ("""--gpus '"device=0,1,3"'""", 3),
        ("--gpus device=GPU-3faa", 1),
        ("--gpus count=4,capabilities=compute", 4),
        ("--device nvidia.com/gpu=0 --device nvidia.com/gpu=1", 2),
        ("--device nvidia.com/gpu=all", None),
        ("--device /dev/kfd --device /dev/dri", None),
        ("", None),
    ],
)
def test_gpus_are_counted(flags: str, gpus: int | None) -> None:
    assert run(f"docker run {flags} img").gpus == gpus


def test_a_number_of_gpus_that_is_not_said_is_noted() -> None:
    found = run("docker run --gpus $N img")
    assert found.gpus is None
    assert found.notes == ("--gpus $N: how many is not said",)


@pytest.mark.parametrize(
    "text", ["docker pull img", "docker", "docker exec x vllm serve m", "docker run", "docker run -e"]
)
def test_other_verbs_start_no_container(text: str) -> None:
    (process,) = processes_in(text)
    assert run_command(process.argv, 0, {}) is None
