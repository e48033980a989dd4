"""The four forms in which a prompt reaches the gate, already checked, before it is counted."""

from collections.abc import Callable
from typing import ClassVar, Final, NamedTuple

from kvbudget.values import Value


class ChatPrompt(Value):
    """Messages that the model's chat template renders.

    `messages` and `tools` are as the client sent them, types checked. `template_kwargs` is everything else that the
    template sees (`chat_template_kwargs`, `documents`, `reasoning_effort`), merged as vLLM 0.32 merges it. `images` are
    the URLs of its image parts: what they take is not in the text.
    """

    _fields: ClassVar = (
        "messages", "tools", "add_generation_prompt", "continue_final_message", "template_kwargs",
        "add_special_tokens", "images",
    )  # fmt: skip
    __slots__ = _fields

    def __init__(
        self,
        messages: tuple[dict[str, object], ...],
        tools: tuple[dict[str, object], ...] | None,
        add_generation_prompt: bool,
        continue_final_message: bool,
        template_kwargs: dict[str, object],
        add_special_tokens: bool,
        images: tuple[str, ...] = (),
    ) -> None:
        self.messages: Final = messages
        self.tools: Final = tools
        self.add_generation_prompt: Final = add_generation_prompt
        self.continue_final_message: Final = continue_final_message
        self.template_kwargs: Final = template_kwargs
        self.add_special_tokens: Final = add_special_tokens
        self.images: Final = images


class TextPrompt(NamedTuple):
    """One or more raw prompts; each becomes a request of its own in the engine."""

    texts: tuple[str, ...]
    add_special_tokens: bool


class TokenPrompt(NamedTuple):
    """One or more prompts given as token ids: their lengths in tokens."""

    lengths: tuple[int, ...]


class OpaquePrompt(NamedTuple):
    """A prompt whose rendering is not reproduced here: only bounded.

    `messages` is the number of turns around which a template may put its own tokens (0: no template). `measure` adds
    up `byte_bound`: it may take a second for a body of megabytes, so that a counter may want to do it in a thread.
    """

    measure: Callable[[], int]
    messages: int

    @property
    def byte_bound(self) -> int:
        """Most bytes of normalised text that the request can become. Raises BadRequestError (`prompt_too_large`)."""
        return self.measure()


Prompt = ChatPrompt | TextPrompt | TokenPrompt | OpaquePrompt
