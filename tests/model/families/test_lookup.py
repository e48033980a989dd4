"""The quick look-up says the same as the tables."""

import subprocess
import sys

from kvbudget.model.families.lookup import family_of, near_names, text_inside
from kvbudget.model.families.table import FAMILIES, WRAPPERS


def test_every_name_is_found_as_the_tables_have_it() -> None:
    assert {name: family_of(name) for name in FAMILIES} == FAMILIES
    assert {name: text_inside(name) for name in WRAPPERS} == WRAPPERS
    assert all(text_inside(name) is None for name in FAMILIES if name not in WRAPPERS)
    assert (family_of("mystery"), text_inside("mystery")) == (None, None)
    assert "llama" in near_names("lama3")
    assert near_names("0") == "kvbudget models lists all"


def test_a_uniform_model_needs_no_other_table() -> None:
    script = (
        "import sys; from kvbudget.model.read import model_from_config; model_from_config({'model_type': 'llama'});"
        "sys.exit('kvbudget.model.families.table' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=60, check=False).returncode == 0
