"""The verdict on every snapshot of the labelled corpus, beside what its label says and why."""

from collections import Counter
from pathlib import Path

import pytest

from diagnosis_corpus import CORPUS, MADE, Answer, Snapshot, asked, labels, snapshots

# Contract, and what the cases of the corpus need besides.
CODES = {
    "pool_full", "budget_full", "seqs_full", "stuck", "compute_bound", "deferred", "runaway_output", "over_provisioned",
    "prefix_cache_below_block", "prefix_cache_too_small", "prefix_cache_no_sharing", "engine_rejecting", "healthy",
    "insufficient_data",
    "sub_pool_full", "rank_imbalance", "client_timeouts", "bypass", "prefix_cache_off", "fixed_footprint",
}  # fmt: skip


@pytest.fixture(scope="module")
def corpus() -> list[Snapshot]:
    return list(snapshots())


@pytest.fixture(scope="module")
def answers(corpus: list[Snapshot], tmp_path_factory: pytest.TempPathFactory) -> list[Answer]:
    folder = tmp_path_factory.mktemp("snapshots")
    return [asked(snapshot, folder) for snapshot in corpus]


def test_every_snapshot_is_labelled_once_with_a_reason_and_known_codes(corpus: list[Snapshot]) -> None:
    names = [snapshot.name for snapshot in corpus]
    assert len(names) == len(set(names))
    assert set(names) == set(labels())
    for snapshot in corpus:
        assert {snapshot.verdict, *snapshot.accept, *snapshot.also, *snapshot.needs} <= CODES, snapshot.name
        assert len(snapshot.why) > 10, snapshot.name
        assert snapshot.made in MADE
        assert snapshot.doing
        assert snapshot.seconds > 0


def test_the_corpus_is_large_small_on_disk_and_half_of_it_was_told_by_engines_that_ran(corpus: list[Snapshot]) -> None:
    made = Counter(snapshot.made for snapshot in corpus)
    assert len(corpus) >= 90
    assert made["vllm"] >= 30
    assert made["vllm"] + made["embedded"] + made["gate"] >= 55
    assert {snapshot.verdict for snapshot in corpus} == CODES - {"fixed_footprint"}
    assert {"sglang", "tgi", "llamacpp", "trtllm", "triton", "lmdeploy", "dynamo"} <= {one.engine for one in corpus}
    assert sum(file.stat().st_size for file in CORPUS.rglob("*") if file.is_file()) < 1_000_000


def test_at_least_95_in_a_hundred_verdicts_are_right(answers: list[Answer]) -> None:
    wrong = [answer.line() for answer in answers if not answer.right]
    share = 1 - len(wrong) / len(answers)
    table = "\n".join(wrong)
    print(f"{len(answers) - len(wrong)} of {len(answers)} right\n{table}")
    assert share >= 0.95, f"{share:.1%} right\n{table}"


@pytest.mark.parametrize("made", MADE)
def test_no_kind_of_snapshot_is_much_worse_than_the_others(made: str, answers: list[Answer]) -> None:
    asked_of = [answer for answer in answers if answer.snapshot.made == made]
    wrong = [answer.line() for answer in asked_of if not answer.right]
    assert len(wrong) <= 0.1 * len(asked_of), "\n".join(wrong)


def test_the_strict_label_holds_for_nine_in_ten(answers: list[Answer]) -> None:
    loose = [answer.line() for answer in answers if answer.verdict != answer.snapshot.verdict]
    assert len(loose) <= 0.1 * len(answers), "\n".join(loose)


def test_no_alarm_is_raised_where_nothing_is_wrong(answers: list[Answer]) -> None:
    alarms = [
        answer.line()
        for answer in answers
        if answer.snapshot.verdict == "healthy" and not answer.right and answer.verdict != "insufficient_data"
    ]
    assert not alarms, "\n".join(alarms)


def test_findings_beside_the_verdict_are_seldom_false_alarms(answers: list[Answer]) -> None:
    stray = [f"{answer.snapshot.name}: {answer.stray}" for answer in answers if answer.right and answer.stray]
    assert len(stray) <= 0.1 * len(answers), "\n".join(stray)


def test_the_same_snapshots_give_the_same_verdict_again(corpus: list[Snapshot], tmp_path: Path) -> None:
    for snapshot in corpus[::17]:
        assert asked(snapshot, tmp_path) == asked(snapshot, tmp_path)
