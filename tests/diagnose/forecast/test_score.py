"""Warnings are counted as docs/how-to/forecast.md says: decisions, onsets, episodes and leads."""

from kvbudget.diagnose.forecast.score import Score


def scored(minutes: int, warns: set[int], saturated: set[int]) -> Score:
    score = Score(30)
    for at in range(minutes):
        score.minute(at, saturated=at in saturated, warns=at in warns)
    return score


def test_before_anything_happened_there_are_no_shares() -> None:
    figures = Score(30).figures()
    assert (figures.precision, figures.recall, figures.f1, figures.mean_lead_minutes) == (None, None, None, None)


def test_precision_and_recall_are_of_decisions() -> None:
    score = Score(30)
    for warned, reached, times in ((True, True, 3), (True, False, 1), (False, True, 2), (False, False, 10)):
        for _ in range(times):
            score.decided(warned=warned, reached=reached)
    figures = score.figures()
    assert (figures.decisions, figures.positives) == (16, 5)
    assert (figures.precision, figures.recall, figures.f1) == (0.75, 0.6, 2 * 3 / (4 + 5))


def test_an_onset_is_warned_of_25_of_30_minutes_before() -> None:
    assert scored(200, {75}, {100}).figures().warned_onsets == 1
    late = scored(200, {76}, {100}).figures()
    assert (late.onsets, late.warned_onsets, late.mean_lead_minutes) == (1, 0, 24)
    forgotten = scored(200, {69}, {100}).figures()
    assert (forgotten.warned_onsets, forgotten.mean_lead_minutes) == (0, 0)


def test_minutes_at_the_limit_close_together_are_one_onset() -> None:
    assert scored(200, set(), {50, 51, 70, 100}).figures().onsets == 1
    assert scored(200, set(), {50, 51, 82}).figures().onsets == 2


def test_an_episode_is_false_when_nothing_came_of_it() -> None:
    score = scored(1440, {100, 110, 139, 400}, {430})
    figures = score.figures()
    assert (figures.episodes, figures.false_episodes_per_day) == (2, 1.0)


def test_an_episode_whose_end_is_not_known_is_not_false_yet() -> None:
    figures = scored(720, {700}, set()).figures()
    assert (figures.episodes, figures.false_episodes_per_day) == (1, 0.0)


def test_a_warning_at_the_limit_is_none() -> None:
    assert scored(200, {100}, {100}).figures().episodes == 0
