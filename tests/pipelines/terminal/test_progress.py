"""Progress where nobody looks at a terminal, the time left on one, and the status of a run from elsewhere."""

import io
import json
import signal
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.run.runners.progress import Progress, finish_status, write_status
from reelweave.loader.storage import Storage, StorageConfig, hold_lease, open_storage
from reelweave.loader.storage.leases.holder import LeaseHolder
from reelweave.loader.storage.names import LEASE
from reelweave.pipelines.cli import main
from reelweave.pipelines.terminal.console import progress_bars
from reelweave.pipelines.terminal.curation_progress import (
    age_progress,
    curation_progress,
    describe_progress,
    duration,
)
from tests.media import write_video
from tests.warm import Warm

START = Progress("cut", done=0, total=4, done_weight=0.0, total_weight=100.0)
HALF = replace(
    START, done=2, done_weight=31.0, eta_s=600.0, states={"kept": 5}, at_work=(("raw/long.mp4", 0.43, 300.0),)
)
END = replace(START, done=4, done_weight=100.0, eta_s=0.0)


def test_a_log_has_the_begin_and_the_end_of_each_phase(capsys: pytest.CaptureFixture[str]) -> None:
    with curation_progress() as show:
        for one in (START, HALF, END, END, replace(START, phase="shard"), replace(END, phase="shard")):
            show(one)
    assert capsys.readouterr().err.splitlines() == [
        "clips: 0 of 4 sources (0%)",
        "clips: 4 of 4 sources (100%)",
        "shards: 0 of 4 shards (0%)",
        "shards: 4 of 4 shards (100%)",
    ]


def test_a_log_goes_on_while_nothing_is_finished(capsys: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []
    with curation_progress(every_s=0.05) as show:
        show(START)
        show(HALF)
        began = time.monotonic()
        while lines.count(describe_progress(HALF)) < 3 and time.monotonic() - began < 60:
            lines += capsys.readouterr().err.splitlines()
    half = "clips: 2 of 4 sources (31%), about 10 min left; long.mp4: 43% read after 5 min"
    assert lines[0] == describe_progress(START)
    assert lines[-3:] == [half] * 3
    assert not any(thread.name == "progress lines" for thread in threading.enumerate())


def test_json_lines_name_run_and_source(capsys: pytest.CaptureFixture[str]) -> None:
    with curation_progress("json", run="s3://lake/ds") as show:
        show(replace(HALF, current="raw/a\u202eb.mp4"))
    [line] = capsys.readouterr().err.splitlines()
    said = json.loads(line)
    assert (said["run"], said["phase"], said["done"], said["eta_s"]) == ("s3://lake/ds", "cut", 2, 600.0)
    assert said["current"] == "raw/a\u202eb.mp4"
    assert "\u202e" not in line
    assert said["at_work"] == [["raw/long.mp4", 0.43, 300.0]]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0 s"), (119, "119 s"), (120, "2 min"), (7199, "120 min"), (7200, "2.0 h"), (10 * 86400, "10.0 d")],
)
def test_durations_have_the_unit_that_people_use(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_the_bars_show_our_own_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sources that finish more than 30 s apart: rich alone says "-:--:--"."""
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, width=200)
    monkeypatch.setattr("reelweave.pipelines.terminal.console.stderr", lambda: terminal)
    monkeypatch.setattr("reelweave.pipelines.terminal.curation_progress.stderr", lambda: terminal)
    with curation_progress() as show:
        show(START)
        show(HALF)
    assert "0:10:00" in screen.getvalue()


def test_bars_remember_steps_that_lie_far_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal
    with progress_bars() as bars:
        monkeypatch.setattr(bars, "get_time", lambda: clock[0])
        task = bars.add_task("sources", total=4, count="", note="")
        for done in (1, 2):
            clock[0] += 90.0
            bars.update(task, completed=done)
        assert bars.tasks[0].time_remaining == pytest.approx(180, abs=2)


def test_a_line_that_is_said_again_counts_the_time_since() -> None:
    assert "long.mp4: 43% read after 5 min" in describe_progress(HALF)
    assert "long.mp4: 43% read after 6 min" in describe_progress(age_progress(HALF, 60.0))


def test_a_phase_of_unknown_length_says_that_it_has_begun(capsys: pytest.CaptureFixture[str]) -> None:
    with curation_progress() as show:
        for done, total in ((0, 0), (1, 2), (2, 2)):
            show(Progress("report", done, total, done, total))
    assert capsys.readouterr().err.splitlines() == ["report: begun", "report: 2 of 2 pictures (100%)"]


def test_bars_are_lines_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bars() as bars:
        task = bars.add_task("tars", count="", note="", total=None)
        assert capsys.readouterr().err == ""  # how much there is is not known yet
        bars.update(task, completed=0, total=200, count="0/2")
        bars.update(task, completed=50, total=200, count="0/2", note="a.tar")
        bars.update(task, completed=200, total=200, count="2/2", note="b.tar")
    assert capsys.readouterr().err.splitlines() == ["tars: 0/2 (0%)", "tars: 2/2 (100%), b.tar"]


def test_bars_without_counts_tell_steps(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bars() as bars:
        task = bars.add_task("sampling", total=2, count="", note="")
        bars.advance(task)
        bars.advance(task)
    assert capsys.readouterr().err.splitlines() == ["sampling: 0/2 (0%)", "sampling: 2/2 (100%)"]


def test_before_an_error_there_is_no_bar_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(LookupError), progress_bars() as bars:
        bars.add_task("tars", count="", note="", total=None)
        raise LookupError
    assert capsys.readouterr().err == ""


def test_the_status_of_a_run_is_read_from_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    storage = open_storage(str(tmp_path), StorageConfig())
    write_status(Ledger(storage), HALF)
    with hold_lease(storage, "reelweave curate"):
        check_status(storage, tmp_path, capsys)


def check_status(storage: Storage, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == [describe_progress(HALF), "so far: 5 kept"]
    assert main(["status", str(tmp_path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["finished"], said["written"], said["status"]["done"]) == (False, True, 2)
    assert 0 <= said["age_s"] < 60
    old = json.loads(storage.read(".ledger/status.json"))
    storage.write(".ledger/status.json", json.dumps({**old, "at": "2020-01-01T00:00:00+0000"}).encode())
    assert main(["status", str(tmp_path)]) == 0
    assert "nothing was written for" in capsys.readouterr().out


def test_the_status_of_a_run_that_was_stopped_says_so_and_is_watched_no_longer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_status(Ledger(open_storage(str(tmp_path), StorageConfig())), HALF)
    for words, status in ((["status", str(tmp_path)], 0), (["status", str(tmp_path), "--watch"], 1)):
        assert main(words) == status
        *shown, said = capsys.readouterr().out.splitlines()
        assert shown == [describe_progress(HALF), "so far: 5 kept"]
        assert said.startswith("no process writes here: the run was stopped, its last record is of ")
        assert said.endswith("the same command goes on where it stopped")
    assert main(["status", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["written"] is False


def test_of_a_silent_run_on_another_machine_it_says_how_that_can_be_seen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on S3."""
    storage = open_storage(str(tmp_path), StorageConfig())
    write_status(Ledger(storage), HALF)
    old = json.loads(storage.read(".ledger/status.json"))
    storage.write(".ledger/status.json", json.dumps({**old, "at": "2020-01-01T00:00:00+0000"}).encode())
    holder = replace(LeaseHolder.here("reelweave curate"), process="another boot 1", lasts_s=60.0)
    storage.write(LEASE, holder.to_bytes())
    assert main(["status", str(tmp_path)]) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    assert "reelweave curate" in said
    assert "--watch tells within 60 s" in said


def test_the_status_of_a_killed_run_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], warm: Warm
) -> None:
    """Its lease stays behind."""
    write_video(tmp_path / "raw/a.mp4", (8,))
    out = tmp_path / "ds"
    words = ["curate", str(tmp_path / "raw"), "--out", str(out), "--set=run.runner=sequential"]
    assert warm.start(*words, killed_behind="status.json").ended()[0] == -signal.SIGKILL
    assert (out / ".reelweave-lease").exists()
    assert main(["status", str(out), "--watch"]) == 1
    assert "no process writes here" in capsys.readouterr().out


def test_watching_ends_with_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = open_storage(str(tmp_path), StorageConfig())
    write_status(Ledger(storage), HALF)
    lease = ExitStack()
    lease.enter_context(hold_lease(storage, "reelweave curate"))
    steps = [
        lambda: None,
        lambda: write_status(Ledger(storage), END),
        lambda: storage.write("manifest.json", b"{}"),
        lambda: (finish_status(Ledger(storage)), lease.close()),
    ]
    own, sleep = threading.get_ident(), time.sleep

    def slept(seconds: float) -> None:
        # Threads of other tests' libraries, as of a Ray that this process has joined, sleep on.
        if threading.get_ident() == own:
            steps.pop(0)()
        else:
            sleep(seconds)

    monkeypatch.setattr(time, "sleep", slept)
    assert main(["status", str(tmp_path), "--watch"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        describe_progress(HALF),
        "so far: 5 kept",
        describe_progress(END),
        f"{tmp_path} is finished",
    ]


@pytest.mark.parametrize("content", [b"", b"[]", b'{"phase": "cut"}', b"\xff"])
def test_what_is_no_status_is_refused_in_words(
    tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", str(tmp_path)]) == 1
    assert "neither a dataset nor a curation" in capsys.readouterr().err
    open_storage(str(tmp_path), StorageConfig()).write(".ledger/status.json", content)
    assert main(["status", str(tmp_path)]) == 1
    assert "is no status of a curation" in capsys.readouterr().err
