"""A key is made once, and what is printed of it is taken by the gate's file."""

import hashlib
import json
import tomllib

import pytest

from kvbudget.cli.main import main
from kvbudget.cli.serving.settings import _keys
from kvbudget.planner.budget.schema import checked


def test_what_is_printed_is_a_table_that_the_file_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["key", "night.ly", "--tenant", "team-a", "--most-urgent", "10", "--any-tenant"]) == 0
    told, table = capsys.readouterr().out.split("for kvbudget.toml:\n")
    document = tomllib.loads('schema = "kvbudget.budget/1"\n' + table)
    checked(document)
    (key,) = _keys(document).values()
    assert (key.name, key.tenant, key.most_urgent, key.any_tenant) == ("night.ly", "team-a", 10, True)
    assert key.sha256 == hashlib.sha256(told.split()[-1].encode()).hexdigest()


def test_as_json_it_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["key", "ci", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["name"], document["tenant"]) == ("ci", "ci")


@pytest.mark.parametrize("wrong", [["key", "a b"], ["key", "x", "--tenant", "é"], ["key", "x", "--most-urgent", "101"]])
def test_what_the_file_would_not_take_is_refused(wrong: list[str]) -> None:
    assert main(wrong) == 2
