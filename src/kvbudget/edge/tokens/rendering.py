"""What every way to render a chat has in common: from a checked chat to what the tokenizer reads."""

from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple, Protocol

from kvbudget.edge.openai.prompts import ChatPrompt

# Read by templates and formats that print the date.
Clock = Callable[[], datetime]


class Piece(NamedTuple):
    """A control token (or "") and the plain text after it, which is tokenized by itself: no control token in it."""

    control: str
    text: str


# One text in which control tokens are recognised, or pieces in which they are apart.
Rendered = str | tuple[Piece, ...]


class Renderer(Protocol):
    """One way to render chats."""

    @property
    def parts(self) -> bool:
        """Whether it reads content as a list of parts (vLLM's "openai" format) and not as one string."""

    def render(self, prompt: ChatPrompt, default_kwargs: dict[str, object]) -> Rendered:
        """What the engine tokenizes. Raises BadRequestError when the conversation is rejected.

        `default_kwargs` are the server's (`--default-chat-template-kwargs`); the request's own win.
        """
