"""JSON that is small as it stands and absurdly large when it is indented."""


def deep_json(members: int) -> dict[str, object]:
    """So many numbers, 180 levels deep: of 100,000 on their blanks alone are over `bytebound.MAX_INDENT_BYTES`."""
    value: object = [0] * members
    for _ in range(180):
        value = [value]
    return {"a": value}
