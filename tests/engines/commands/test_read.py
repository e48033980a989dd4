"""What a command leaves open is said, and settings files stand before the command's own flags."""

from collections.abc import Callable, Sequence

import pytest

from kvbudget.engines.commands.command import Command, Invocation, Start
from kvbudget.engines.commands.read import command_of, config_path, with_config
from kvbudget.errors import BadValueError

ReadLine = Callable[[str], Command]
Starts = Callable[[str], Sequence[Start]]


def test_a_flag_with_an_unset_variable_is_left_out_and_named(read_line: ReadLine) -> None:
    command = read_line('vllm serve m --max-model-len "$LEN" -tp ${TP} --port $PORT --seed 1')
    assert command.given == frozenset()
    assert command.hidden == (
        "--max-model-len: $LEN is not defined in the text, so the flag is left out",
        "-tp: $TP is not defined in the text, so the flag is left out",
    )  # the port is no matter


def test_a_model_in_an_unset_variable_is_no_model(read_line: ReadLine) -> None:
    command = read_line('vllm serve "$MODEL" $EXTRA')
    assert command.model == ""
    assert command.hidden[-1] == "the model is named by $MODEL, which is not defined in the text"
    assert "arguments in $EXTRA are not said" in command.hidden


def test_flags_in_an_unset_variable_do_not_become_the_model(read_line: ReadLine) -> None:
    assert read_line("python -m vllm.entrypoints.openai.api_server $EXTRA --model m").model == "m"


def test_an_image_whose_tag_nobody_says_has_no_version(read_line: ReadLine) -> None:
    command = read_line("docker run vllm/vllm-openai:${TAG} --model m")
    assert (command.engine, command.version, command.model) == ("vllm", None, "m")
    assert "vllm/vllm-openai:$TAG" in command.hidden[-1]


def test_vllm_is_named_by_its_minor_version(read_line: ReadLine) -> None:
    command = read_line("docker run vllm/vllm-openai:v0.32.1 --model m")
    assert (command.engine, command.version) == ("vllm@0.32", "0.32.1")


def test_positional_arguments_beyond_the_model_are_named(read_line: ReadLine) -> None:
    command = read_line("vllm serve m n o")
    assert (command.model, command.hidden) == ("m", ("arguments without a flag are left out: n o",))


def test_the_environment_counts_before_the_container(starts: Starts) -> None:
    (start,) = starts("docker run --gpus 8 -e CUDA_VISIBLE_DEVICES=0,1 vllm/vllm-openai m")
    assert command_of(start).gpus == 2
    (start,) = starts("docker run --gpus 8 -e NVIDIA_VISIBLE_DEVICES=all vllm/vllm-openai m")
    assert command_of(start).gpus == 8


def test_settings_of_a_file_stand_before_the_commands_own(starts: Starts) -> None:
    (start,) = starts("vllm serve m --config c.yaml --max-model-len 8192")
    assert config_path(start) == "c.yaml"
    settings = {
        "model": "other",
        "max-model-len": 4096,
        "tensor_parallel_size": 2,
        "enable-prefix-caching": False,
        "enforce-eager": True,
        "disable-log-stats": False,
        "speculative-config": {"method": "mtp", "num_speculative_tokens": 1},
        "served-model-name": ["a", "b"],
        "hf-token": None,
    }
    command = command_of(with_config(start, settings))
    assert (command.model, command.flags.max_model_len, command.flags.tensor_parallel_size) == ("m", 8192, 2)
    assert (command.flags.enable_prefix_caching, command.flags.enforce_eager) == (False, True)
    assert command.speculative_config == {"method": "mtp", "num_speculative_tokens": 1}
    assert command.unknown == ()


def test_a_command_of_thousands_of_arguments_is_refused() -> None:
    start = Start("vllm", None, ("--x",) * 5000, Invocation(()))
    with pytest.raises(BadValueError, match="more than 4096 arguments"):
        command_of(start)


def test_lists_of_findings_are_bounded() -> None:
    start = Start("vllm", None, tuple(f"--x{n}" for n in range(3000)), Invocation(()))
    assert len(command_of(start).unknown) == 100


@pytest.mark.parametrize("variable", ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"])
def test_cards_that_a_variable_names_are_not_dropped_without_a_word(read_line: ReadLine, variable: str) -> None:
    command = read_line(f"for i in 0 1; do {variable}=$i vllm serve m -tp 2 & done")
    assert command.gpus is None
    assert [note.fix for note in command.hidden if variable in note] == [
        "give --gpus N: the cards that this engine sees"
    ]
    assert read_line(f"i=0,1; {variable}=$i vllm serve m -tp 2").gpus == 2
