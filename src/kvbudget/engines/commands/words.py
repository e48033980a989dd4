"""Decides where words and commands of a shell text begin and end (POSIX shell and the common part of bash).

Nothing is run: substitutions of commands and arithmetic become pieces whose text nobody knows.
"""

from typing import NamedTuple

from kvbudget.errors import BadValueError

# Far beyond any script that starts an engine.
MAX_CHARS = 1024 * 1024
MAX_DEPTH = 20

TEXT, VARIABLE, HIDDEN = "text", "variable", "hidden"
_NAME_START = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_"
_NAME = _NAME_START + "0123456789"
_SPECIAL = "@*#?$!-0123456789"
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "'": "'", '"': '"', "\\": "\\"}


class Piece(NamedTuple):
    """A part of a word: text, the inside of a ${...}, or a substitution that would have to be run."""

    kind: str
    text: str
    quoted: bool


class Word(NamedTuple):
    """A word of a command. `array`: it is NAME=( ... ), and `items` are its words."""

    pieces: tuple[Piece, ...]
    line: int
    array: bool = False
    items: tuple["Word", ...] = ()


class Line(NamedTuple):
    """One simple command: its words, redirections taken off."""

    words: tuple[Word, ...]
    line: int


def lines_of(text: str) -> tuple[Line, ...]:
    """All simple commands in order. Raises BadValueError for quotes and brackets that are never closed."""
    if len(text) > MAX_CHARS:
        raise BadValueError(f"the command text has more than {MAX_CHARS} characters", fix="give the script alone")
    return _Lexer(text).commands()


def pieces_of(text: str, *, quoted: bool) -> tuple[Piece, ...]:
    """The pieces of `text` as one word, as in the default of ${NAME:-text}."""
    lexer = _Lexer(text)
    pieces: list[Piece] = []
    while lexer.at < len(text):
        if text[lexer.at].isspace():
            pieces.append(Piece(TEXT, text[lexer.at], quoted))
            lexer.at += 1
        else:
            lexer.piece(pieces, inside=quoted and text[lexer.at] != '"')
    return tuple(piece._replace(quoted=piece.quoted or quoted) for piece in pieces)


class _Lexer:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.line = 1
        self.counted = 0  # up to where newlines are counted
        self.heredocs: list[str] = []  # delimiters of those that begin on the next line

    def commands(self) -> tuple[Line, ...]:
        found: list[Line] = []
        words: list[Word] = []
        while self.at < len(self.text):
            char = self.text[self.at]
            if self.text.startswith("&>", self.at):
                self.at += 1
                self._redirection(words)
            elif char in "\n;&|()":
                self._end(words, found)
                self.at += 1
                if char == "\n":
                    self._skip_heredocs()
            elif char.isspace():
                self.at += 1
            elif self.text.startswith("\\\n", self.at):
                self.at += 2
            elif char == "#":
                self._skip_comment()
            elif char in "<>":
                self._redirection(words)
            else:
                words.append(self.word())
        self._end(words, found)
        return tuple(found)

    def word(self, depth: int = 0) -> Word:
        pieces: list[Piece] = []
        line = self._line()
        while self.at < len(self.text):
            char = self.text[self.at]
            if char.isspace() or char in ";&|)<>":
                break
            if char == "(":
                if depth < MAX_DEPTH and _ends_as_assignment(pieces):
                    self.at += 1
                    return Word(tuple(pieces), line, array=True, items=self._items(line, depth))
                break
            if self.text.startswith("\\\n", self.at):
                self.at += 2
                continue
            self.piece(pieces)
        return Word(tuple(pieces), line)

    def piece(self, pieces: list[Piece], *, inside: bool = False) -> None:
        """Take one piece from here on. `inside` double quotes, single ones are text."""
        text, start = self.text, self.at
        char = text[start]
        if char == "'" and not inside:
            end = text.find("'", start + 1)
            if end < 0:
                raise self._unclosed("'")
            pieces.append(Piece(TEXT, text[start + 1 : end], quoted=True))
            self.at = end + 1
        elif char == '"' and not inside:
            self._double_quoted(pieces)
        elif char == "\\":
            following = text[start + 1 : start + 2]
            kept = inside and following not in ('"', "\\", "$", "`", "\n")
            pieces.append(Piece(TEXT, ("\\" if kept else "") + following.replace("\n", ""), quoted=True))
            self.at = start + 2
        elif char == "$":
            self._dollar(pieces, inside=inside)
        elif char == "`":
            end = text.find("`", start + 1)
            if end < 0:
                raise self._unclosed("`")
            pieces.append(Piece(HIDDEN, text[start : end + 1], quoted=inside))
            self.at = end + 1
        else:
            end = start + 1
            stop = '"\\$`' if inside else "'\"\\$`;&|()<> \t\r\n\v\f"
            while end < len(text) and text[end] not in stop and not (not inside and text[end].isspace()):
                end += 1
            pieces.append(Piece(TEXT, text[start:end], quoted=inside))
            self.at = end

    def _double_quoted(self, pieces: list[Piece]) -> None:
        line = self._line()
        self.at += 1
        pieces.append(Piece(TEXT, "", quoted=True))  # "" is a word too
        while self.at < len(self.text) and self.text[self.at] != '"':
            self.piece(pieces, inside=True)
        if self.at >= len(self.text):
            raise self._unclosed('"', line)
        self.at += 1

    def _dollar(self, pieces: list[Piece], *, inside: bool) -> None:
        text, start = self.text, self.at
        following = text[start + 1 : start + 2]
        if following == "{":
            end = self._closing(start + 1, "{", "}")
            pieces.append(Piece(VARIABLE, text[start + 2 : end], inside))
            self.at = end + 1
        elif following == "(":
            end = self._closing(start + 1, "(", ")")
            pieces.append(Piece(HIDDEN, text[start : end + 1], inside))
            self.at = end + 1
        elif following == "'" and not inside:
            self._ansi_quoted(pieces)
        elif following and following in _NAME_START:
            end = start + 2
            while end < len(text) and text[end] in _NAME:
                end += 1
            pieces.append(Piece(VARIABLE, text[start + 1 : end], inside))
            self.at = end
        elif following and following in _SPECIAL:
            pieces.append(Piece(VARIABLE, following, inside))
            self.at = start + 2
        else:
            pieces.append(Piece(TEXT, "$", inside))
            self.at = start + 1

    def _ansi_quoted(self, pieces: list[Piece]) -> None:
        out, at = [], self.at + 2
        while at < len(self.text) and self.text[at] != "'":
            if self.text[at] == "\\":
                at += 1
                escaped = self.text[at : at + 1]
                out.append(_ESCAPES.get(escaped, "\\" + escaped))
            else:
                out.append(self.text[at])
            at += 1
        if at >= len(self.text):
            raise self._unclosed("$'")
        pieces.append(Piece(TEXT, "".join(out), quoted=True))
        self.at = at + 1

    def _closing(self, start: int, opening: str, closing: str) -> int:
        """Where the bracket at `start` is closed; quotes hide brackets."""
        depth, at, quote = 0, start, ""
        while at < len(self.text):
            char = self.text[at]
            if char == "\\":
                at += 1
            elif quote:
                quote = "" if char == quote else quote
            elif char in "'\"":
                quote = char
            elif char == opening:
                depth += 1
            elif char == closing:
                depth -= 1
                if not depth:
                    return at
            at += 1
        raise self._unclosed("$" + opening)

    def _items(self, line: int, depth: int) -> tuple[Word, ...]:
        items: list[Word] = []
        while self.at < len(self.text) and self.text[self.at] != ")":
            if self.text[self.at].isspace():
                self.at += 1
            elif self.text.startswith("\\\n", self.at):
                self.at += 2
            elif self.text[self.at] == "#":
                self._skip_comment()
            elif self.text[self.at] in ";&|<>(":
                self.at += 1
            else:
                items.append(self.word(depth + 1))
        if self.at >= len(self.text):
            raise self._unclosed("(", line)
        self.at += 1
        return tuple(items)

    def _redirection(self, words: list[Word]) -> None:
        start = self.at
        if words and _is_descriptor(words[-1]) and start and not self.text[start - 1].isspace():
            words.pop()
        while self._peek() in ("<", ">", "&", "|"):
            self.at += 1
        operator = self.text[start : self.at]
        if self._peek() == "(":  # <( ... )
            self.at = self._closing(self.at, "(", ")") + 1
            return
        if operator == "<<" and self._peek() == "-":
            self.at += 1
        while self._peek() in (" ", "\t"):
            self.at += 1
        if self._peek() not in ("", "\n"):
            target = self.word()
            if operator == "<<":
                self.heredocs.append("".join(piece.text for piece in target.pieces))

    def _skip_heredocs(self) -> None:
        for delimiter in self.heredocs:
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                end = len(self.text) if end < 0 else end
                line, self.at = self.text[self.at : end], end + 1
                if line.strip() == delimiter:
                    break
        self.heredocs.clear()

    def _skip_comment(self) -> None:
        end = self.text.find("\n", self.at)
        self.at = len(self.text) if end < 0 else end

    def _end(self, words: list[Word], found: list[Line]) -> None:
        if words:
            found.append(Line(tuple(words), words[0].line))
            words.clear()

    def _peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def _line(self) -> int:
        self.line += self.text.count("\n", self.counted, self.at)
        self.counted = max(self.counted, self.at)
        return self.line

    def _unclosed(self, what: str, line: int = 0) -> BadValueError:
        return BadValueError(
            f"line {line or self._line()} of the command: {what} is opened and never closed", fix="close it"
        )


def _ends_as_assignment(pieces: list[Piece]) -> bool:
    return len(pieces) == 1 and not pieces[0].quoted and assigned_name(pieces[0].text, whole=True) != ""


def _is_descriptor(word: Word) -> bool:
    return len(word.pieces) == 1 and not word.pieces[0].quoted and word.pieces[0].text.isdigit()


def assigned_name(text: str, *, whole: bool = False) -> str:
    """NAME of text that begins with NAME= or NAME+=, else "". `whole`: nothing may follow."""
    name, equals, value = text.partition("=")
    name = name.removesuffix("+")
    if not equals or not name or (whole and value) or name[0] not in _NAME_START:
        return ""
    return name if all(char in _NAME for char in name) else ""
