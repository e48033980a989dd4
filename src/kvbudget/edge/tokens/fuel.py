"""How much work one rendering of a chat template may do: loop turns, calls, characters made, processor time.

Jinja's sandbox stops access to Python, not loops or memory. The template is the model owner's, but a stranger's often
enough, and its loops run over what clients send. Every loop turn, macro, call, filter, comparison, slice and sum looks
at the meter; what could make a large value of small ones is sized before it is done. So no single step is long, and
the steps together end.
"""

from collections.abc import Callable, Iterable
from contextvars import ContextVar
from time import perf_counter, thread_time
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from kvbudget.edge.tokens import growth

MAX_TURNS = 1_000_000  # loop turns and calls
MAX_OUTPUT_CHARS = 32 * 1024 * 1024
# Characters and list members that one rendering may make, beside those for each of the request's: templates copy
# contents a dozen times (Qwen 3 splits and strips them).
FREE_UNITS = 32 * 1024 * 1024
UNITS_PER_CHAR = 32
# Of the thread's own time; 200 messages take 3 ms. Looked at once so much has passed on the clock.
MAX_SECONDS = 1.0
MAX_EXPONENT = 64
MAX_BASE = 2**64

_TURN, _PAID, _NESTED, _CONCAT = "kvbudget_turn", "kvbudget_paid", "kvbudget_nested", "kvbudget_concat"
# Shorter sums of texts pay without a look at the clock: they take less time than that.
_SMALL_CHARS = 16 * 1024
# No chat template needs them, and each can take any time or is not the same twice.
_NO_FILTERS = (
    "batch", "filesizeformat", "pprint", "random", "slice", "striptags", "urlize", "wordwrap", "xmlattr",
)  # fmt: skip
_NO_GLOBALS = ("lipsum",)
# Arguments that jinja's own code adds to calls inside loops and blocks.
_OF_JINJA = ("_loop_vars", "_block_vars")
_SIZED = (str, list, tuple, dict, bytes)


class OutOfFuelError(SecurityError):
    """The template did more work than any real one does."""


class Meter:
    """What one rendering has left. `request_chars`: how large the request is that it renders."""

    __slots__ = ("_cpu", "_look", "nested", "turns", "units")

    def __init__(self, request_chars: int) -> None:
        self.nested = False  # whether the template has put containers together, in which a value may stand many times
        self.turns = MAX_TURNS
        self.units = FREE_UNITS + UNITS_PER_CHAR * request_chars
        self._cpu = thread_time()
        self._look = perf_counter() + MAX_SECONDS

    def turn(self, units: int = 0) -> None:
        """One more turn or call, which made so many characters or members."""
        self.turns -= 1
        if self.turns < 0:
            raise OutOfFuelError(f"the chat template loops or calls more than {MAX_TURNS} times")
        self.pay(units)

    def pay(self, units: int) -> None:
        """So many characters or members more, made or about to be made."""
        self.units -= units
        if self.units < 0:
            raise OutOfFuelError("the chat template makes more text than any real one does")
        if perf_counter() > self._look:
            # Asked for only now: the clock of the thread costs a system call, and waiting for others is no work.
            if thread_time() - self._cpu > MAX_SECONDS:
                raise OutOfFuelError(f"the chat template takes longer than {MAX_SECONDS:g} s")
            self._look = perf_counter() + MAX_SECONDS / 4


_meter: ContextVar[Meter] = ContextVar("kvbudget_meter")


def fresh_fuel(request_chars: int = 0) -> None:
    """Fill up for one rendering, in this thread or task."""
    _meter.set(Meter(request_chars))


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

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationBlock, "jinja2.ext.loopcontrols"],
            finalize=_finalized,
        )
        for name in _NO_FILTERS:
            self.filters.pop(name)
        for name in _NO_GLOBALS:
            self.globals.pop(name)
        for name in list(self.filters):
            self.filters[name] = _metered(self.filters[name], growth.OF_FILTERS.get(name))
        for name in ("in", "eq", "equalto", "==", "ne", "!=", "lt", "lessthan", "<", "le", "<=", "gt", "greaterthan",
                     ">", "ge", ">=", "upper", "lower"):  # fmt: skip
            self.tests[name] = _metered(self.tests[name], None)
        self.filters.update({_TURN: _turn, _PAID: _paid, _NESTED: _nested, _CONCAT: _concat})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Refuse `'a' * 10**9`, `9 ** 9 ** 9` and `'%999999999d' % 1` before they take memory or time."""
        if operator == "**" and (_too_large(right, MAX_EXPONENT) or _too_large(left, MAX_BASE)):
            raise OutOfFuelError("a power in the chat template is too large")
        meter = _meter.get()
        if operator == "+" and type(left) is str and type(right) is str:  # what most are
            size = len(left) + len(right)
            if size < _SMALL_CHARS and meter.units > size:
                meter.units -= size
                return left + right
        meter.nested = meter.nested or isinstance(left, (list, tuple)) or isinstance(right, (list, tuple))
        meter.turn(_size_of_binop(operator, left, right))
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Every macro, function and method: sized before where it can make more than it is given."""
        meter = _meter.get()
        # The sandbox wraps `str.format`; the method itself is behind it.
        method = getattr(obj, "__wrapped__", obj)
        size = growth.OF_METHODS.get(getattr(method, "__name__", ""))
        if size is not None:
            given = {key: value for key, value in kwargs.items() if key not in _OF_JINJA}
            meter.pay(_checked(size(getattr(method, "__self__", None), *args, **given)))
        result = super().call(context, obj, *args, **kwargs)
        meter.nested = meter.nested or isinstance(result, (list, tuple, dict))
        meter.turn(len(result) if isinstance(result, _SIZED) else 0)
        return result

    def call_test(self, name: str, value: Any, *args: Any, **kwargs: Any) -> bool:
        """As filters like `select` call it: for each of their items."""
        _meter.get().turn()
        return bool(super().call_test(name, value, *args, **kwargs))

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """The template with a look at the meter in every loop, macro, comparison, slice and concatenation."""
        template = super()._parse(source, name, filename)
        _insert_meters(template)
        return template


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


def pay_for(value: object) -> None:
    """Before a value is written out whole, however often it holds the same things.

    What came with the request stands in it once, and is not larger than the request: nothing needs to be added up.
    """
    meter = _meter.get()
    meter.turn(_checked(growth.written_size(value)) if meter.nested else 0)


def _insert_meters(node: nodes.Node) -> None:
    """Wrap what is long or repeated below `node`, innermost first."""
    for field, value in node.iter_fields():
        if isinstance(value, list):
            for index, child in enumerate(value):
                if isinstance(child, nodes.Node):
                    _insert_meters(child)
                    value[index] = _wrapped(child)
        elif isinstance(value, nodes.Node):
            _insert_meters(value)
            setattr(node, field, _wrapped(value))
    if isinstance(node, (nodes.For, nodes.Macro, nodes.CallBlock, nodes.Block)):
        look = nodes.Filter(nodes.Const(None), _TURN, [], [], None, None, lineno=node.lineno)
        node.body.insert(0, nodes.ExprStmt(look, lineno=node.lineno))


def _wrapped(node: nodes.Node) -> nodes.Node:
    if isinstance(node, nodes.Concat):
        return nodes.Filter(nodes.List(node.nodes), _CONCAT, [], [], None, None, lineno=node.lineno)
    if isinstance(node, (nodes.List, nodes.Dict)) or (isinstance(node, nodes.Tuple) and node.ctx == "load"):
        return nodes.Filter(node, _NESTED, [], [], None, None, lineno=node.lineno)
    if isinstance(node, nodes.Compare) and _is_short(node):
        return node
    slice_ = isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
    if slice_ or isinstance(node, nodes.Compare):
        return nodes.Filter(node, _PAID, [], [], None, None, lineno=node.lineno)
    return node


def _is_short(comparison: nodes.Compare) -> bool:
    """Whether it ends at once, as `role == 'user'` does however long the role is."""
    operand = comparison.ops[0]
    equality = len(comparison.ops) == 1 and operand.op in ("eq", "ne")
    return equality and (isinstance(comparison.expr, nodes.Const) or isinstance(operand.expr, nodes.Const))


# With the context, not for its sake, but so that jinja does not evaluate them once, at compile time, for constants.
@pass_context
def _turn(_context: Context, value: Any) -> Any:
    _meter.get().turn()
    return value


@pass_context
def _nested(_context: Context, value: Any) -> Any:
    meter = _meter.get()
    meter.nested = True
    meter.pay(len(value))
    return value


@pass_context
def _paid(_context: Context, value: Any) -> Any:
    _meter.get().pay(len(value) if isinstance(value, _SIZED) else 1)
    return value


@pass_context
def _concat(_context: Context, values: list[Any]) -> str:
    """`a ~ b`."""
    _meter.get().turn(_checked(sum(len(v) if isinstance(v, str) else growth.written_size(v) for v in values)))
    return "".join(map(str, values))


def _finalized(value: Any) -> Any:
    """What `{{ }}` writes: containers are spelled out, however often they hold the same things."""
    if isinstance(value, (list, tuple, dict)):
        pay_for(value)
    return value


def _metered(function: Any, size: Callable[..., int] | None) -> Callable[..., Any]:
    """A filter or test that pays for what it makes; before, where it can make more than it is given."""
    takes_first = getattr(function, "jinja_pass_arg", None) is not None

    def metered(*args: Any, **kwargs: Any) -> Any:
        meter = _meter.get()
        if size is not None:
            meter.pay(_checked(size(*(args[1:] if takes_first else args), **kwargs)))
        result = function(*args, **kwargs)
        if type(result) is list:
            meter.nested = True
        meter.turn(len(result) if isinstance(result, _SIZED) else 0)
        return result

    if takes_first:
        metered.jinja_pass_arg = function.jinja_pass_arg  # type: ignore[attr-defined]
    return metered


def _checked(size: int) -> int:
    if size > growth.MAX_SIZE:
        raise OutOfFuelError(f"the chat template would make a value of {size} characters or members")
    return size


def _size_of_binop(operator: str, left: Any, right: Any) -> int:
    if operator == "%" and isinstance(left, (str, bytes)):
        return _checked(growth.formatted_size(left, right))
    if operator == "+":
        both = isinstance(left, _SIZED) and isinstance(right, _SIZED)
        return _checked(len(left) + len(right)) if both else 0
    if operator == "*":
        for some, other in ((left, right), (right, left)):
            if isinstance(some, (str, list, tuple, bytes)) and isinstance(other, int):
                return _checked(len(some) * max(0, other))
            if _too_large(some, 2**4096):
                raise OutOfFuelError("a number in the chat template is too large")
    return 0


def _too_large(value: object, limit: int) -> bool:
    return isinstance(value, int) and abs(value) > limit
