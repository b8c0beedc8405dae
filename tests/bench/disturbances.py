"""Ways to disturb a curation while it runs, each at random moments of its progress, and to finish it afterwards."""

import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from tests.bench.places import Place
from tests.warm import Command

DEADLINE_S = 600.0
_TRIES = 25


class WrongError(Exception):
    """A run did what it must not do."""


@dataclass(frozen=True)
class Scene:
    """How commands of one run are started.

    Attributes:
        start: Output and further settings -> the command, at work.
        changes: Of an undisturbed run, as `Place.progress` counts them.
        cluster: Process id of the Ray cluster that the commands join; None without Ray.
        shift: Sets the offset of the commands' clock in seconds; None where that is not to be had.
    """

    start: Callable[..., Command]
    changes: int
    cluster: int | None = None
    shift: Callable[[float], None] | None = None


def finish(scene: Scene, place: Place, *sets: str, may_stop: str = "") -> int:
    """Call the command until it succeeds; return how often it stopped on the way, which only faults may do."""
    for stops in range(_TRIES):
        status, errors = ended(scene.start(place, *sets))
        if status == 0:
            return stops
        if not may_stop or may_stop not in errors:
            raise WrongError(f"status {status}: {errors[-600:]}")
    raise WrongError(f"it did not succeed in {_TRIES} attempts")


def ended(command: Command) -> tuple[int, str]:
    """Wait for a command; a traceback is wrong whatever its status."""
    deadline = time.monotonic() + DEADLINE_S
    while command.poll() is None:
        if time.monotonic() > deadline:
            command.kill()
            raise WrongError(f"it hung for {DEADLINE_S:.0f} s")
        time.sleep(0.01)
    status, errors = command.ended()
    if "Traceback" in errors:
        raise WrongError(errors[-2000:])
    return status, errors


def kill_run(scene: Scene, place: Place, moments: random.Random) -> int:
    """Kill the whole command, once to three times; twice at most where it takes a minute to start."""
    struck = 0
    for _ in range(moments.choice((1, 1, 2, 3) if scene.cluster is None else (1, 1, 1, 2))):
        command = scene.start(place)
        if place.wait(command.has_ended, _moment(scene, place, moments)):
            time.sleep(moments.uniform(0.0, 0.03))
        struck += command.kill()
    finish(scene, place)
    return struck


def kill_worker(scene: Scene, place: Place, moments: random.Random) -> int:
    """Kill a decoding child or a worker of Ray; twice at most, so that no source is taken for poison."""
    command = scene.start(place, "run.isolate=true")
    struck, scene = 0, replace(scene, changes=scene.changes // 3)  # workers are gone before the end
    for _ in range(2):
        place.wait(command.has_ended, _moment(scene, place, moments))
        while command.poll() is None and not (found := _workers(scene, command)):
            time.sleep(0.01)
        if command.poll() is not None:
            break
        time.sleep(moments.uniform(0.0, 0.3))
        with suppress(ProcessLookupError):
            os.kill(moments.choice(found), signal.SIGKILL)
            struck += 1
    if ended(command)[0] != 0:  # Ray may give a task up; the same command goes on
        finish(scene, place, "run.isolate=true")
    return struck


def _workers(scene: Scene, command: Command) -> list[int]:
    found = []
    parent = psutil.Process(scene.cluster or command.pid)
    for child in parent.children(recursive=True):
        with suppress(psutil.Error):
            words = " ".join(child.cmdline())
            # Ray's agents are called so, too; a node ends with them.
            of_ray = words.startswith("ray::") and not re.search(r"IDLE|Agent", words)
            if of_ray or "reelweave.curate.frames.child_process" in words:
                found.append(child.pid)
    return found


def break_s3(scene: Scene, place: Place, moments: random.Random) -> int:
    """Fail requests in every way, scattered over the run."""
    faults = _script_faults(place, moments, 12)
    finish(scene, place)
    return faults - _left(place)


def break_s3_and_kill(scene: Scene, place: Place, moments: random.Random) -> int:
    """Both."""
    faults = _script_faults(place, moments, 12)
    kills = kill_run(scene, place, moments)
    return faults - _left(place) + kills


def _script_faults(place: Place, moments: random.Random, faults: int) -> int:
    assert place.proxy is not None
    for _ in range(faults):
        method = moments.choice(("^GET", "^PUT", "^HEAD"))
        kind = moments.randrange(4)
        if kind == 0:
            place.proxy.answer(503, "SlowDown", match=method, times=2)
        elif kind == 1:
            place.proxy.reset(moments.randrange(2000), match="^GET")
        elif kind == 2:
            place.proxy.truncate(moments.randrange(2000), match="^GET")
        else:
            place.proxy.lose_answer(match="^PUT")
    return faults


def _left(place: Place) -> int:
    assert place.proxy is not None
    return sum(fault.times > 0 for fault in place.proxy._faults)


def two_at_once(scene: Scene, place: Place, moments: random.Random) -> int:
    """Start a second run while the first is anywhere, of other settings or of the same; on S3 the first may be stopped.

    One succeeds, and the other says that it did not; whoever comes to a finished dataset of other settings says that.
    """
    first = scene.start(place)
    place.wait(first.has_ended, moments.randrange(scene.changes + 1))
    stopped = place.proxy is not None and scene.cluster is None and moments.random() < 0.3
    if stopped:
        first.signal(signal.SIGSTOP)
    same = moments.random() < 0.5
    second = scene.start(place, *(() if same else (OTHER,)))
    second_ended = ended(second)
    if stopped:
        first.signal(signal.SIGCONT)
    first_ended = ended(first)
    statuses = {first_ended[0], second_ended[0]}
    if not (statuses <= {0, 1, 2} and 0 in statuses and (same or statuses != {0})):
        raise WrongError(f"{first_ended} and {second_ended}")
    winner_is_second = not same and second_ended[0] == 0
    finish(scene, place, *((OTHER,) if winner_is_second else ()))
    return 1


OTHER = "cut.crf=30"
"""The settings of the second run, where they differ."""


def jump_clock(scene: Scene, place: Place, moments: random.Random) -> int:
    """Set the wall clock of the command forward and back by up to three years, and kill it once in two runs."""
    assert scene.shift is not None
    struck = 0
    for kill in [True, False] if moments.random() < 0.5 else [False]:
        command = scene.start(place)
        for _ in range(moments.choice((1, 2, 3))):
            if not place.wait(command.has_ended, _moment(scene, place, moments)):
                break
            scene.shift(moments.uniform(-1e8, 1e8))
            struck += 1
        if kill:
            command.kill()
        elif ended(command)[0] != 0:
            raise WrongError(ended(command)[1])
    scene.shift(0.0)
    finish(scene, place)
    return struck


@contextmanager
def small_disk(folder: Path, kib: int) -> Iterator[Callable[[int], None]]:
    """A file system of so many KiB, and what makes it larger; needs root."""
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kib}k", "reelweave", str(folder)], check=True)
    try:
        yield lambda more: _remount(folder, more)
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def _remount(folder: Path, kib: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={kib}k", str(folder)], check=True)


def fill_disk(
    scene: Scene, place: Place, moments: random.Random, check: Callable[[], None] = lambda: None
) -> int:
    """Write to a file system of random small size, which grows after each stop; ``check`` while it is there."""
    kib, stops = moments.randrange(20, 400), 0
    # The folder of the output is on it, so that the whole output is.
    with small_disk(Path(place.uri).parent, kib) as grow:
        while True:
            status, errors = ended(scene.start(place))
            # A report for which there is no room ends no run: the dataset is whole, and the same command writes it.
            if status == 0 and "No space left" not in errors:
                break
            if "No space left" not in errors:
                raise WrongError(f"status {status}: {errors[-600:]}")
            stops, kib = stops + 1, kib * 3 // 2
            grow(kib)
        check()
    return stops


def _moment(scene: Scene, place: Place, moments: random.Random) -> int:
    """Return a number of changes between those there are and those there will be."""
    now = place.progress()
    return now + moments.randrange(max(1, scene.changes - now) + 1)
