"""Who counts: the tokenizer here, or the engine itself once it has turned out that the two do not agree.

What the engine reports as `usage.prompt_tokens` is compared with what was counted, on requests of text alone. A wrong
chat template or tokenizer shows there and nowhere else. The engine counts until the tokenizer agrees with it again for
long enough, each time for longer than the time before.
"""

import logging
from collections import deque
from collections.abc import Awaitable

from kvbudget.edge.openai.ask import Ask, TokenPrompt
from kvbudget.edge.openai.errors import BadRequestError
from kvbudget.edge.openai.forward import takes_token_ids
from kvbudget.edge.tokens.count import Count, Counter, TokenIds

log = logging.getLogger("kvbudget.tokens")

# Of the last so many comparisons so many must differ: a single one may be an engine that reports something else.
WINDOW = 20
DRIFTS = 3
# While the engine counts, the tokenizer counts one in so many as well, to see whether they agree again.
TRIAL_EVERY = 8
AGREEMENTS = 16
MOST_AGREEMENTS = 1024
# Prompts that could go to the engine as ids and go as text, to be compared.
TEXT_EVERY = 16


class WatchedCounter:
    """The tokenizer's counts, or the engine's."""

    def __init__(self, local: Counter, engine: Counter) -> None:
        self.local = local
        self.engine = engine
        self.engine_counts = False
        self.compared = 0
        self.drifted = 0
        self.takeovers = 0
        self._recent: deque[bool] = deque(maxlen=WINDOW)
        self._needed = AGREEMENTS
        self._agreed = 0
        self._asked = 0
        self._forwarded = 0

    @property
    def name(self) -> str:
        """Of the one that counts now."""
        return self.engine.name if self.engine_counts else self.local.name

    def count(self, ask: Ask) -> Count | Awaitable[Count]:
        """As the one that counts now does it."""
        if not self.engine_counts or isinstance(ask.prompt, TokenPrompt):
            return self.local.count(ask)
        told = self.engine.count(ask)
        self._asked += 1
        if self._asked % TRIAL_EVERY or isinstance(told, Count):
            return told
        return self._beside(told, ask)

    def ids_to_forward(self, ask: Ask, count: Count) -> TokenIds | None:
        """The prompt as ids, where the engine takes them and has agreed with every count of late.

        One in TEXT_EVERY still goes as text: ids would be counted as they are, whatever tokenizer they are from.
        """
        if not count.exact or count.token_ids is None or not takes_token_ids(ask):
            return None
        self._forwarded += 1
        agreed = len(self._recent) == WINDOW and not any(self._recent)
        if not self.engine_counts and not agreed:
            return None
        return count.token_ids if self._forwarded % TEXT_EVERY else None

    def heed(self, counted: int, told: int) -> None:
        """A finished request of text had `counted` prompt tokens by an exact count, and `told` by the engine."""
        self.compared += 1
        differs = counted != told
        self.drifted += differs
        if self.engine_counts:
            return
        self._recent.append(differs)
        if sum(self._recent) >= DRIFTS:
            self._take_over(counted, told)

    def state(self) -> dict[str, object]:
        """For the state page."""
        return {
            "counts": self.name,
            "engine_took_over": self.engine_counts,
            "takeovers": self.takeovers,
            "compared": self.compared,
            "drifted": self.drifted,
        }

    async def _beside(self, told: Awaitable[Count], ask: Ask) -> Count:
        """The engine's count; whether the tokenizer agrees is noted."""
        count = await told
        try:
            own = self.local.count(ask)
            own = own if isinstance(own, Count) else await own
        except BadRequestError:
            own = None  # a refusal of what the engine takes is no agreement
        if own is not None and not own.exact:
            return count
        if own is None or own.prompt_tokens != count.prompt_tokens:
            self._agreed = 0
            return count
        self._agreed += 1
        if self.engine_counts and self._agreed >= self._needed:
            self._give_back()
        return count

    def _take_over(self, counted: int, told: int) -> None:
        self.engine_counts = True
        self.takeovers += 1
        self._agreed = self._asked = 0
        log.warning(
            "%d of the last %d prompts were counted otherwise than by the engine (the last one %d, the engine %d): the "
            "engine's own /tokenize counts from now on. Is %s the model's tokenizer and chat template, with the "
            "engine's --chat-template and --default-chat-template-kwargs?",
            sum(self._recent), len(self._recent), counted, told, self.local.name,
        )  # fmt: skip

    def _give_back(self) -> None:
        self.engine_counts = False
        log.warning("the tokenizer agreed with the engine %d times in a row: it counts again", self._agreed)
        self._recent.clear()
        self._needed = min(2 * self._needed, MOST_AGREEMENTS)
