"""The rig of the proxy benchmark counts what really came; a wrong rig would give wrong ratios in silence."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

RIG = Path(__file__).parents[2] / "bench" / "proxy" / "rig.py"

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="the rig is C; apt-get install gcc libc6-dev")


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("bench_proxy_rig", RIG)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
        module.BUILD_FOLDER = tmp_path_factory.mktemp("rig")  # type: ignore[attr-defined]
        module.build()
        yield module
    finally:
        del sys.modules[spec.name]


@pytest.fixture
def port(rig: ModuleType, tmp_path: Path) -> Iterator[int]:
    with rig.mock_engine(rig.choose_cores().load, tmp_path) as port:
        yield port


def test_plain_answers_are_counted_on_kept_connections(rig: ModuleType, port: int) -> None:
    seen = rig.offer(port, rig.choose_cores().load, rig.Offer(4, 0.2, 100_000))
    assert seen.answers > 0
    assert (seen.events, seen.bad, seen.lost, seen.reconnects) == (0, 0, 0, 0)
    assert 0 < seen.p50_us <= seen.p99_us


def test_every_event_of_a_stream_is_counted_wherever_reads_cut_it(rig: ModuleType, port: int) -> None:
    seen = rig.offer(port, rig.choose_cores().load, rig.Offer(3, 0.3, 500, chunks=700))
    assert seen.answers > 0
    whole, begun = 701 * seen.answers, 701 * 3  # [DONE] is an event too; the last streams were cut by the end
    assert whole <= seen.events <= whole + begun


def test_paced_streams_give_as_many_events_as_the_pace_allows(rig: ModuleType, port: int) -> None:
    seen = rig.offer(port, rig.choose_cores().load, rig.Offer(20, 1.0, 500, chunks=10_000, pace_ms=20))
    assert 0 < seen.events <= 20 * 50
    assert (seen.answers, seen.lost) == (0, 0)


def test_a_load_outside_its_bounds_is_refused(rig: ModuleType, port: int) -> None:
    with pytest.raises(rig.RigError, match="connections"):
        rig.offer(port, rig.choose_cores().load, rig.Offer(0, 0.1, 500))


def test_cpu_and_memory_of_a_process_tree_are_read(rig: ModuleType) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert rig.rss_bytes(os.getpid()) > rig.rss_bytes(child.pid) > 0
        assert rig.cpu_seconds(os.getpid()) > 0
    finally:
        child.kill()
        child.communicate()
    assert rig.cpu_seconds(child.pid) == 0
