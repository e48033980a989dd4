import asyncio
from collections.abc import Coroutine
from typing import Any, NamedTuple

from kvbudget.edge.engine.driver import EngineDriver
from kvbudget.edge.engine.metrics import EngineMetrics
from kvbudget.edge.engine.settings import EngineSettings
from kvbudget.simulate.paged_engine import FinishReason, PagedEngine


class StepsCounted(EngineMetrics):
    """Counts the steps that are over."""

    steps = 0

    def step(self, scheduled_tokens: int) -> None:
        self.steps += 1
        super().step(scheduled_tokens)


class Driven(NamedTuple):
    driving: EngineDriver
    engine: PagedEngine
    metrics: StepsCounted


def driver(step_cost_s: float = 0.0, token_cost_s: float = 0.0, **settings: Any) -> Driven:
    flags = EngineSettings(num_blocks=9, block_size=4, max_model_len=32, **settings)
    engine = PagedEngine(flags.layout, 9, flags.max_num_seqs, flags.max_num_batched_tokens, 32)
    metrics = StepsCounted(engine, flags)
    return Driven(EngineDriver(engine, metrics, step_cost_s, token_cost_s), engine, metrics)


def run(driving: EngineDriver, scenario: Coroutine[Any, Any, None]) -> None:
    async def main() -> None:
        task = asyncio.create_task(driving.run())
        try:
            async with asyncio.timeout(10):
                await scenario
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())


def test_each_token_reaches_the_reader_with_its_choice_and_the_last_with_the_reason() -> None:
    driving, _, _ = driver()

    async def scenario() -> None:
        reply = driving.submit([(4, 2, None), (4, 9, 1)], every_token=True)
        assert await reply.events() == [(0, None), (1, FinishReason.STOP)]
        assert await reply.events() == [(0, FinishReason.LENGTH)]
        driving.abort(reply)

    run(driving, scenario())


def test_a_plain_reader_is_woken_once_when_all_choices_are_complete() -> None:
    driving, _, _ = driver()

    async def scenario() -> None:
        reply = driving.submit([(4, 3, None), (4, 1, None)], every_token=False)
        assert len(await reply.events()) == 4

    run(driving, scenario())


def test_an_idle_engine_takes_no_steps() -> None:
    driving, _, metrics = driver()

    async def scenario() -> None:
        reply = driving.submit([(4, 3, None)], every_token=False)
        await reply.events()
        taken = metrics.steps
        assert taken == 3
        for _ in range(100):
            await asyncio.sleep(0)
        assert metrics.steps == taken

    run(driving, scenario())


def test_an_abort_in_the_middle_of_a_step_frees_at_once_and_the_others_go_on() -> None:
    driving, engine, _ = driver(step_cost_s=0.05)

    async def scenario() -> None:
        gone = driving.submit([(8, 9, None), (8, 9, None)], every_token=True)
        stays = driving.submit([(4, 2, None)], every_token=False)
        while engine.free_blocks != 3:  # the blocks of both of its sequences, and of the other one
            await asyncio.sleep(0)
        driving.abort(gone)
        assert engine.free_blocks == 7
        assert await gone.events() == []
        assert len(await stays.events()) == 2

    run(driving, scenario())


def test_a_step_lasts_its_cost_and_that_of_its_tokens() -> None:
    driving, _, metrics = driver(step_cost_s=0.02, token_cost_s=0.01)

    async def scenario() -> None:
        begin = asyncio.get_running_loop().time()
        await driving.submit([(4, 3, None)], every_token=False).events()
        took_s = asyncio.get_running_loop().time() - begin
        assert metrics.steps == 3
        assert took_s >= 3 * 0.02 + (4 + 1 + 1) * 0.01 - 0.005

    run(driving, scenario())
