"""Decides which processes a shell text would start, with what arguments and environment; it runs nothing.

Commands are read in the order of the text, whatever conditions and loops stand around them. A variable that the text
does not set stays in the argument as UNRESOLVED and its name.
"""

from collections.abc import Mapping
from typing import NamedTuple

from kvbudget.engines.commands.command import SAY_WITH_FLAGS, UNRESOLVED, Note, shown
from kvbudget.engines.commands.words import (
    HIDDEN,
    MAX_DEPTH,
    TEXT,
    VARIABLE,
    Piece,
    Word,
    assigned_name,
    lines_of,
    pieces_of,
)
from kvbudget.errors import BadValueError

_KEYWORDS = ("if", "then", "else", "elif", "fi", "while", "until", "do", "done", "{", "}", "!", "time", "coproc")
_DECLARING = ("export", "declare", "typeset", "local", "readonly")
# A text whose variables grow beyond this is made to do so.
_MAX_EXPANDED = 4 * 1024 * 1024
_OPERATORS = (":-", ":=", ":+", ":?", "-", "=", "+", "?")


class Process(NamedTuple):
    """One process that the text would start. `line` counts from 1; `notes`: arguments that are there and not said."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    line: int
    notes: tuple[Note, ...]


def processes_in(text: str, environment: Mapping[str, str] | None = None) -> tuple[Process, ...]:
    """Every simple command of `text`. Raises BadValueError where the text is no shell text."""
    shell = _Shell(environment or {})
    found = []
    for line in lines_of(text.replace("\r\n", "\n")):
        process = shell.run(line.words, line.line)
        if process is not None:
            found.append(process)
    return tuple(found)


def split_words(text: str) -> tuple[str, ...]:
    """The words of one command that no shell reads: quotes count, operators and variables are text (Compose)."""
    words: list[str] = []
    current: list[str] | None = None
    quote, at = "", 0
    while at < len(text):
        char = text[at]
        if char == "\\" and quote != "'":
            at += 1
            following = text[at : at + 1]
            if following != "\n":
                kept = quote == '"' and following not in ('"', "\\", "$", "`")
                current = [*(current or []), "\\" + following if kept else following]
        elif quote:
            if char == quote:
                quote = ""
            else:
                current = current or []
                current.append(char)
        elif char in "'\"":
            quote, current = char, current or []
        elif char.isspace():
            if current is not None:
                words.append("".join(current))
            current = None
        else:
            current = current or []
            current.append(char)
        at += 1
    if quote:
        raise BadValueError(f"{quote} is opened and never closed in {shown(text)!r}", fix="close it")
    if current is not None:
        words.append("".join(current))
    return tuple(words)


class _Shell:
    def __init__(self, environment: Mapping[str, str]) -> None:
        self.variables: dict[str, str] = dict(environment)
        self.arrays: dict[str, tuple[str, ...]] = {}
        self.exported = set(environment)
        self.missing: list[Note] = []
        self.expanded = 0
        self.sourced = ""

    def run(self, words: tuple[Word, ...], line: int) -> Process | None:
        """The process that the command starts, or None when it only changes the shell's own variables."""
        self.missing = []
        words = _without_keywords(words)
        own: dict[str, str] = {}
        while words and (name := _assignment(words[0])):
            self._assign(name, words[0], own)
            words = words[1:]
        if not words:
            self.variables.update(own)
            return None
        argv = [field for word in words for field in self._fields(word)]
        if not argv:
            return None
        if argv[0] in _DECLARING or argv[0] == "unset":
            self._declare(argv[0], words[1:], argv[1:])
            return None
        if argv[0] in ("source", ".") and len(argv) > 1:
            self.sourced = shown(argv[1])
        exported = {name: self.variables[name] for name in self.exported if name in self.variables}
        if self.sourced and any(UNRESOLVED in argument for argument in argv):
            self.missing.append(Note(f"{self.sourced}, which the text sources, is not read", SAY_WITH_FLAGS))
        return Process(tuple(argv), exported | own, line, tuple(dict.fromkeys(self.missing)))

    def _assign(self, name: str, word: Word, own: dict[str, str]) -> None:
        appended = word.pieces[0].text.partition("=")[0].endswith("+")
        if word.array:
            items = tuple(field for item in word.items for field in self._fields(item))
            self.arrays[name] = (self.arrays.get(name, ()) if appended else ()) + items
            return
        first = word.pieces[0]
        pieces = (first._replace(text=first.text.partition("=")[2], quoted=True), *word.pieces[1:])
        value = self._text(pieces)
        own[name] = self._bounded(self.variables.get(name, "") + value if appended else value)
        if appended and name in self.arrays:
            self.arrays[name] += (value,)

    def _declare(self, builtin: str, words: tuple[Word, ...], arguments: list[str]) -> None:
        if builtin == "unset":
            for name in arguments:
                self.variables.pop(name, None)
            return
        exporting = builtin == "export" or any(one.startswith("-") and "x" in one for one in arguments)
        for word in words:
            name = _assignment(word)
            if name and word.array:
                self._assign(name, word, {})
                continue
            text = self._text(word.pieces)  # "NAME=value" in quotes is an assignment too
            name = assigned_name(text)
            if name:
                before = self.variables.get(name, "") if text[len(name)] == "+" else ""
                self.variables[name] = before + text.partition("=")[2]
            else:
                name = text
            if exporting:
                self.exported.add(name)

    def _fields(self, word: Word) -> list[str]:
        """A word after expansion: none, one or several arguments."""
        fields: list[str] = []
        current: list[str] | None = None  # parts of the argument that is being put together
        for piece in word.pieces:
            several = self._array(piece.text) if piece.kind == VARIABLE else None
            if several is None:
                value = self._known_text(piece)
                if piece.quoted or piece.kind == TEXT or UNRESOLVED in value or self._is_quoted_default(piece):
                    current = current or []
                    current.append(value)
                    continue
                several = tuple(value.split())
                if value[:1].isspace() and current is not None:
                    fields.append("".join(current))
                    current = None
            elif not piece.quoted:
                several = tuple(part for item in several for part in item.split())
            if several:
                fields += ["".join([*(current or []), several[0]]), *several[1:]]
                current = [fields.pop()]
            elif current == [""]:
                current = None  # "$@" without arguments is no argument
        if current is not None:
            fields.append("".join(current))
        if word.array:  # NAME=( ... ) as an argument, of `declare` for one
            fields += [field for item in word.items for field in self._fields(item)]
        self._bounded("".join(fields))
        return fields

    def _is_quoted_default(self, piece: Piece) -> bool:
        """Whether the value came from quotes within ${NAME:-"..."}, which keep it whole."""
        name, operator, word = _parameter(piece.text)
        return operator.endswith(("-", "=")) and ('"' in word or "'" in word) and not self.variables.get(name)

    def _known_text(self, piece: Piece) -> str:
        if piece.kind == TEXT:
            return piece.text
        return UNRESOLVED + piece.text if piece.kind == HIDDEN else self._variable(piece, MAX_DEPTH)

    def _array(self, inside: str) -> tuple[str, ...] | None:
        """The items of ${NAME[@]}, or None when `inside` is no array that the text sets. "$@" has no items."""
        if inside in ("@", "*"):
            self.missing.append(Note(f"the script's own arguments (${inside}) are not said", SAY_WITH_FLAGS))
            return ()
        name, bracket, rest = inside.partition("[")
        if bracket and rest in ("@]", "*]"):
            if name not in self.arrays:
                self.missing.append(Note(f"array {shown(name)} is not defined in the text", SAY_WITH_FLAGS))
                return ()
            return self.arrays[name]
        if name in self.arrays and not bracket and name not in self.variables:
            return self.arrays[name][:1]
        return None

    def _text(self, pieces: tuple[Piece, ...], depth: int = MAX_DEPTH) -> str:
        out = []
        for piece in pieces:
            if piece.kind == TEXT:
                out.append(piece.text)
            elif piece.kind == HIDDEN:
                out.append(UNRESOLVED + piece.text)
            else:
                several = self._array(piece.text)
                out.append(self._variable(piece, depth) if several is None else " ".join(several))
        return self._bounded("".join(out))

    def _variable(self, piece: Piece, depth: int) -> str:
        name, operator, word = _parameter(piece.text)
        value = self.variables.get(name)
        if operator == "?unknown" or depth <= 0:
            return f"{UNRESOLVED}${{{piece.text}}}"
        wanted = operator.lstrip(":")
        absent = value is None or (operator.startswith(":") and not value)
        if wanted == "+":
            return "" if absent else self._text(pieces_of(word, quoted=piece.quoted), depth - 1)
        if not absent and value is not None:
            return value
        if wanted in ("-", "="):
            value = self._text(pieces_of(word, quoted=piece.quoted), depth - 1)
            if wanted == "=":
                self.variables[name] = value
            return value
        return f"{UNRESOLVED}${name}"

    def _bounded(self, text: str) -> str:
        self.expanded += len(text)
        if self.expanded > _MAX_EXPANDED:
            raise BadValueError("the variables of the command text grow without bound", fix="give the engine's line")
        return text


def _without_keywords(words: tuple[Word, ...]) -> tuple[Word, ...]:
    while words and any(words[0].pieces == (Piece(TEXT, keyword, quoted=False),) for keyword in _KEYWORDS):
        words = words[1:]
    return words


def _assignment(word: Word) -> str:
    if not word.pieces or word.pieces[0].quoted or word.pieces[0].kind != TEXT:
        return ""
    return assigned_name(word.pieces[0].text)


def _parameter(inside: str) -> tuple[str, str, str]:
    """(name, operator, word) of the inside of ${...}; the operator is "?unknown" for one that is not computed."""
    end = 0
    while end < len(inside) and (inside[end].isalnum() or inside[end] == "_"):
        end += 1
    name, rest = inside[:end], inside[end:]
    if not rest:
        return (name or inside), "", ""
    operator = next((one for one in _OPERATORS if rest.startswith(one)), "")
    if not name or not operator:
        return inside, "?unknown", ""
    return name, operator, rest[len(operator) :]
