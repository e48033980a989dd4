"""Short ways to write dialogues with a gate."""

from collections.abc import Callable

import pytest

from kvbudget.gate.events import Arrived
from kvbudget.gate.gate import Gate, GateConfig
from kvbudget.gate.policies import Policy
from kvbudget.pool.groups import uniform_layout
from kvbudget.units import Blocks, Tokens

SECOND = 10**9


@pytest.fixture
def make_gate() -> Callable[..., Gate]:
    """A gate over `blocks` blocks of 16 tokens; worst-case unless told otherwise, no tail after aborts, `learned` from
    the first request on."""

    def make(blocks: int = 10, policy: Policy = Policy.WORST_CASE, **config: object) -> Gate:
        settings: dict[str, object] = {"abort_tail_ns": 0, "lag_steps": 0, "enough_answers": 0.0, **config}
        return Gate(GateConfig(policy=policy, **settings), uniform_layout(16), Blocks(blocks))  # type: ignore[arg-type]

    return make


@pytest.fixture
def arrive() -> Callable[..., Arrived]:
    """An arrival of one prompt; `new` None means that the client named no limit."""

    def make(name: str, prompt: int = 16, new: int | None = 16, **more: object) -> Arrived:
        limit = None if new is None else Tokens(new)
        return Arrived(name, (Tokens(prompt),), limit, Tokens(64), **more)  # type: ignore[arg-type]

    return make
