"""What the images of a chat add to its count: their model's rule on top of the count of its text; else a refusal."""

from collections.abc import Awaitable

from kvbudget.edge.openai.ask import Ask, ChatPrompt
from kvbudget.edge.openai.errors import BadRequestError
from kvbudget.edge.openai.images import IMAGE_PARTS, size_of
from kvbudget.edge.tokens.bound import ThreadedBoundCounter
from kvbudget.edge.tokens.count import Count, Counter, CountFailedError
from kvbudget.edge.tokens.image_rules import AROUND_IMAGE, ImageRule
from kvbudget.units import Tokens


class ImageCounter:
    """Any counter, for chats with images as well: then a bound, because what surrounds an image is only bounded."""

    def __init__(self, text: Counter, rule: ImageRule | None) -> None:
        self.text = text
        self.rule = rule
        self._bound = ThreadedBoundCounter()

    @property
    def name(self) -> str:
        """Of the counter of the text."""
        return self.text.name

    def count(self, ask: Ask) -> Count | Awaitable[Count]:
        """As the counter of the text, and what the images take. Raises BadRequestError where nothing bounds them."""
        prompt = ask.prompt
        if not isinstance(prompt, ChatPrompt) or not prompt.images:
            return self.text.count(ask)
        if self.rule is None:
            raise BadRequestError(
                "The gate does not know what an image takes in this model. Its operator can tell it with --tokenizer "
                "and the folder of a model whose rule is known, or with --image-tokens",
                "messages",
                "unsupported_content_part",
            )
        images = sum(self.rule.tokens(size_of(url)) + AROUND_IMAGE for url in prompt.images)
        worded = ask._replace(prompt=without_images(prompt))
        try:
            counted = self.text.count(worded)
        except CountFailedError:
            counted = self._bound.count(worded)
        return _more(counted, images) if isinstance(counted, Count) else self._later(counted, worded, images)

    async def _later(self, counting: Awaitable[Count], worded: Ask, images: int) -> Count:
        try:
            return _more(await counting, images)
        except CountFailedError:
            # Here and not by whom it is told: a bound of bytes says nothing of images.
            bound = self._bound.count(worded)
            return _more(bound if isinstance(bound, Count) else await bound, images)


def without_images(prompt: ChatPrompt) -> ChatPrompt:
    """The chat with its texts alone."""
    return prompt._replace(messages=tuple(_texts_of(message) for message in prompt.messages), images=())


def _texts_of(message: dict[str, object]) -> dict[str, object]:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    kept = [part for part in content if not (isinstance(part, dict) and part.get("type") in IMAGE_PARTS)]
    return message if len(kept) == len(content) else {**message, "content": kept}


def _more(count: Count, images: int) -> Count:
    return Count(tuple(Tokens(tokens + images) for tokens in count.prompt_tokens), exact=False)
