"""An error about a value of the file says in which line it stands."""

from pathlib import Path

import pytest

from kvbudget.edge.budget.file import read_budget
from kvbudget.edge.budget.place import line_of
from kvbudget.errors import BadConfigError

TEXT = """schema = "kvbudget.budget/1"
# [gate] is below

[gate]
port = 8800
"max-body" = "1MiB"

[gate.tenants."a.b"]
weight = 2
[[kv.groups]]
layers = 1
[[kv.groups]]
layers = 2
[kv]
groups2.deep = 4
inline = { a = 1, b = 2 }
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("schema",), 1),
        (("gate",), 4),
        (("gate", "port"), 5),
        (("gate", "max-body"), 6),
        (("gate", "tenants", "a.b", "weight"), 9),
        (("gate", "tenants", "a.b", "missing"), 8),
        (("kv", "groups", "[0]", "layers"), 11),
        (("kv", "groups", "[1]", "layers"), 13),
        (("kv", "groups2", "deep"), 15),
        (("kv", "inline", "b"), 16),
        (("nothing", "like", "it"), None),
        ((), None),
    ],
)
def test_the_line_of_a_value(path: tuple[str, ...], line: int | None) -> None:
    assert line_of(TEXT, path) == line


def test_a_wrong_value_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "kvbudget.toml"
    path.write_text('schema = "kvbudget.budget/1"\n[gate]\nport = 8800\npolicy = "lucky"\n')
    with pytest.raises(BadConfigError, match=r"kvbudget\.toml:4: gate\.policy"):
        read_budget(str(path))
