"""Every engine's table is whole in itself."""

import pytest

from kvbudget.engines.commands.dialects import DIALECTS
from kvbudget.engines.commands.options import MANY, ONE, OPTIONAL, SWITCH, TOGGLE


@pytest.mark.parametrize("name", DIALECTS)
def test_every_option_either_sets_a_field_or_has_a_reason_or_none(name: str) -> None:
    for spelling, option in DIALECTS[name].table.items():
        assert spelling.startswith("-"), spelling
        assert "_" not in spelling, spelling  # arguments are looked up with dashes
        assert option.arity in (MANY, ONE, OPTIONAL, SWITCH, TOGGLE), spelling
        assert not (option.effect and option.why), spelling
        assert bool(option.effect) == (option.parse is not None), spelling
        assert option.name in DIALECTS[name].table, spelling


@pytest.mark.parametrize("name", DIALECTS)
def test_variables_stand_for_options_that_are_there(name: str) -> None:
    dialect = DIALECTS[name]
    assert set(dialect.from_environment.values()) <= set(dialect.table)
