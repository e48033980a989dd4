"""Every error that kvbudget raises on purpose.

KvbudgetError
├── InputError             what the caller gave cannot be used: CLI exit 2
│   ├── BadValueError      a flag or field has an unusable value
│   ├── BadConfigError     a model's config.json is damaged or contradicts itself
│   │   └── MissingFieldError   it lacks a field that its config class has no default for
│   └── UnsupportedError   well-formed, but outside of what this version knows; never guessed
└── AccountingError        the ledger was misused: a bug of ours, not of the input

Refusals of requests are no exceptions: they are values of `gate.refusing.refusals.Refusal`.
"""


class KvbudgetError(Exception):
    """Base of the tree. `code` is stable and documented; `fix` says what to do next."""

    code = "error"

    def __init__(self, message: str, *, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.message}; {self.fix}" if self.fix else self.message


class InputError(KvbudgetError):
    """What the caller gave cannot be used."""

    code = "bad_input"


class BadValueError(InputError):
    """A flag or field has an unusable value."""

    code = "bad_value"


class BadConfigError(InputError):
    """A model's config.json, or another file that was given, is damaged or contradicts itself.

    `place`: names and `[N]` that lead to the value at fault, where there is one.
    """

    code = "bad_config"

    def __init__(self, message: str, *, fix: str = "", place: tuple[str, ...] = ()) -> None:
        super().__init__(message, fix=fix)
        self.place = place


class MissingFieldError(BadConfigError):
    """A model's config.json lacks a field that its config class has no default for."""


class UnsupportedError(InputError):
    """Well-formed, but outside of what this version knows."""

    code = "unsupported"


class AccountingError(KvbudgetError):
    """The ledger was misused (double end, unknown reservation): a bug of the caller."""

    code = "accounting"


def printable(text: str, longest: int = 0) -> str:
    """`text` as it may reach a terminal, a log or a report: signs that steer one are replaced by `?`, lines stay lines.

    What a file, an engine or a log tells is not ours, and an escape sequence in it is obeyed by whoever shows it.
    `longest`: no more than so many characters; 0: all of them.
    """
    shown = text if text.isprintable() else "".join(c if c.isprintable() or c == "\n" else "?" for c in text)
    return f"{shown[: longest - 3]}..." if 0 < longest < len(shown) else shown
