"""Decides what a field of a config.json may be: typed reads that name the field, the value and the rule it broke.

A config.json comes from anywhere: every field may be missing, null, of a wrong type, negative or absurd.
"""

from collections.abc import Mapping

from kvbudget.errors import BadConfigError, MissingFieldError

# No model comes near; beyond it a count is damage, and arithmetic stays small.
LARGEST_COUNT = 10**9
LARGEST_LAYERS = 10_000
LARGEST_DRAFT = 100  # layers of a built-in draft module
_SHOWN_CHARACTERS = 60


class Fields:
    """One JSON object of a config, read through a family's spelling and class defaults.

    `spelling` maps our name to the key that the config class uses; `defaults` are the class defaults by our name, used
    when the key is missing. Names that came from a default are listed in `filled`.
    """

    __slots__ = ("_defaults", "_spelling", "filled", "raw")

    def __init__(self, raw: Mapping[str, object], spelling: Mapping[str, str], defaults: Mapping[str, object]) -> None:
        self.raw = raw
        self.filled: list[str] = []
        self._spelling = spelling
        self._defaults = defaults

    def key(self, name: str) -> str:
        """The key under which the config spells `name`: the class's own, or the common one when only that is there."""
        own = self._spelling.get(name, name)
        return name if own not in self.raw and name in self.raw else own

    def given(self, name: str) -> object:
        """The value as written, None when missing or null."""
        return self.raw.get(self.key(name))

    def is_null(self, name: str) -> bool:
        """Whether the key is there and null, which overrides a class default."""
        key = self.key(name)
        return key in self.raw and self.raw[key] is None

    def count(self, name: str, *, low: int = 1, high: int = LARGEST_COUNT) -> int:
        """A whole number in low..high. Raises BadConfigError when missing without a class default, or out of range."""
        value = self.optional_count(name, low=low, high=high)
        if value is None:
            raise MissingFieldError(
                f"config.json: {self.key(name)} is missing and its config class has no default for it",
                fix=f"add {self.key(name)}: a whole number of at least {low}",
            )
        return value

    def optional_count(self, name: str, *, low: int = 1, high: int = LARGEST_COUNT) -> int | None:
        """As `count`, but None when missing or null and the class default is None."""
        value = self.given(name)
        if value is None:
            value = self._defaults.get(name)
            if value is None:
                return None
            self.note_filled(name)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise _bad(self.key(name), value, f"must be a whole number from {low} to {high}")
        return value

    def flag(self, name: str) -> bool:
        """True or false; the class default (else false) when missing or null."""
        value = self.given(name)
        if value is None:
            value = self._default(name, False)
        if not isinstance(value, bool):
            raise _bad(self.key(name), value, "must be true or false")
        return value

    def text(self, name: str) -> str:
        """A string; the class default (else empty) when missing or null."""
        value = self.given(name)
        if value is None:
            value = self._default(name, "")
        if not isinstance(value, str):
            raise _bad(self.key(name), value, "must be a string")
        return value

    def _default(self, name: str, without: object) -> object:
        """The class default, noted where it says more than a class without one would mean."""
        value = self._defaults.get(name, without)
        if value != without:
            self.note_filled(name)
        return value

    def note_filled(self, name: str) -> None:
        """Lists `name` in `filled`, once however often it is read."""
        if name not in self.filled:
            self.filled.append(name)

    def texts(self, name: str) -> tuple[str, ...] | None:
        """A list of strings, None when missing or null."""
        value = self.given(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise _bad(self.key(name), value, "must be a list of strings")
        return tuple(value)

    def counts(self, name: str) -> tuple[int, ...]:
        """A list of whole numbers from 0, empty when missing or null."""
        value = self.given(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(type(item) is int and item >= 0 for item in value):
            raise _bad(self.key(name), value, "must be a list of whole numbers")
        return tuple(value)

    def section(self, name: str) -> Mapping[str, object] | None:
        """A nested JSON object, None when missing or null."""
        value = self.given(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise _bad(self.key(name), value, "must be a JSON object")
        return value


def _bad(key: str, value: object, rule: str) -> BadConfigError:
    shown = repr(value) if not isinstance(value, int) or abs(value) < 10**40 else "a number of more than 40 digits"
    if len(shown) > _SHOWN_CHARACTERS:
        shown = shown[: _SHOWN_CHARACTERS - 3] + "..."
    return BadConfigError(f"config.json: {key} is {shown}, but it {rule}", fix=f"correct {key} in config.json")
