"""Decides how a budget file is read and written: bounded, refused when damaged, replaced whole or not at all."""

import hashlib
import json
import tomllib

from kvbudget.edge.budget.place import line_of
from kvbudget.edge.given_file import open_given
from kvbudget.edge.whole_file import write_whole
from kvbudget.errors import BadConfigError, printable
from kvbudget.planner.budget.record import SCHEMA, Document, budget_text
from kvbudget.planner.budget.schema import checked

MAX_BUDGET_BYTES = 4 * 1024**2  # a budget with twenty receipts has some 30 kB
_NO_STRUCTURE = ("_name_or_path", "transformers_version", "_commit_hash")


def read_budget(path: str) -> Document:
    """The document. Raises BadConfigError when it cannot be read, is no TOML, or no budget of this schema."""
    try:
        with open_given(path, fix="give a kvbudget.toml") as file:
            data = file.read(MAX_BUDGET_BYTES + 1)
    except OSError as error:
        raise BadConfigError(
            f"{_shown(path)}: cannot be read: {error.strerror or error}",
            fix="kvbudget plan MODEL --write makes one",
        ) from None
    if len(data) > MAX_BUDGET_BYTES:
        raise BadConfigError(f"{_shown(path)}: larger than {MAX_BUDGET_BYTES} bytes", fix="give a kvbudget.toml")
    try:
        document: Document = tomllib.loads(data.decode("utf-8"))
    except RecursionError:
        raise BadConfigError(f"{_shown(path)}: no valid TOML: nested too deeply", fix="keep it flat") from None
    except ValueError as error:
        raise BadConfigError(
            f"{_shown(path)}: no valid TOML: {printable(str(error), 120)}", fix="correct that place"
        ) from None
    schema = document.get("schema")
    if not isinstance(schema, str) or schema.partition("/")[0] != SCHEMA.partition("/")[0]:
        said = "" if schema is None else f", but {printable(repr(schema), 40)}"
        raise BadConfigError(
            f'{_shown(path)}: it does not say schema = "{SCHEMA}"{said}',
            fix="if it is a kvbudget.toml, make that its first line, above every [table]",
        )
    if schema != SCHEMA:
        raise BadConfigError(
            f"{_shown(path)}: schema {schema[:40]!r}, this version knows {SCHEMA}",
            fix="write it anew with kvbudget plan ... --write, or use the version that wrote it",
        )
    _check(path, document, data.decode("utf-8"))
    return document


def write_budget(path: str, document: Document) -> None:
    """Put the budget there; who reads meanwhile sees the old file or the new one, whole.

    Raises BadValueError where that cannot be, BadConfigError for what could not be read back.
    """
    _check(path, document)
    write_whole(path, budget_text(document).encode(), "budget")


def config_fingerprint(config: object) -> str:
    """SHA-256 of a config.json by its content: order, blanks, and what says nothing of the model do not count."""
    if isinstance(config, dict):
        config = {name: value for name, value in config.items() if name not in _NO_STRUCTURE}
    text = json.dumps(config, sort_keys=True, separators=(",", ":"), ensure_ascii=True, default=repr)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def _check(path: str, document: Document, text: str = "") -> None:
    """`text`: the file that it was read from, to say in which line."""
    try:
        checked(document)
    except BadConfigError as error:
        line = line_of(text, error.place)
        where = _shown(path) if line is None else f"{_shown(path)}:{line}"
        raise BadConfigError(f"{where}: {error.message}", fix=error.fix, place=error.place) from None


def _shown(path: str) -> str:
    return printable(path[-200:]).replace("\n", "?")
