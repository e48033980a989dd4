import asyncio
import inspect
from collections.abc import Awaitable, Callable

import pytest

from kvbudget.edge.openai.ask import Ask, ChatPrompt
from kvbudget.edge.openai.errors import BadRequestError
from kvbudget.edge.tokens.bound import BoundCounter
from kvbudget.edge.tokens.count import Count, CountFailedError
from kvbudget.edge.tokens.image_rules import AROUND_IMAGE, FixedTokens
from kvbudget.edge.tokens.images import ImageCounter
from kvbudget.units import Tokens

WORDS = {"type": "text", "text": "what is it?"}
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
Chat = Callable[..., Ask]


class Text:
    """Counts ten tokens, now, later or not at all; keeps what it was asked."""

    name = "text"

    def __init__(self, how: str = "now") -> None:
        self.how = how
        self.asked: list[Ask] = []

    def count(self, ask: Ask) -> Count | Awaitable[Count]:
        self.asked.append(ask)
        if self.how == "fails":
            raise CountFailedError("no")
        return Count((Tokens(10),), exact=True) if self.how == "now" else self._later()

    async def _later(self) -> Count:
        if self.how == "fails later":
            raise CountFailedError("no")
        return Count((Tokens(10),), exact=True)


def _count(counter: ImageCounter, ask: Ask) -> Count:
    async def run() -> Count:
        count = counter.count(ask)
        return await count if inspect.isawaitable(count) else count

    return asyncio.run(run())


@pytest.mark.parametrize("how", ["now", "later"])
def test_images_are_added_to_the_count_of_the_words_which_is_a_bound_then(chat: Chat, how: str) -> None:
    text = Text(how)
    ask = chat([{"role": "user", "content": [IMAGE, WORDS, IMAGE]}])
    count = _count(ImageCounter(text, FixedTokens(100)), ask)
    assert count == Count((Tokens(10 + 2 * (100 + AROUND_IMAGE)),), exact=False)
    prompt = text.asked[0].prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.messages == ({"role": "user", "content": [WORDS]},)
    assert not prompt.images


@pytest.mark.parametrize("how", ["fails", "fails later"])
def test_words_that_cannot_be_counted_are_bounded_beside_the_images(chat: Chat, how: str) -> None:
    count = _count(ImageCounter(Text(how), FixedTokens(100)), chat([{"role": "user", "content": [WORDS, IMAGE]}]))
    words = BoundCounter().count(chat([{"role": "user", "content": [WORDS]}]))
    assert count == Count((Tokens(words.prompt_tokens[0] + 100 + AROUND_IMAGE),), exact=False)


def test_without_a_rule_images_are_refused(chat: Chat) -> None:
    with pytest.raises(BadRequestError, match="--image-tokens") as caught:
        ImageCounter(Text(), None).count(chat([{"role": "user", "content": [IMAGE]}]))
    assert caught.value.code == "unsupported_content_part"


def test_what_has_no_images_is_counted_as_ever(chat: Chat, completions: Chat) -> None:
    counter = ImageCounter(Text(), None)
    assert counter.name == "text"
    for ask in (chat("a"), completions("a"), chat([{"role": "user", "content": [WORDS]}])):
        assert _count(counter, ask) == Count((Tokens(10),), exact=True)
