"""Reports of engines that hung, thrashed or starved, with their own figures: the gate before them does not let it come
to that. docs/gate-cases.md has the whole list."""

from collections.abc import Callable, Sequence

import pytest

from kvbudget.engines.vllm_metrics import pool_from_cache_config
from kvbudget.gate.commands import Forward, Parked, Reject
from kvbudget.gate.events import Arrived, CapacityChanged, Ended
from kvbudget.gate.gate import Gate
from kvbudget.gate.refusing.refusals import Outcome, Refusal
from kvbudget.pool.groups import Group, LayerKind, Layout, uniform_layout
from kvbudget.units import Blocks, Bytes, Tokens

MakeGate = Callable[..., Gate]
Arrive = Callable[..., Arrived]


def only(commands: Sequence[object]) -> object:
    (command,) = commands
    return command


def gate_of(make_gate: MakeGate, layout: Layout, blocks: int, max_context: int | None, **config: object) -> Gate:
    gate = make_gate(blocks, **config)
    cap = None if max_context is None else Tokens(max_context)
    gate.handle(CapacityChanged(layout, Blocks(blocks), cap), 0)
    return gate


def test_g01_a_prompt_beyond_the_real_pool_is_refused_and_those_behind_it_run(
    make_gate: MakeGate, arrive: Arrive
) -> None:
    gate = gate_of(make_gate, uniform_layout(16), 76_640 // 16, 262_144)
    refused = only(gate.handle(arrive("long", 100_000, 64), 1))
    assert isinstance(refused, Reject)
    assert (refused.refusal, refused.max_context) == (Refusal.NEVER_FITS, 76_640)
    assert isinstance(only(gate.handle(arrive("short", 1000, 64), 2)), Forward)


def test_g02_a_pool_of_exactly_one_window_has_no_room_for_it_because_of_the_null_block(
    make_gate: MakeGate, arrive: Arrive
) -> None:
    pool = pool_from_cache_config({"num_gpu_blocks": "64", "block_size": "16"})
    gate = gate_of(make_gate, uniform_layout(16), pool.usable_blocks, 1024)
    assert gate.max_context == 1008
    refused = only(gate.handle(arrive("whole", 1000, 24), 1))
    assert isinstance(refused, Reject)
    assert refused.largest_new_tokens == 8


def test_g03_a_length_that_was_fitted_to_the_pool_is_taken_back_by_a_block(make_gate: MakeGate, arrive: Arrive) -> None:
    pool = pool_from_cache_config({"num_gpu_blocks": "8", "block_size": "128"})
    gate = gate_of(make_gate, uniform_layout(128), pool.usable_blocks, 1024)
    assert gate.max_context == 896
    assert isinstance(only(gate.handle(arrive("all", 800, 96), 1)), Forward)
    assert isinstance(only(gate.handle(arrive("more", 800, 97), 1)), Reject)


def test_g06_near_the_ceiling_of_a_hybrid_every_group_rounds_up_and_keeps_its_extra_blocks(
    make_gate: MakeGate, arrive: Arrive
) -> None:
    full = Group(LayerKind.FULL, 8, Tokens(1568), Bytes(1 << 20), extra_blocks=Blocks(1))  # draft tokens' slots
    state = Group(LayerKind.MAMBA, 8, Tokens(1568), Bytes(1 << 20), fixed_blocks=Blocks(5))
    layout = Layout((full, state, state, state))
    needed = -(-262_144 // 1568) + 1 + 3 * 5
    for blocks, fits in ((needed, True), (needed - 1, False)):
        gate = gate_of(make_gate, layout, blocks, 262_144)
        assert isinstance(only(gate.handle(arrive("long", 262_080, 64), 1)), Forward if fits else Reject)


def test_g07_the_output_is_promised_with_the_prompt_so_no_wall_is_met_in_decode(
    make_gate: MakeGate, arrive: Arrive
) -> None:
    gate = gate_of(make_gate, uniform_layout(16), 1008 // 16, 1024)
    refused = only(gate.handle(arrive("named", 1000, 24), 1))
    assert isinstance(refused, Reject)
    assert refused.largest_new_tokens == 8
    clipped = only(gate.handle(arrive("open", 1000, None), 2))
    assert isinstance(clipped, Forward)
    assert clipped.max_new_tokens == 8


def test_g11_a_prompt_that_fits_only_in_part_is_not_begun(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = gate_of(make_gate, uniform_layout(16), 444_448 // 16, None)  # four of 100,000 are 90 % of it
    for number in range(4):
        assert isinstance(only(gate.handle(arrive(f"r{number}", 100_000, 64), number)), Forward)
    assert only(gate.handle(arrive("fifth", 100_000, 64), 5)) == Parked("fifth", 1)


def test_g30_concurrency_is_what_the_pool_holds_and_not_the_engines_slots(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = gate_of(make_gate, uniform_layout(16), 77_088 // 16, None, max_num_seqs=256)
    commands = [only(gate.handle(arrive(f"r{number}", 550, 500), number)) for number in range(256)]
    assert sum(isinstance(command, Forward) for command in commands) == 77_088 // 16 // -(-1050 // 16)


def test_g33_a_slot_of_a_divided_context_is_the_cap(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = gate_of(make_gate, uniform_layout(1), 163_840, 163_840 // 6)
    refused = only(gate.handle(arrive("r", 27_306, 1), 1))
    assert isinstance(refused, Reject)
    assert (refused.refusal, refused.max_context) == (Refusal.CONTEXT_EXCEEDED, 27_306)
    assert isinstance(only(gate.handle(arrive("s", 27_305, 1), 1)), Forward)


def test_g34_a_missing_limit_promises_a_default_and_not_the_rest_of_the_window(
    make_gate: MakeGate, arrive: Arrive
) -> None:
    gate = gate_of(make_gate, uniform_layout(16), 4096, 65_536)
    forwarded = only(gate.handle(arrive("r", 100, None), 1))
    assert isinstance(forwarded, Forward)
    assert (forwarded.max_new_tokens, forwarded.reserved_blocks) == (64, 11)


@pytest.mark.parametrize(("prompt", "fits"), [(7100, True), (8209, False), (100_000, False)])
def test_g41_the_pool_is_the_context_whatever_the_model_advertises(
    make_gate: MakeGate, arrive: Arrive, prompt: int, fits: bool
) -> None:
    gate = gate_of(make_gate, uniform_layout(1), 8209, 204_800)
    answered = only(gate.handle(arrive("r", prompt, 1000), 1))
    assert isinstance(answered, Forward if fits else Reject)


def test_g42_no_more_are_in_flight_than_the_engine_takes(make_gate: MakeGate, arrive: Arrive) -> None:
    gate = gate_of(make_gate, uniform_layout(16), 100_000, None, max_num_seqs=128)
    commands = [only(gate.handle(arrive(f"r{number}", 16, 16), number)) for number in range(500)]
    assert sum(isinstance(command, Forward) for command in commands) == 128
    assert all(isinstance(command, Parked) for command in commands[128:])
    followers = gate.handle(Ended("r0", Outcome.FINISHED), 600)
    assert [command.request_id for command in followers] == ["r128"]
