"""Decides whether a quantisation's list of module names means a given matrix of a given layer.

Lists come in many spellings: whole names, names cut short, `*` globs, and regular expressions marked `re:`. No regular
expression is run: a config comes from anywhere, and a hostile one would never end. Those of published checkpoints are
turned into globs; another one is refused.
"""

from collections.abc import Iterable

from kvbudget.errors import UnsupportedError

_FUSED = {
    "q_proj": "qkv_proj",
    "k_proj": "qkv_proj",
    "v_proj": "qkv_proj",
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
}
_LARGEST_PATTERN = 300
_LARGEST_CHOICES = 64


class Names:
    """A list of module names, indexed by layer. Raises UnsupportedError for an expression that cannot be read."""

    __slots__ = ("_alike", "_anywhere", "_by_layer", "_globs", "_known", "_of_layer", "_starts")

    def __init__(self, patterns: Iterable[object]) -> None:
        self._of_layer: dict[int, list[str]] = {}
        self._globs: list[str] = []
        self._anywhere: list[str] = []
        self._known: dict[tuple[bool, int, str], bool] = {}
        self._alike: dict[tuple[int, tuple[str, ...]], int] = {}
        self._by_layer = False
        self._starts: dict[str, int] = {}  # of layer numbers that a glob tells apart (`layers.1*`)
        for pattern in patterns:
            if not isinstance(pattern, str) or not 0 < len(pattern) <= _LARGEST_PATTERN:
                raise UnsupportedError("a list of module names holds something else than names", fix="give --weights")
            if pattern.startswith("re:"):
                globs = _globs_of(pattern[3:])
                self._globs.extend(globs)
                self._by_layer = self._by_layer or any(_names_a_layer(glob) for glob in globs)
            else:
                self._add(pattern)

    def _add(self, pattern: str) -> None:
        _, found, rest = pattern.rpartition("layers.")
        if found:
            number, _, name = rest.partition(".")
            if number.isdecimal() and len(number) < 6:
                self._of_layer.setdefault(int(number), []).append(name)
                return
            if number.endswith("*") and number[:-1].isdecimal():
                self._globs.append("*layers." + rest)
                self._starts.setdefault(number[:-1], len(self._starts))
                return
            if number[:1].isdecimal():
                self._by_layer = True
        if "*" in pattern:
            self._globs.extend((pattern, pattern + ".*"))
        else:
            self._anywhere.append(pattern)

    def __bool__(self) -> bool:
        return bool(self._of_layer or self._globs or self._anywhere)

    def apart(self, layer: int) -> int:
        """Equal for layers that the list treats alike: the first asked of those that it names with the same parts of
        theirs, below 0 for those that it does not name."""
        if self._by_layer:
            return layer
        start = self._start(layer)
        own = self._of_layer.get(layer)
        return start if own is None else self._alike.setdefault((start, tuple(own)), layer)

    def _start(self, layer: int) -> int:
        """Below 0, and equal for layers whose numbers begin alike as far as the globs look."""
        if not self._starts or layer < 0:
            return -1
        digits = str(layer)
        begun = (self._starts.get(digits[:length]) for length in range(1, len(digits) + 1))
        return -1 - sum(1 << place for place in begun if place is not None)

    def match(self, layer: int, name: str) -> bool:
        """Whether the list means matrix `name` of this layer; -1 for what is in no layer."""
        if self._means(layer, name):
            return True
        above, _, last = name.rpartition(".")
        fused = _FUSED.get(last)
        return fused is not None and self._means(layer, f"{above}.{fused}")

    def _means(self, layer: int, name: str) -> bool:
        for own in self._of_layer.get(layer, ()):
            if own in ("", name) or name.startswith(own + ".") or ("*" in own and _glob(own, name)):
                return True
        if self._by_layer:
            return self._means_anywhere(layer, name)
        key = (layer >= 0, self._start(layer), name)  # the rest of the list is the same for these layers
        if key not in self._known:
            self._known[key] = self._means_anywhere(layer, name)
        return self._known[key]

    def _means_anywhere(self, layer: int, name: str) -> bool:
        full = f"model.layers.{layer}.{name}" if layer >= 0 else name
        inside = f".{full}."
        if any(f".{entry}." in inside for entry in self._anywhere):
            return True
        return any(_glob(glob, full) or _glob(glob, full.removeprefix("model.")) for glob in self._globs)


def _names_a_layer(glob: str) -> bool:
    return any(rest[:1].isdecimal() for rest in glob.split("layers.")[1:])


def _glob(pattern: str, text: str) -> bool:
    """`*` for any characters; linear in the text."""
    parts = pattern.split("*")
    if len(parts) == 1:
        return pattern == text
    if not text.startswith(parts[0]) or not text.endswith(parts[-1]):
        return False
    at, end = len(parts[0]), len(text) - len(parts[-1])
    for part in parts[1:-1]:
        found = text.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return at <= end


def _globs_of(expression: str) -> list[str]:
    """The globs that mean the same as an expression, which is matched from the start of a name on."""
    globs = [""]
    text = expression.removeprefix("^")
    at = 0
    while at < len(text):
        letter = text[at]
        choices = [letter]
        step = 1
        if text.startswith((".*", ".+"), at):
            choices, step = ["*"], 2
        elif text.startswith(("\\d+", "\\w+"), at):
            choices, step = ["*"], 3
        elif text.startswith("[0-9]+", at):
            choices, step = ["*"], 6
        elif letter == "\\" and at + 1 < len(text) and not text[at + 1].isalnum():
            choices, step = [text[at + 1]], 2
        elif letter == "$" and at == len(text) - 1:
            return globs
        elif letter == "(":
            end = text.find(")", at)
            inner = text[at + 1 : end].removeprefix("?:")
            if end < 0 or any(sign in inner for sign in "()[]{}\\*+?^$"):
                raise _unread(expression)
            choices, step = inner.split("|"), end + 1 - at
        elif letter in "[]{}|*+?^$)\\":
            raise _unread(expression)
        globs = [glob + choice for glob in globs for choice in choices]
        if len(globs) > _LARGEST_CHOICES:
            raise _unread(expression)
        at += step
    return [glob + "*" for glob in globs]


def _unread(expression: str) -> UnsupportedError:
    return UnsupportedError(
        f"the module names {expression[:60]!r} of its quantisation cannot be read", fix="give --weights"
    )
