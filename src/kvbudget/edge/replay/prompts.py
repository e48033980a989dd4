"""Decides what a prompt of an exact number of tokens reads like, with the endpoint's own /tokenize as the measure.

A prompt is a fixed first word, common words in an order of its own, and a few short fillers. Words that begin with a
space are tokens of their own in the tokenizers of our engines, so the order changes no count: it is measured once per
length, and each request still has its own text (an engine's prefix cache must not make the load lighter than the
trace). What the endpoint's `usage` says afterwards is compared in the report.
"""

import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

# Counts the tokens of a prompt's text as the endpoint will see it (chat template included), or raises CountError.
CountTokens = Callable[[str], Awaitable[int]]

_FIRST = "The"
# fmt: off
_WORDS = (
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state",
    "student", "group", "country", "problem", "hand", "part", "place", "case", "week", "company", "system", "family",
    "work", "number", "night", "point", "home", "water", "room", "mother", "area", "money", "story", "fact", "month",
    "lot", "right", "study", "book", "eye", "job", "word", "business", "issue", "side", "kind", "head", "house",
)
# fmt: on
_FILLERS = (" a", ".", "!", "a", " the", "\n")
# Another order in the first blocks is enough: a prefix cache stops at the first block that differs.
_SHUFFLED_WORDS = 96
_PROBE_WORDS = 32


class CountError(Exception):
    """The endpoint did not count: it has no /tokenize, or refused."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How many words and which tail make a prompt; `counted` is what the endpoint said of it (None: nothing)."""

    words: int
    tail: str
    counted: int | None


class PromptWriter:
    """Texts of wanted lengths. `count` None: lengths are approximated, one word a token."""

    def __init__(self, count: CountTokens | None, seed: int) -> None:
        self._count = count
        self._seed = seed
        self._recipes: dict[int, Recipe] = {}
        self._known: dict[int, int] = {}  # words -> tokens

    async def prepare(self, prompt_tokens: int) -> Recipe:
        """The recipe of one length, found by asking the endpoint a few times; cached.

        Where it does not count (no /tokenize, or none for prompts this long) the length is taken from what it counted
        before, and `counted` is None.
        """
        recipe = self._recipes.get(prompt_tokens)
        if recipe is None:
            try:
                recipe = await self._search(prompt_tokens, self._count) if self._count else self._likely(prompt_tokens)
            except CountError:
                recipe = self._likely(prompt_tokens)
            self._recipes[prompt_tokens] = recipe
        return recipe

    def text(self, prompt_tokens: int, index: int) -> str:
        """The prompt of request `index`; its length must have been prepared."""
        recipe = self._recipes[prompt_tokens]
        words = _bag(recipe.words)
        start = words[:_SHUFFLED_WORDS]
        random.Random(self._seed * 1_000_003 + index).shuffle(start)  # noqa: S311 - variety, no secret
        words[:_SHUFFLED_WORDS] = start
        return _join(words) + recipe.tail

    def _likely(self, target: int) -> Recipe:
        """A line through the shortest and the longest known count; one token a word when nothing is known."""
        base, per_word = 1.0, 1.0
        if len(self._known) > 1:
            short, long = min(self._known), max(self._known)
            per_word = (self._known[long] - self._known[short]) / (long - short)
            base = self._known[short] - short * per_word
        return Recipe(max(0, round((target - base) / max(per_word, 1e-3))), "", None)

    async def _search(self, target: int, count: CountTokens) -> Recipe:
        """The most words that stay within the target, then the filler that closes the gap, if one does."""
        words = await self._most_words(target, count)
        best = Recipe(words, "", await self._tokens_of(words, count))
        base, gap = _join(_bag(words)), target - (best.counted or 0)
        if gap <= 0:
            return best
        for filler in _FILLERS:
            for repeats in range(1, 4 * gap + 5):
                tail = filler * repeats
                counted = await count(base + tail)
                if counted > target:
                    break
                if counted > (best.counted or 0):
                    best = Recipe(words, tail, counted)
                if counted == target:
                    return best
        return best

    async def _most_words(self, target: int, count: CountTokens) -> int:
        """The largest number of words with at most `target` tokens; 0 when even the first word is too long.

        Interpolates between known counts before it halves: words have nearly the same size each.
        """
        low, low_tokens = 0, await self._tokens_of(0, count)
        if low_tokens >= target:
            return 0
        await self._tokens_of(_PROBE_WORDS, count)
        # A little more than what is likely; far longer texts could be over a limit of the endpoint.
        high = min(target, self._likely(target).words * 17 // 16 + 2)
        high_tokens = await self._tokens_of(high, count)
        while high_tokens <= target:
            if high_tokens == target or high >= target:  # a word has at least one token
                return high
            low, low_tokens, high = high, high_tokens, min(target, high + max(8, high // 8))
            high_tokens = await self._tokens_of(high, count)
        halve = False
        while high - low > 1:
            guess = low + (target - low_tokens) * (high - low) // (high_tokens - low_tokens)
            middle = (low + high) // 2 if halve else min(max(guess, low + 1), high - 1)
            halve = not halve
            tokens = await self._tokens_of(middle, count)
            if tokens == target:
                return middle
            if tokens < target:
                low, low_tokens = middle, tokens
            else:
                high, high_tokens = middle, tokens
        return low

    async def _tokens_of(self, words: int, count: CountTokens) -> int:
        if words not in self._known:
            self._known[words] = await count(_join(_bag(words)))
        return self._known[words]


def _bag(words: int) -> list[str]:
    """The first `words` words of the endless list: the multiset that one length always has."""
    rounds, rest = divmod(words, len(_WORDS))
    return [*(_WORDS * rounds), *_WORDS[:rest]]


def _join(words: Iterable[str]) -> str:
    return " ".join([_FIRST, *words])
