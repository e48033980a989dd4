"""How much work one rendering of a chat template may do: loop turns, output characters, sizes of single values.

Jinja's sandbox stops access to Python, not loops or memory. The template is the model owner's, but its loops run over
what clients send. Every `for` takes fuel per turn, products and powers are bounded, output is measured as it comes.
Not bounded: recursion beyond Python's own limit (it raises), one filter call over one large value.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sized
from contextvars import ContextVar
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_LOOP_TURNS = 1_000_000
MAX_OUTPUT_CHARS = 32 * 1024 * 1024
MAX_VALUE_LENGTH = 8 * 1024 * 1024
MAX_EXPONENT = 64
MAX_BASE = 2**64
MAX_FORMAT_WIDTH = 10_000

_FILTER = "kvbudget_fuel"
_PADDING_METHODS = frozenset(("ljust", "rjust", "center", "zfill", "expandtabs", "format", "format_map"))
# `%99999d`, `%*d` and `{:>99999}`: widths of five digits or given as a value.
_WIDE_FORMAT = re.compile(r"%[^%a-zA-Z]*(?:\d{5}|\*)|\{[^{}]*:[^{}]*(?:\d{5}|\{)")
_turns_left: ContextVar[int] = ContextVar("kvbudget_turns_left", default=MAX_LOOP_TURNS)


class OutOfFuelError(SecurityError):
    """The template did more work than any real one does."""


class GenerationBlock(Extension):
    """`{% generation %}` marks what the assistant said, for training; it changes no text."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as a class attribute

    def parse(self, parser: Parser) -> nodes.Node:
        """The block's body, in a scope of its own as the call block of transformers gives it."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class FuelledEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox of transformers' `apply_chat_template`, with limits on work."""

    intercepted_binops = frozenset(("*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, "jinja2.ext.loopcontrols"])
        self.filters[_FILTER] = _fuelled
        for name in ("center", "indent", "format"):
            self.filters[name] = _with_bounded_widths(self.filters[name])

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Refuse `'a' * 10**9`, `9 ** 9 ** 9` and `'%999999999d' % 1` before they take memory or time."""
        if operator == "**" and (_too_large(right, MAX_EXPONENT) or _too_large(left, MAX_BASE)):
            raise OutOfFuelError("a power in the chat template is too large")
        if operator == "*":
            for some, other in ((left, right), (right, left)):
                if isinstance(some, (str, list, tuple, bytes)) and isinstance(other, int):
                    if len(some) * other > MAX_VALUE_LENGTH:
                        raise OutOfFuelError("a repeated value in the chat template is too large")
                elif _too_large(some, 2**4096):
                    raise OutOfFuelError("a number in the chat template is too large")
        if operator == "%":
            _check_widths((left,), {})
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Refuse string methods that pad to a width beyond use."""
        if getattr(obj, "__name__", "") in _PADDING_METHODS:
            # The sandbox wraps `str.format`; the method itself is behind it.
            method = getattr(obj, "__wrapped__", obj)
            _check_widths((getattr(method, "__self__", None), *args), kwargs)
        return super().call(context, obj, *args, **kwargs)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Every loop takes its items through the fuel filter."""
        template = super()._parse(source, name, filename)
        for loop in template.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, _FILTER, [], [], None, None, lineno=loop.lineno)
        return template


def fresh_fuel() -> None:
    """Fill up for one rendering, in this thread or task."""
    _turns_left.set(MAX_LOOP_TURNS)


def bounded_text(chunks: Iterable[str]) -> str:
    """The rendered text. Raises OutOfFuelError when it grows past MAX_OUTPUT_CHARS."""
    pieces: list[str] = []
    size = 0
    for chunk in chunks:
        size += len(chunk)
        if size > MAX_OUTPUT_CHARS:
            raise OutOfFuelError(f"the chat template writes more than {MAX_OUTPUT_CHARS} characters")
        pieces.append(chunk)
    return "".join(pieces)


@pass_context  # not for the context, but so that jinja does not evaluate it once, at compile time, for constants
def _fuelled(_context: Context, items: Iterable[Any]) -> Iterable[Any]:
    """What has a length pays at once and stays as it is, for `loop.length` and the like; the rest pays as it goes."""
    if isinstance(items, Sized):
        _burn(len(items))
        return items
    return _burning(items)


def _burning(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        _burn(1)
        yield item


def _burn(turns: int) -> None:
    left = _turns_left.get() - turns
    if left < 0:
        raise OutOfFuelError(f"the chat template loops more than {MAX_LOOP_TURNS} times")
    _turns_left.set(left)


def _too_large(value: object, limit: int) -> bool:
    return isinstance(value, int) and abs(value) > limit


def _with_bounded_widths(function: Callable[..., Any]) -> Callable[..., Any]:
    def checked(*args: Any, **kwargs: Any) -> Any:
        _check_widths(args, kwargs)
        return function(*args, **kwargs)

    return checked


def _check_widths(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """The first argument may be a format string, the others may be widths."""
    pattern = args[0] if args else None
    wide = isinstance(pattern, str) and ("%" in pattern or "{" in pattern) and _WIDE_FORMAT.search(pattern)
    if wide or any(_too_large(value, MAX_FORMAT_WIDTH) for value in (*args[1:], *kwargs.values())):
        raise OutOfFuelError("a width in the chat template is too large")
