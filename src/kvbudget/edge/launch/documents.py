"""Decides what a YAML text says, within bounds that a hostile one cannot leave: size, depth, and what aliases repeat.

Files for containers are read as text only: `on`, `0x10` and `12:30` stay what people wrote, as they do where
arguments are read. PyYAML is imported here alone, when there is YAML to read.
"""

import importlib
from typing import Any

from kvbudget.errors import BadConfigError, UnsupportedError

MAX_YAML_CHARS = 1024 * 1024
# Nodes once every alias is written out; a manifest of a hundred containers has some thousands.
MAX_NODES = 200_000
_MAX_DEPTH = 100


def documents_in(text: str, what: str, *, typed: bool = False) -> list[object]:
    """All documents of a YAML (or JSON) text. `typed`: numbers and booleans are told apart, as by yaml.safe_load.

    Raises BadConfigError when it is damaged or too large, UnsupportedError when PyYAML is not installed.
    """
    if len(text) > MAX_YAML_CHARS:
        raise BadConfigError(f"{what}: more than {MAX_YAML_CHARS} characters of YAML", fix="give the one file alone")
    try:
        yaml: Any = importlib.import_module("yaml")
    except ImportError as error:
        raise UnsupportedError(
            f"{what}: reading YAML needs PyYAML", fix="pip install pyyaml, or give the command itself"
        ) from error

    documents: list[object] = []
    loader: Any = None
    try:
        loader = yaml.SafeLoader(text)
        if not typed:  # every scalar is text; only the merge key << keeps its meaning
            merge = [one for one in loader.yaml_implicit_resolvers.get("<", []) if one[0].endswith(":merge")]
            loader.yaml_implicit_resolvers = {"<": merge}
        while loader.check_node():
            node = loader.get_node()
            _expanded_size(node, {}, what)
            documents.append(loader.construct_document(node))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" at line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or "it cannot be read"
        raise BadConfigError(f"{what}: no valid YAML{line}: {str(problem)[:100]}", fix="check the file") from error
    except RecursionError as error:
        raise BadConfigError(f"{what}: nested too deep", fix="give the file that starts the engine") from error
    except (
        ValueError,
        TypeError,
        AttributeError,
        OverflowError,
    ) as error:
        raise BadConfigError(f"{what}: no valid YAML: {str(error)[:80]}", fix="check the file") from error
    finally:
        if loader is not None:
            loader.dispose()
    return documents


def _expanded_size(node: object, sizes: dict[int, int], what: str, depth: int = 0) -> int:
    """Nodes below and with `node` when every alias is written out. `sizes`: those known, 0 while being counted."""
    known = sizes.get(id(node))
    if known == 0:
        raise BadConfigError(f"{what}: an alias contains itself", fix="write it out")
    if known is not None:
        return known
    if depth > _MAX_DEPTH:
        raise BadConfigError(f"{what}: nested deeper than {_MAX_DEPTH}", fix="give the file that starts the engine")
    sizes[id(node)] = 0
    total = 1
    value = getattr(node, "value", None)
    if isinstance(value, list):
        for child in value:
            for one in child if isinstance(child, tuple) else (child,):
                total += _expanded_size(one, sizes, what, depth + 1)
                if total > MAX_NODES:
                    raise BadConfigError(
                        f"{what}: more than {MAX_NODES} values once aliases are written out", fix="give a smaller file"
                    )
    sizes[id(node)] = total
    return total
