"""llama.cpp's options become the planner's."""

from collections.abc import Callable

import pytest

from kvbudget.engines.commands.command import Command
from kvbudget.engines.commands.llamacpp import FROM_ENVIRONMENT, TABLE
from kvbudget.engines.flags import EngineFlags
from kvbudget.errors import BadValueError

ReadLine = Callable[[str], Command]


def test_a_whole_line_is_read(read_line: ReadLine) -> None:
    command = read_line(
        "./build/bin/llama-server -m x.gguf -c 32768 -np 4 -ngl 99 -ctk q8_0 -ctv q4_0 --kv-unified -fa -b 4096 "
        "-ub 1024 --swa-full --host 0.0.0.0 --port 8080 --jinja -t 8 --temp 0.7"
    )
    assert command.flags == EngineFlags(
        max_model_len=32_768,
        max_num_seqs=4,
        max_num_batched_tokens=4096,
        micro_batch=1024,
        gpu_layers=99,
        kv_cache_dtype="q8_0",
        value_cache_dtype="q4_0",
        kv_unified=True,
        swa_full=True,
    )
    assert (command.engine, command.model, command.unknown, command.unmodelled) == ("llamacpp", "x.gguf", (), ())
    assert command.ignored == ("--host", "--port", "--jinja", "-t", "--temp")


@pytest.mark.parametrize(("text", "layers"), [("auto", None), ("-1", None), ("all", 9999), ("0", 0), ("33", 33)])
def test_layers_on_the_gpu_may_be_words(read_line: ReadLine, text: str, layers: int | None) -> None:
    assert read_line(f"llama-server -m x -ngl {text}").flags.gpu_layers == layers


def test_zero_context_and_automatic_slots_are_left_to_the_engine(read_line: ReadLine) -> None:
    command = read_line("llama-server -m x -c 0 -np -1")
    assert (command.flags, command.given) == (EngineFlags(), frozenset())


def test_underscores_are_dashes_and_equals_signs_are_text(read_line: ReadLine) -> None:
    command = read_line("llama-server -m x --ctx_size 4096 --n_gpu_layers 3 --parallel=2")
    assert (command.flags.max_model_len, command.flags.gpu_layers) == (4096, 3)
    assert command.unknown == ("--parallel=2",)


def test_flash_attention_matters_only_when_it_is_off(read_line: ReadLine) -> None:
    assert read_line("llama-server -m x -fa on").hidden == ()
    assert [str(one) for one in read_line("llama-server -m x -fa off").hidden] == [
        "--flash-attn off: compute buffers grow, how much is not planned"
    ]


def test_hub_models_carry_their_quantisation(read_line: ReadLine) -> None:
    command = read_line("llama-server -hf org/Model-GGUF:Q4_K_M -hff m.gguf")
    assert (command.model, command.quantization) == ("org/Model-GGUF", "Q4_K_M")
    assert command.hidden == ("the model's file is m.gguf",)


@pytest.mark.parametrize(
    ("flags", "gpus"),
    [("-ts 1,1", 2), ("-dev CUDA0,CUDA1,CUDA2", 3), ("-dev none", 0), ("-sm none -ts 1,1", 1), ("-sm layer", None)],
)
def test_cards_are_counted(read_line: ReadLine, flags: str, gpus: int | None) -> None:
    assert read_line(f"llama-server -m x {flags}").gpus == gpus


@pytest.mark.parametrize(
    ("flags", "cards", "shares"),
    [
        ("-ts 3,1", 2, (3.0, 1.0)),
        ("-ts 3/1/2", 3, (3.0, 1.0, 2.0)),
        ("-ts 0,1", 1, None),
        ("-ts 0,0", 1, None),
        ("-ts 1,1 -sm row", 2, None),
        ("-dev CUDA0,CUDA1 -ts 3,1,1", 2, (3.0, 1.0)),
        ("-dev CUDA0,CUDA1,CUDA2 -sm none", 1, None),
        ("-dev CUDA0,CUDA1,CUDA2", 3, None),
    ],
)
def test_shares_say_how_many_cards_hold_layers_and_how_many(
    read_line: ReadLine, flags: str, cards: int, shares: tuple[float, ...] | None
) -> None:
    command = read_line(f"llama-server -m x {flags}")
    assert (command.flags.pipeline_parallel_size, command.flags.tensor_split) == (cards, shares)
    assert not any("partition" in note.fix for note in command.hidden)


@pytest.mark.parametrize("flags", ["-ts a,b", "-ts 1,-1", "-ts nan", "-ts ''", "-ts 1,inf", "-sm rows"])
def test_shares_and_modes_that_are_none_are_refused(read_line: ReadLine, flags: str) -> None:
    with pytest.raises(BadValueError):
        read_line(f"llama-server -m x {flags}")


@pytest.mark.parametrize("mode", ["row", "tensor"])
def test_matrices_that_are_split_are_noted(read_line: ReadLine, mode: str) -> None:
    assert f"--split-mode {mode}" in read_line(f"llama-server -m x -sm {mode}").hidden[0]


def test_without_a_device_nothing_lies_on_cards(read_line: ReadLine) -> None:
    assert read_line("llama-server -m x -ngl 99 -dev none").flags.gpu_layers == 0


def test_what_keeps_the_cache_or_the_context_where_it_is_is_read(read_line: ReadLine) -> None:
    flags = read_line("llama-server -m x -nkvo --fit off -fa off").flags
    assert (flags.kv_offload, flags.fit_context, flags.flash_attention) == (False, False, False)
    flags = read_line("LLAMA_ARG_KV_OFFLOAD=0 LLAMA_ARG_FIT=off llama-server -m x -fa auto").flags
    assert (flags.kv_offload, flags.fit_context, flags.flash_attention) == (False, False, None)
    flags = read_line("llama-server -m x -fit on -fa").flags
    assert (flags.kv_offload, flags.fit_context, flags.flash_attention) == (True, True, None)


def test_options_win_over_their_variables(read_line: ReadLine) -> None:
    command = read_line("LLAMA_ARG_CTX_SIZE=4096 LLAMA_ARG_N_PARALLEL=2 LLAMA_ARG_PORT=1 llama-server -m x -np 8")
    assert (command.flags.max_model_len, command.flags.max_num_seqs) == (4096, 8)
    assert command.environment == (("LLAMA_ARG_CTX_SIZE", "4096"),)


@pytest.mark.parametrize(
    ("flags", "config"),
    [
        ("-md d.gguf --draft-max 8", {"method": "draft_model", "model": "d.gguf", "num_speculative_tokens": 8}),
        ("--spec-type draft-mtp --spec-draft-n-max 2", {"method": "mtp", "num_speculative_tokens": 2}),
        ("--spec-type ngram-simple", {"method": "ngram"}),
        ("--spec-type none", None),
    ],
)
def test_speculation_is_told_in_vllms_words(read_line: ReadLine, flags: str, config: object) -> None:
    assert read_line(f"llama-server -m x {flags}").speculative_config == config


def test_variables_stand_for_options_of_the_table() -> None:
    assert set(FROM_ENVIRONMENT.values()) <= set(TABLE)
