from kvbudget.edge.openai.ask import SURFACES, Surface
from kvbudget.edge.surfaces.table import ROWS


def test_every_api_has_a_row_and_every_path_one_api() -> None:
    assert set(ROWS) == set(Surface)
    paths = [path for row in ROWS.values() for path in row.paths]
    assert len(paths) == len(set(paths)) == len(SURFACES)
