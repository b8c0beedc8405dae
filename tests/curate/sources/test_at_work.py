"""A source that takes long tells how far it is, and what it told is gone when it is done."""

import io
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.ledger.records import Record, SourceSummary
from reelweave.curate.run.runners import progress
from reelweave.curate.run.runners.progress import ClipMeter, Finished, Meter, Progress
from reelweave.curate.source_pass.at_work import at_work, note_progress, watching
from reelweave.curate.sources.inputs import SourceRef
from reelweave.loader.storage import open_storage


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(open_storage(tmp_path))


def test_a_long_source_says_how_far_it_is(ledger: Ledger) -> None:
    seen: list[Progress] = []
    sources = [SourceRef("raw/film.mp4", 4000, "v"), SourceRef("raw/other.mp4", 10, "v")]
    meter = Meter(sources, Finished(), seen.append, ledger)
    with note_progress(io.BytesIO(bytes(4000)), ledger, "id", "raw/film.mp4", 4000, every_s=0) as file:
        assert file.read(1000) == bytes(1000)
        meter.show_at_work()
        file.seek(3000)
        file.read()
        meter.show_at_work()
    meter.show_at_work()
    assert [progress.at_work[0][:2] for progress in seen] == [("raw/film.mp4", 0.25), ("raw/film.mp4", 1.0)]
    assert seen[0].current == "raw/film.mp4: 25% after 0 min"
    assert ledger.notes.read("status")["at_work"][0][:2] == ["raw/film.mp4", 0.25]
    assert at_work(ledger) == []


def test_the_time_in_work_goes_on_between_two_notes(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line said "28% read after 35 s" again and again."""
    now = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    seen: list[Progress] = []
    meter = Meter([SourceRef("raw/film.mp4", 4000, "v")], Finished(), seen.append, ledger)
    with note_progress(io.BytesIO(bytes(4000)), ledger, "id", "raw/film.mp4", 4000) as file:
        for now[0] in (1004.9, 1005.0, 1020.0, 1034.9, 1035.0):
            file.read(100)
            meter.show_at_work()
    assert [round(shown.at_work[0][2], 1) for shown in seen] == [5.0, 20.0, 34.9, 35.0]
    assert [shown.at_work[0][1] for shown in seen] == [0.05, 0.05, 0.05, 0.125]


def test_finished_sources_are_counted_by_state_and_stay_in_the_status_of_later_stages(ledger: Ledger) -> None:
    sources = [SourceRef(f"raw/{name}.mp4", 10, "v") for name in "abcd"]
    before = Finished({"raw/a.mp4"}.__contains__, states={"failed": 1}, failed=1)
    meter = Meter(sources, before, lambda _: None, ledger)
    good, bad = Record("raw/b.mp4", key="b"), Record("raw/c.mp4", state="failed")
    meter.mark_done("raw/b.mp4", SourceSummary((good, replace(bad, source="raw/b.mp4"))))
    meter.mark_done("raw/c.mp4", SourceSummary((bad,)))
    meter.mark_done("raw/c.mp4", SourceSummary((bad,)))  # told twice, after a lost node
    assert meter.last is not None
    assert meter.last.sources == {"done": 1, "failed": 2}
    ClipMeter(1, lambda _: None, ledger, meter.last).mark_done("raw/b.mp4")
    assert ledger.notes.read("status")["phase"] == "caption"
    assert ledger.notes.read("status")["sources"] == {"done": 1, "failed": 2}


def test_a_source_that_is_quick_writes_nothing(ledger: Ledger, tmp_path: Path) -> None:
    with note_progress(io.BytesIO(bytes(100)), ledger, "id", "raw/film.mp4", 100) as file:
        file.read()
        assert not any(path.is_file() for path in tmp_path.rglob("*"))


def test_the_watch_looks_again_and_again_and_forgets_what_a_killed_worker_left(ledger: Ledger) -> None:
    ledger.notes.write("at_work/stale", {"source": "raw/gone.mp4", "share": 0.5, "seconds": 100.0})
    looks = threading.Semaphore(0)
    with watching(ledger, looks.release, every_s=0.01):
        assert at_work(ledger) == []
        assert all(looks.acquire(timeout=240) for _ in range(3))
    assert "sources at work" not in {thread.name for thread in threading.enumerate()}
