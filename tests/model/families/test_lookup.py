"""The quick look-up says the same as the tables."""

import subprocess
import sys

import pytest

from kvbudget.model.families.lookup import family_of, near_names, text_inside
from kvbudget.model.families.multimodal import WRAPPERS
from kvbudget.model.families.table import FAMILIES


def test_every_name_is_found_as_the_tables_have_it() -> None:
    assert {name: family_of(name) for name in FAMILIES} == FAMILIES
    assert {name: text_inside(name) for name in WRAPPERS} == WRAPPERS
    assert all(text_inside(name) is None for name in FAMILIES if name not in WRAPPERS)
    assert (family_of("mystery"), text_inside("mystery")) == (None, None)
    assert "llama" in near_names("lama3")
    assert near_names("0") == "kvbudget models lists all"


@pytest.mark.parametrize("model_type", ["llama", "deepseek_v3", "gpt_oss"])
def test_what_most_people_run_needs_few_tables(model_type: str) -> None:
    script = (
        "import sys; from kvbudget.model.read import model_from_config;"
        f"model_from_config({{'model_type': {model_type!r}}});"
        "sys.exit('kvbudget.model.families.table' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=60, check=False).returncode == 0
