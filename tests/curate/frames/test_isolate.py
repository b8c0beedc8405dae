"""A child process carries the risk: what kills or hangs it costs its own row and nothing else."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from reelweave.curate.frames.child_process import Isolated, Quarantined
from reelweave.loader.errors import RunError
from tests.curate.frames.isolated import StartsAfter, work
from tests.foreign_tars import by_tarfile, video
from tests.thorough import beyond, thorough


@pytest.fixture
def isolated() -> Iterator[Isolated]:
    worker = Isolated(work, attempts=2)
    yield worker
    worker.close()


def names(rows: object) -> list[str]:
    assert isinstance(rows, list), rows
    return [row["name"] for row in rows]


def test_one_child_serves_row_after_row_outside_this_process(isolated: Isolated) -> None:
    first, second = isolated({"name": "a"}), isolated({"name": "b"})
    assert names(first) == ["a", "a done"]
    assert names(second) == ["b", "b done"]
    assert {row["pid"] for row in first} == {row["pid"] for row in second}
    assert first[0]["pid"] != os.getpid()


def test_poison_is_given_up_with_its_signal_and_the_next_row_is_fine(isolated: Isolated) -> None:
    result = isolated({"name": "poison"})
    assert isinstance(result, Quarantined)
    assert "2 times" in result.reason
    assert "SIGSEGV" in result.reason
    assert names(isolated({"name": "a"})) == ["a", "a done"]


@pytest.mark.parametrize("deaths", beyond(1, [3, 2]))
def test_children_lost_while_they_start_do_not_count_against_the_row(tmp_path: Path, deaths: int) -> None:
    for number in range(deaths):
        (tmp_path / str(number)).touch()
    worker = Isolated(StartsAfter(tmp_path), attempts=1)
    if deaths < 3:
        assert names(worker({"name": "a"})) == ["a", "a done"]
    else:
        with pytest.raises(RunError, match="no worker process could be started in 3 attempts"):
            worker({"name": "a"})
    worker.close()


def test_a_row_that_dies_once_is_tried_again_from_its_start(isolated: Isolated, tmp_path: Path) -> None:
    assert names(isolated({"name": "once", "marker": str(tmp_path / "marker")})) == ["once", "once done"]


def test_a_hanging_row_is_given_up() -> None:
    quick = Isolated(work, attempts=1, max_silence_s=0.5)
    assert "no sign of life" in quick({"name": "hang"}).reason


def test_an_exception_crosses_over_whole(isolated: Isolated) -> None:
    with pytest.raises(RunError, match="access denied"):
        isolated({"name": "storage"})
    assert names(isolated({"name": "a"})) == ["a", "a done"]


def test_modules_in_the_current_folder_are_no_part_of_the_program(tmp_path: Path) -> None:
    """Folders of films that others made may hold an ``av.py``; whoever works there runs none of it."""
    run_beside_modules(tmp_path, "sequential", {})


@thorough
def test_modules_in_the_current_folder_are_no_part_of_rays_workers(tmp_path: Path, ray_local: str) -> None:
    run_beside_modules(tmp_path, "ray", {"RAY_ADDRESS": ray_local})


def run_beside_modules(tmp_path: Path, runner: str, joined: dict[str, str]) -> None:
    """Index and curate in a folder with modules that leave a mark when they are run."""
    mark = tmp_path / "mark"
    for name in ("av", "numpy", "pickle", "socket", "curate"):
        (tmp_path / f"{name}.py").write_text(f"open({str(mark)!r}, 'w').close(); raise SystemExit")
    film = video(tmp_path, 1)
    by_tarfile(tmp_path / "tars/a.tar", [("film", {"mp4": film})])
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/film.mp4").write_bytes(film)
    sets = ["--set", f"run.runner={runner}", "--set", "spans.min_clip_s=0.1"]
    curate = ["curate", str(tmp_path / "raw"), "--out", str(tmp_path / "out"), *sets]
    # An index needs no Ray.
    for words in (curate,) if joined else (["index", "tars"], curate):
        # -P as the installed program: it looks for modules beside itself, not in the current folder.
        code = f"from reelweave.pipelines.cli import main; raise SystemExit(main({words!r}))"
        paths = os.pathsep.join(path for path in sys.path if path)
        done = subprocess.run(
            [sys.executable, "-P", "-c", code],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": paths} | joined,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert not mark.exists()


def test_a_child_that_is_left_ends_without_a_traceback() -> None:
    """As behind Ctrl-C, when its parent closes the connection with an answer unread."""
    ours, theirs = socket.socketpair()
    with theirs:
        command = [
            sys.executable,
            "-m",
            "reelweave.curate.frames.child_process",
            str(theirs.fileno()),
            str(os.getpid()),
        ]
        child = subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE, text=True)
    with Connection(ours.detach()) as pipe:
        pipe.send(work)
        assert pipe.poll(120)  # it is ready, which nobody reads
    _, said = child.communicate(timeout=120)
    assert (child.returncode, said) == (0, "")


def test_a_child_does_not_outlive_its_parent() -> None:
    code = """
from tests.curate.frames.isolated import work
from reelweave.curate.frames.child_process import Isolated
import time
print(Isolated(work)({"name": "a"})[0]["pid"], flush=True)
time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except FileNotFoundError:
            return
        if state == "Z":
            return
        time.sleep(0.05)
    raise AssertionError("the child lives on")
