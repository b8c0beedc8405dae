"""Curates under random faults, over and over, and compares every byte with an undisturbed run.

    python -m tests.bench.exactly_once --runs 100 [--faults driver,worker,s3,disk,ray] [--seed 0]

Each run breaks in one way: the driver or a decoding child is killed with SIGKILL at a random moment, several
times; S3 answers with 503s, resets connections, loses answers; the disk is full; or a Ray worker is killed. After a
stop the same command is started again, as a person would. A run is right when the dataset's bytes are those of
the undisturbed run and every source ended in a recorded state.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from loader.dataset import verify
from loader.storage import open_storage
from tests.media import write_video

FAULTS = ("driver", "worker", "s3", "disk", "ray")
CURATE = """
import sys
from pipelines.cli import main
sys.exit(main(["curate", sys.argv[1], "--out", sys.argv[2], "--json", *sys.argv[3:]]))
"""
DEADLINE_S = 300.0


@dataclass(frozen=True)
class Scene:
    """The input of all runs and the bytes they must come to."""

    raw: Path
    folder: Path
    expected: dict[str, bytes]
    expected_of_s3: dict[str, bytes]


def main(arguments: list[str] | None = None) -> int:
    """Prints the result as JSON; 1 when any run was wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="reelweave-faults-") as folder:
        result = prove(Path(folder), options.runs, options.faults.split(","), options.seed)
    print(json.dumps({**result, "wall_s": round(time.monotonic() - began)}, indent=1))
    return 0 if not result["wrong"] else 1


def prove(folder: Path, runs: int, faults: list[str], seed: int) -> dict[str, object]:
    """Runs with one fault after the other; ``wrong`` names the runs whose bytes differ."""
    raw = make_footage(folder / "raw")
    undisturbed = folder / "undisturbed"
    process = start(raw, str(undisturbed))
    if process.wait() != 0:
        raise SystemExit("the undisturbed run failed")
    scene = Scene(raw, folder, tree(undisturbed), {})
    if "s3" in faults:  # sources have other names there
        break_s3(scene, folder / "undisturbed s3", random.Random(0), faults=0)
        scene = replace(scene, expected_of_s3=tree(folder / "undisturbed s3"))
    moments = random.Random(seed)
    injected: Counter[str] = Counter()
    wrong = []
    for number in range(runs):
        fault = faults[number % len(faults)]
        out = folder / f"run {number}"
        injected[fault] += BREAK[fault](scene, out, moments)
        found, expected = tree(out), scene.expected_of_s3 if fault == "s3" else scene.expected
        if found != expected or not verify(open_storage(out)).ok:
            wrong.append(f"{number} ({fault}): {differences(expected, found)}")
        shutil.rmtree(out)
    return {"runs": runs, "faults_injected": dict(injected), "wrong": wrong}


def make_footage(raw: Path) -> Path:
    """Eight small sources, two of them broken."""
    for number in range(6):
        write_video(raw / f"{number}.mp4", (30, 34, 28 + number), first_scene=3 * number)
    (raw / "broken.mp4").write_bytes((raw / "0.mp4").read_bytes()[:900])
    (raw / "empty.mp4").touch()
    return raw


def tree(folder: Path) -> dict[str, bytes]:
    """Path to content of everything but the ledger and the report."""
    paths = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    return {
        name: path.read_bytes()
        for name, path in paths.items()
        if not name.startswith((".ledger/", "report/"))
    }


def differences(expected: dict[str, bytes], found: dict[str, bytes]) -> list[str]:
    """Files that are not what they should be."""
    return sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))


def start(raw: Path | str, out: str, *sets: str, runner: str = "sequential") -> subprocess.Popen[bytes]:
    """One call of the command, in a session of its own so that it can be killed with all its children."""
    values = [f"run.runner={runner}", "shard.max_shard_mb=0.05", "spans.min_clip_s=1.0", *sets]
    arguments = [word for value in values for word in ("--set", value)]
    return subprocess.Popen(
        [sys.executable, "-c", CURATE, str(raw), out, *arguments],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def finish(begin: Callable[[], subprocess.Popen[bytes]]) -> int:
    """Calls the command until it succeeds; how often it stopped on the way."""
    for stops in range(20):
        process = begin()
        _, errors = process.communicate(timeout=DEADLINE_S)
        if process.returncode == 0:
            return stops
        if b"Traceback" in errors:
            raise SystemExit(errors.decode(errors="replace"))
    raise SystemExit("it never succeeded")


def children(process: subprocess.Popen[bytes], what: bytes) -> list[int]:
    """Processes of the same session whose command line holds ``what``."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if os.getsid(int(entry.name)) == process.pid and what in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def kill_driver(scene: Scene, out: Path, moments: random.Random) -> int:
    """Kills the whole run at up to three random moments."""
    kills = 0
    for _ in range(3):
        process = start(scene.raw, str(out))
        try:
            process.wait(timeout=moments.uniform(0.4, 2.6))
            break
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            kills += 1
    finish(lambda: start(scene.raw, str(out)))
    return kills


def kill_worker(scene: Scene, out: Path, moments: random.Random) -> int:
    """Kills the decoding child while the run goes on, at most twice so that no source is taken for poison."""
    process = start(scene.raw, str(out))
    kills = 0
    while process.poll() is None and kills < 2:
        found = children(process, b"curate.isolate")
        # However fast the machine is, there is a child to kill.
        time.sleep(moments.uniform(0.0, 0.8) if found else 0.01)
        for child in found:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
                kills += 1
    _, errors = process.communicate(timeout=DEADLINE_S)
    if process.returncode != 0:
        raise SystemExit(errors.decode(errors="replace"))
    return kills


def break_s3(scene: Scene, out: Path, moments: random.Random, faults: int = 12) -> int:
    """Reads from and writes to S3 through a proxy that fails in every way; the result is then copied here."""
    from tests.s3server import FaultyProxy, make_bucket, s3_client, s3_server

    with s3_server() as endpoint, FaultyProxy(endpoint) as proxy:
        make_bucket(endpoint, "lake")
        for path in scene.raw.iterdir():
            s3_client(endpoint).upload_file(str(path), "lake", f"raw/{path.name}")
        for _ in range(faults):
            method = moments.choice(("^GET", "^PUT", "^HEAD"))
            kind = moments.randrange(4)
            if kind == 0:
                proxy.answer(503, "SlowDown", match=method, times=2)
            elif kind == 1:
                proxy.reset(moments.randrange(2000), match="^GET")
            elif kind == 2:
                proxy.truncate(moments.randrange(2000), match="^GET")
            else:
                proxy.lose_answer(match="^PUT")
        sets = (
            f"storage.endpoint_url={proxy.url}",
            "storage.region=us-east-1",
            "storage.backoff_base_s=0.01",
        )
        finish(lambda: start("s3://lake/raw", "s3://lake/dataset", *sets))
        client = s3_client(endpoint)
        for page in client.get_paginator("list_objects_v2").paginate(Bucket="lake", Prefix="dataset/"):
            for entry in page["Contents"]:
                target = out / entry["Key"].removeprefix("dataset/")
                target.parent.mkdir(parents=True, exist_ok=True)
                client.download_file("lake", entry["Key"], str(target))
        return faults - sum(fault.times > 0 for fault in proxy._faults)


def fill_disk(scene: Scene, out: Path, moments: random.Random) -> int:
    """Writes to a file system of random small size, which grows after each stop."""
    place = scene.folder / "small disk"
    place.mkdir(exist_ok=True)
    kib = moments.randrange(20, 400)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "reelweave", str(place)], check=False
    )
    if mounted.returncode != 0:
        raise SystemExit("mounting a small disk needs root; leave `disk` out of --faults")
    try:
        stops = 0
        while True:
            process = start(scene.raw, str(place / "dataset"))
            _, errors = process.communicate(timeout=DEADLINE_S)
            if process.returncode == 0:
                break
            if b"No space left" not in errors or b"Traceback" in errors:
                raise SystemExit(errors.decode(errors="replace"))
            stops += 1
            kib *= 2
            subprocess.run(["mount", "-o", f"remount,size={kib}k", str(place)], check=True)
        shutil.copytree(place / "dataset", out)
    finally:
        subprocess.run(["umount", str(place)], check=True)
    return stops


def kill_ray_worker(scene: Scene, out: Path, moments: random.Random) -> int:
    """Kills a Ray worker in mid-task; Ray and we go on without stopping."""
    process = start(scene.raw, str(out), runner="ray")
    kills = 0
    while process.poll() is None and kills < 3:
        time.sleep(moments.uniform(1.0, 4.0))
        for worker in children(process, b"ray::")[:1]:
            os.kill(worker, signal.SIGKILL)
            kills += 1
    process.communicate(timeout=DEADLINE_S)
    if process.returncode != 0:
        finish(lambda: start(scene.raw, str(out), runner="ray"))
    return kills


BREAK: dict[str, Callable[[Scene, Path, random.Random], int]] = {
    "driver": kill_driver,
    "worker": kill_worker,
    "s3": break_s3,
    "disk": fill_disk,
    "ray": kill_ray_worker,
}

if __name__ == "__main__":
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    sys.exit(main())
