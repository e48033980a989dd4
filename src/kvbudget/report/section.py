"""Decides what a part of a report is made of, whoever wrote the part and whatever it is printed as."""

from typing import NamedTuple


class Section(NamedTuple):
    """A part of a report. Strings are plain text: each output escapes them in its own way.

    Paragraphs first, then the table (`rows` of as many cells as `header`), then `lines`, a list: in order and numbered,
    or not (`numbered`), as where the lines themselves begin with numbers. `chart`
    names a picture that goes before the table where the output has pictures, "" for none. All may be empty.
    """

    title: str
    paragraphs: tuple[str, ...] = ()
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    lines: tuple[str, ...] = ()
    chart: str = ""
    numbered: bool = True

    def is_numeric(self, column: int) -> bool:
        """Whether every cell of the column is a number, with or without unit, or is empty: set flush right."""
        cells = [row[column] for row in self.rows if row[column] not in ("", "-")]
        return bool(cells) and column > 0 and all(_starts_as_number(cell) for cell in cells)


def _starts_as_number(cell: str) -> bool:
    bare = cell.lstrip("-−+±×<>≤≥~ ")
    return bare[:1].isdigit() and len(cell) <= 20
