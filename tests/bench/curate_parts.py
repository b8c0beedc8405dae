"""A long film in parts against one pass over the whole: wall time on two workers, processor seconds, loss by a kill.

    python -m tests.bench.curate_parts --film FILM [--footage DIR --minutes 20] [--part-s 300] [--runner ray]

With ``--footage`` the film is made first: all videos below DIR one after the other, at 640x360 and 25 frames per
second, with sound, until it is long enough. Then curations take turns, each in a process of its own: whole, in parts,
and in parts with a SIGKILL of all its processes halfway through, begun again. Their datasets are compared byte for
byte. Processor seconds are those of the process and its workers, and those that the ledger tells.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

from reelweave.curate.config import CurateConfig
from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.ledger.records import source_summary
from reelweave.curate.source_pass.cut_source import STAGE
from reelweave.loader.storage import open_storage

_SIZE, _RATE, _SOUND_RATE = (640, 360), 25, 44100
_RUN = """
import resource, sys
from reelweave.curate.config import CurateConfig
from reelweave.curate.run.curate import curate
curate([sys.argv[1]], sys.argv[2], CurateConfig.model_validate_json(sys.argv[3]))
spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(sum(one.ru_utime + one.ru_stime for one in spent))
"""


def main(arguments: list[str] | None = None) -> int:
    """Print a line of JSON for each run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--film", required=True, type=Path)
    parser.add_argument("--footage", type=Path)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--part-s", type=float, default=300)
    parser.add_argument("--runner", choices=("ray", "sequential"), default="sequential")
    parser.add_argument("--runs", nargs="+", default=["whole", "parts", "killed"])
    options = parser.parse_args(arguments)
    if options.footage:
        make(options.film, options.footage, options.minutes)
    with tempfile.TemporaryDirectory() as folder:
        trees = []
        wall_s = 60.0
        for number, kind in enumerate(options.runs):
            out = Path(folder) / str(number)
            run = {"runner": options.runner, "part_s": 1e6 if kind == "whole" else options.part_s}
            found = measure(
                options.film, out, CurateConfig.model_validate({"run": run}), kind == "killed", wall_s
            )
            wall_s = found["wall_s"]
            trees.append(tree(out))
            print(json.dumps({"run": kind, **found, "same_bytes": trees[-1] == trees[0]}), flush=True)
    return 0


def make(film: Path, footage: Path, minutes: float) -> None:
    """Write a film of all videos below a folder, again and again until it is long enough."""
    left = round(minutes * 60 * _RATE)
    noise = np.random.default_rng(1).normal(0, 3000, _SOUND_RATE).astype(np.int16)
    with av.open(film, "w") as container:
        stream = container.add_stream("libx264", rate=_RATE)
        (stream.width, stream.height), stream.pix_fmt = _SIZE, "yuv420p"
        stream.options = {"crf": "23", "preset": "veryfast"}
        sound = container.add_stream("aac", rate=_SOUND_RATE, layout="mono")
        for number, picture in enumerate(pictures(footage)):
            picture.pts, picture.time_base = number, Fraction(1, _RATE)
            container.mux(stream.encode(picture))
            if number % _RATE == 0:
                heard = av.AudioFrame.from_ndarray(noise[None], "s16", "mono")
                heard.sample_rate, heard.pts = _SOUND_RATE, number // _RATE * _SOUND_RATE
                container.mux(sound.encode(heard))
            left -= 1
            if not left:
                break
        container.mux(stream.encode(None))
        container.mux(sound.encode(None))


def pictures(footage: Path) -> Iterator[av.VideoFrame]:
    """Yield the pictures of all videos, again and again."""
    paths = [path for path in sorted(footage.rglob("*")) if path.suffix in (".mp4", ".webm", ".mkv", ".mov")]
    while True:
        for path in paths:
            try:
                with av.open(path) as container:
                    for frame in container.decode(video=0):
                        made = frame.reformat(*_SIZE, "yuv420p")
                        made.pict_type = 0
                        yield made
            except (av.error.FFmpegError, IndexError):
                continue


def measure(film: Path, out: Path, config: CurateConfig, killed: bool, wall_s: float) -> dict[str, float]:
    """Curate a film, if asked for with a kill after half the wall time of the run before.

    Returns:
        Wall time, processor seconds of all processes that ended by themselves, and those that the ledger tells.
    """
    command = [sys.executable, "-c", _RUN, str(film), str(out), config.model_dump_json()]
    found: dict[str, float] = {}
    if killed:
        first = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)
        time.sleep(wall_s / 2)
        found["killed_after_s"] = wall_s / 2
        found["steps_ended"] = float(len(list(out.glob(".ledger/parts/*/*/*-*.json"))))
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    began = time.monotonic()
    spent = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found["wall_s"] = round(time.monotonic() - began, 1)
    found["process_cpu_s"] = round(float(spent), 1)
    ledger = Ledger(open_storage(out))
    [fingerprint] = ledger.fingerprints(STAGE)
    [summary] = ledger.closed(STAGE, fingerprint, source_summary).values()
    found["ledger_cpu_s"] = round(summary.cpu_s or 0.0, 1)
    found["clips"] = sum(record.state == "kept" for record in summary.records)
    return found


def tree(out: Path) -> dict[str, bytes]:
    """Return every file of a dataset but its ledger."""
    paths = [path for path in out.rglob("*") if path.is_file() and ".ledger" not in path.parts]
    return {str(path.relative_to(out)): path.read_bytes() for path in paths}


if __name__ == "__main__":
    sys.exit(main())
