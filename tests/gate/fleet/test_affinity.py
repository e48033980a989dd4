from kvbudget.gate.fleet.affinity import Affinity


def test_it_tells_how_many_of_the_first_keys_it_has() -> None:
    affinity = Affinity()
    affinity.saw((1, 2, 3), 10)
    assert [affinity.longest(prefix) for prefix in [(1, 2, 3, 4), (1, 2, 3), (1, 9, 3), (9,), ()]] == [3, 3, 1, 0, 0]


def test_what_was_seen_longest_ago_goes_first_and_of_a_prompt_its_end() -> None:
    affinity = Affinity()
    affinity.saw((1, 2, 3), 4)
    affinity.saw((7, 8, 9), 4)
    assert (affinity.longest((1, 2, 3)), affinity.longest((7, 8, 9))) == (1, 3)
    affinity.clear()
    assert affinity.longest((7,)) == 0
