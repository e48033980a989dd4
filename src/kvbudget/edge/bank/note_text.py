"""Decides how a document becomes the text of a note, and a text a document again: packed JSON of a bounded size."""

import base64
import binascii
import zlib

import orjson

from kvbudget.errors import BadValueError


def text_of(document: object, level: int) -> str:
    """`level`: of zlib, 1 (fast) to 9."""
    return base64.b64encode(zlib.compress(orjson.dumps(document), level)).decode()


def document_of(text: str, largest_bytes: int, what: str) -> object:
    """Raises BadValueError for a text that `text_of` did not give, or that unpacks to more than `largest_bytes`.
    `what`: it should be."""
    try:
        unzip = zlib.decompressobj()
        data = unzip.decompress(base64.b64decode(text, validate=True), largest_bytes)
        if unzip.unconsumed_tail or not unzip.eof:
            raise ValueError("more than there may be")
        document: object = orjson.loads(data)
    except (ValueError, zlib.error, binascii.Error) as error:
        raise BadValueError(f"no {what}: {error}", fix="leave it") from None
    return document
