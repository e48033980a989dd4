"""Decides how values made of named tuples look as JSON: an object a tuple, with its fields as keys."""


def nested(value: object) -> object:
    """Named tuples become objects, other tuples and lists become lists, the rest stays as it is."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: nested(part) for name, part in zip(value._fields, value, strict=True)}
    if isinstance(value, tuple | list):
        return [nested(part) for part in value]
    return value


def document(value: object) -> dict[str, object]:
    """As `nested`, for a named tuple."""
    found = nested(value)
    return found if isinstance(found, dict) else {"value": found}
