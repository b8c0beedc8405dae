"""Curates under faults of every kind, on every runner and storage, and compares every byte with an undisturbed run.

    python -m tests.bench.exactly_once run --results results.jsonl [--runs 100] [--others 20] [--only run/ray]
    python -m tests.bench.exactly_once table --results results.jsonl > docs/benchmarks/exactly_once.md

After a stop the same command is started again, as a person would. A run is right when every file of the dataset is,
byte for byte, that of an undisturbed run, the dataset verifies, its accounting names every source, and nothing else
lies in the output. Each result is one line, so that the same command goes on where it was stopped. Commands are
forked from one process that has imported everything; runs on Ray join one cluster that stays.
"""

import argparse
import itertools
import json
import logging
import os
import random
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from reelweave.loader.dataset import open_dataset, verify
from tests.bench.disturbances import (
    OTHER,
    Scene,
    WrongError,
    break_s3,
    break_s3_and_kill,
    fill_disk,
    finish,
    jump_clock,
    kill_run,
    kill_worker,
    two_at_once,
)
from tests.bench.exactly_once_table import page
from tests.bench.places import BUCKET, Place, on_s3
from tests.media import write_video
from tests.ports import reserved_port
from tests.s3server import make_bucket, s3_client, s3_server
from tests.warm import Command, Warm

FAKETIME = ("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1", "/usr/lib/faketime/libfaketimeMT.so.1")
# Under libfaketime 0.9.10 with a monotonic clock of its own, every time.sleep of Python 3.11 fails with EINVAL.
_SLEEP = "import threading, time; time.sleep = lambda seconds: threading.Event().wait(seconds)"
_NUMBER = re.compile(r"(?<=[a-z])\.\d{6}(?=\.(parquet|arrow)$)")
_LAST_RUN = ".ledger/run.json"  # seconds of the last run that had something to do; a kill may leave none
RUNNERS = ("sequential", "ray")
STORAGES = ("local", "s3")
SETTINGS = ("shard.max_shard_mb=0.05", "spans.min_clip_s=1.0")

Disturb = Callable[[Scene, Place, random.Random], int]
FAULTS: dict[str, tuple[Disturb, tuple[str, ...]]] = {
    "run": (kill_run, STORAGES),
    "worker": (kill_worker, STORAGES),
    "s3": (break_s3, ("s3",)),
    "s3+kill": (break_s3_and_kill, ("s3",)),
    "two": (two_at_once, STORAGES),
    "disk": (fill_disk, ("local",)),
    "clock": (jump_clock, STORAGES),
}
"""What disturbs by name, and where it can."""


@dataclass(frozen=True)
class Cell:
    """One kind of fault on one runner and storage."""

    fault: str
    runner: str
    storage: str

    def __str__(self) -> str:
        return f"{self.fault}/{self.runner}/{self.storage}"


CELLS = [
    Cell(fault, runner, storage)
    for fault, (_, storages) in FAULTS.items()
    for runner in RUNNERS
    for storage in storages
]


@dataclass(frozen=True)
class Expected:
    """What an undisturbed run leaves: the dataset's bytes, every path, and the number of changes it took."""

    content: dict[str, bytes]
    paths: set[str]
    changes: int


class Lab:
    """Footage, servers and undisturbed runs, for any number of disturbed ones.

    Args:
        folder: For everything.
        runners: Of the cells that are asked for; a Ray cluster takes seconds to start.
        clock: Whether clocks shall jump.
    """

    def __init__(self, folder: Path, runners: Sequence[str], clock: bool) -> None:
        self.folder, self._runners, self._clock = folder, runners, clock
        self._stack = ExitStack()
        self._offset = folder / "clock"
        self._warm: dict[bool, Warm] = {}
        self._cluster: tuple[int, str] | None = None
        self._expected: dict[tuple[str, str], Expected] = {}
        self._places = 0
        self._started: list[Command] = []

    def __enter__(self) -> "Lab":
        self.raw = make_footage(self.folder / "raw")
        self._endpoint = self._stack.enter_context(s3_server())
        make_bucket(self._endpoint, BUCKET)
        for path in self.raw.iterdir():
            s3_client(self._endpoint).upload_file(str(path), BUCKET, f"raw/{path.name}")
        # Commands and cluster know each other by a token of their own, whatever this user's other clusters have.
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        self._stack.enter_context(patch.dict(os.environ, {**token, "RAY_USAGE_STATS_ENABLED": "0"}))
        self._warm[False] = self._stack.enter_context(Warm())
        if self._clock:
            self._shift(0.0)
            self._warm[True] = self._stack.enter_context(Warm(faked(self._offset), _SLEEP))
        if "ray" in self._runners:
            port = self._stack.enter_context(reserved_port())
            self._cluster = self._stack.enter_context(ray_cluster(self.folder, port))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def disturb(self, cell: Cell, seed: str) -> dict[str, object]:
        """Do one run of a cell; return what struck, and what was wrong, in words."""
        began, struck, wrong = time.monotonic(), 0, ""
        with self.place(cell.storage) as place:
            try:
                struck = self._disturbed(cell, place, random.Random(seed))
            except WrongError as error:
                wrong = str(error)
            finally:
                for command in self._started:
                    command.kill()
                self._started.clear()
        return {"struck": struck, "wrong": wrong, "wall_s": round(time.monotonic() - began, 2)}

    def _disturbed(self, cell: Cell, place: Place, moments: random.Random) -> int:
        isolate = moments.random() < 0.25
        expected = self.expected(cell.storage)
        scene = Scene(
            start=lambda at, *sets: self._start(cell, at, (f"run.isolate={str(isolate).lower()}", *sets)),
            changes=expected.changes,
            cluster=self._cluster[0] if self._cluster and cell.runner == "ray" else None,
            shift=self._shift,
        )
        others = [self.expected(cell.storage, OTHER)] if cell.fault == "two" else []

        def check() -> None:
            self.check(place, [expected, *others])

        if cell.fault == "disk":
            return fill_disk(scene, place, moments, check)
        struck = FAULTS[cell.fault][0](scene, place, moments)
        check()
        return struck

    def expected(self, storage: str, *sets: str) -> Expected:
        """What an undisturbed run leaves, in this process's runner, which must not matter."""
        key = (storage, " ".join(sets))
        if key not in self._expected:
            cell = Cell("none", "sequential", storage)
            with self.place(storage) as place:
                command = self._start(cell, place, ("run.isolate=false", *sets))
                place.wait(command.has_ended, 1 << 30)
                finish(Scene(lambda *_: command, 0), place)
                paths = place.paths()
                content = {path: place.read(path) for path in paths if not is_beside(path)}
                self._expected[key] = Expected(content, paths, place.progress())
        return self._expected[key]

    def check(self, place: Place, expected: Sequence[Expected]) -> None:
        """Compare with the undisturbed runs.

        Raises:
            WrongError: it is like none of them.
        """
        paths = place.paths()
        content = {path: place.read(path) for path in paths if not is_beside(path)}
        # Where another run stopped with its tables written, the next one's have another number.
        found = content if len(expected) == 1 else unnumbered(content)
        like = next((one for one in expected if found in (one.content, unnumbered(one.content))), None)
        if like is None:
            different = {
                path
                for path in content.keys() | expected[0].content.keys()
                if content.get(path) != expected[0].content.get(path)
            }
            raise WrongError(f"other bytes: {sorted(different)}")
        if problems := verify(place.storage).problems:
            raise WrongError(f"it does not verify: {problems}")
        accounting = open_dataset(place.uri, place.storage_config).accounting
        named = {Path(uri).name for uri in accounting.column("source").to_pylist()}
        if named != {path.name for path in self.raw.iterdir()}:
            raise WrongError(f"accounted for are {sorted(named)}")
        # The ledger of two runs with different settings holds the work of both.
        if len(expected) == 1 and (left := (paths ^ like.paths) - {_LAST_RUN}):
            raise WrongError(f"left behind or missing: {sorted(left)}")
        if hidden := {path for path in paths if "reelweave-" in path}:
            raise WrongError(f"left behind: {sorted(hidden)}")

    def _start(self, cell: Cell, place: Place, sets: Sequence[str]) -> Command:
        values = [f"run.runner={cell.runner}", *SETTINGS, *place.sets, *sets]
        words = [word for value in values for word in ("--set", value)]
        env = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        if cell.runner == "ray":
            assert self._cluster is not None
            env["RAY_ADDRESS"] = self._cluster[1]
        warm = self._warm[cell.fault == "clock"]
        self._started.append(
            warm.start("curate", place.source, "--out", place.uri, "--json", *words, env=env)
        )
        return self._started[-1]

    @contextmanager
    def place(self, storage: str) -> Iterator[Place]:
        """An output that is empty now, and gone afterwards."""
        self._places += 1
        name = f"run-{self._places}"
        if storage == "s3":
            with on_s3(self._endpoint, name) as place:
                yield place
            return
        folder = self.folder / name
        folder.mkdir()
        try:
            yield Place(str(folder / "out"), str(self.raw))
        finally:
            shutil.rmtree(folder)

    def _shift(self, seconds: float) -> None:
        aside = self._offset.with_suffix(".new")
        aside.write_text(f"{seconds:+.0f}\n")
        aside.replace(self._offset)


def is_beside(path: str) -> bool:
    """Whether a file is no content: the ledger with its times, the report, the configuration with its place."""
    return path.startswith((".ledger/", "report/", "curate.yaml"))


def unnumbered(content: dict[str, bytes]) -> dict[str, bytes]:
    """Return a dataset's content as it would be if it were its first revision, its manifest by what it says."""
    manifest = json.loads(content["manifest.json"])
    for name in ("sha256", "revision"):
        del manifest[name]
    for entry in manifest["files"]:
        entry["path"] = _NUMBER.sub("", entry["path"])
    manifest["files"].sort(key=lambda entry: entry["path"])
    return {
        **{_NUMBER.sub("", path): data for path, data in content.items()},
        "manifest.json": json.dumps(manifest, sort_keys=True).encode(),
    }


def make_footage(raw: Path) -> Path:
    """Write five small sources: of one and of two shots, a copy, one that is cut off and an empty one."""
    write_video(raw / "one.mp4", (30,), size=(144, 128))
    write_video(raw / "two.mp4", (28, 31), first_scene=3, size=(144, 128))
    shutil.copy(raw / "one.mp4", raw / "zz copy.mp4")
    (raw / "broken.mp4").write_bytes((raw / "two.mp4").read_bytes()[:900])
    (raw / "empty.mp4").touch()
    return raw


def faked(offset: Path) -> dict[str, str]:
    """Environment in which the wall clock is shifted by what a file says (libfaketime); others go on as they are."""
    library = next((path for path in FAKETIME if Path(path).is_file()), None)
    if library is None:
        raise SystemExit(
            "clock jumps need libfaketime (Debian's package of that name); leave them out with --only"
        )
    return {
        "LD_PRELOAD": library,
        "FAKETIME_TIMESTAMP_FILE": str(offset),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_DONT_RESET": "1",
        "FAKETIME_DISABLE_SHM": "1",
    }


@contextmanager
def ray_cluster(folder: Path, port: int) -> Iterator[tuple[int, str]]:
    """A cluster of two processors on this machine: process id of its starter, and its address."""
    ray = Path(sys.executable).with_name("ray")
    command = [str(ray), "start", "--head", "--block", f"--port={port}"]
    command += ["--num-cpus=2", "--include-dashboard=false", "--object-store-memory=120000000"]
    command += [f"--temp-dir={folder}/ray", "--disable-usage-stats"]
    environment = {**os.environ, "RAY_BACKEND_LOG_LEVEL": "fatal"}
    with (folder / "ray.log").open("wb") as log:
        process = subprocess.Popen(
            command, start_new_session=True, stdout=log, stderr=subprocess.STDOUT, env=environment
        )
    try:
        deadline = time.monotonic() + 180
        while "Ray runtime started" not in (folder / "ray.log").read_text():
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"no Ray cluster: {(folder / 'ray.log').read_text()[-800:]}")
            time.sleep(0.2)
        # Ray takes an address of loopback for that of the machine, where a cluster on loopback is not.
        yield process.pid, f"{ray_node_ip()}:{port}"
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


def ray_node_ip() -> str:
    """Return the address of this machine as Ray sees it."""
    import ray.util

    return str(ray.util.get_node_ip_address())


def order(done: Mapping[str, int], runs: int, others: int, cells: Sequence[Cell]) -> Iterator[Cell]:
    """Yield the cells of the runs that are left: of each main cell, and in every third turn of another one."""
    left = {cell: (runs if cell.fault == "run" else others) - done.get(str(cell), 0) for cell in cells}
    rest = [cell for cell in cells if cell.fault != "run"]
    turn = 0
    while any(number > 0 for number in left.values()):
        chosen = [cell for cell in cells if cell.fault == "run"]
        if rest and (turn % 3 == 2 or not any(left[cell] > 0 for cell in chosen)):
            chosen.append(rest[turn // 3 % len(rest)])
        turn += 1
        for cell in chosen:
            if left[cell] > 0:
                left[cell] -= 1
                yield cell


def read_results(path: Path) -> list[dict[str, object]]:
    """Return all results so far; a line that a kill cut off counts as not there."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def run(options: argparse.Namespace) -> int:
    """Do what is left to do, a line for each; 1 when any run was wrong."""
    cells = [cell for cell in CELLS if options.only in str(cell)]
    before = read_results(options.results)
    done = Counter(str(result["cell"]) for result in before)
    used = {str(result["seed"]) for result in before}
    wrong = 0
    clock = any(cell.fault == "clock" for cell in cells)
    with (
        tempfile.TemporaryDirectory(prefix="reelweave-faults-") as folder,
        Lab(Path(folder), [cell.runner for cell in cells], clock) as lab,
        options.results.open("a") as results,
    ):
        for cell in order(done, options.runs, options.others, cells):
            seeds = (f"{options.seed}/{cell}/{number}" for number in itertools.count(1))
            seed = next(seed for seed in seeds if seed not in used)
            used.add(seed)
            result = {"cell": str(cell), "seed": seed, **lab.disturb(cell, seed)}
            wrong += bool(result["wrong"])
            results.write(json.dumps(result) + "\n")
            results.flush()
            print(json.dumps(result), file=sys.stderr)
    return 1 if wrong else 0


def main(arguments: list[str] | None = None) -> int:
    """Run, or print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=["run", "table"])
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument(
        "--runs", type=int, default=100, help="of each cell in which the whole command is killed"
    )
    parser.add_argument("--others", type=int, default=20, help="of each other cell")
    parser.add_argument("--only", default="", help="cells whose name contains this")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if options.action == "run":
        return run(options)
    print(page(read_results(options.results)), end="")
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended; the same command goes on"))
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    sys.exit(main())
