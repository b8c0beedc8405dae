"""Streams epochs in processes that are killed at random moments, over and over, and counts what was trained on.

    python -m tests.bench.loader_kills --kills 100 [--epochs 3] [--samples 240] [--seed 0]

A run is 1 to 4 rank processes with random microbatches, regime, lookahead, threads and worker processes, sometimes
with a new cost. Ranks log the samples of a step when they have finished it; when all have, rank 0 saves the state, as
a trainer saves its checkpoint. SIGKILL then strikes at a random moment all ranks, one of them, or one worker process
of one; the rest is stopped a moment later, as a launcher does. The next run goes on from the state, with other
numbers of everything.

A step counts when the state behind it was saved: the work of later ones is lost with the weights, and done again.
All is well when every sample of every epoch counts exactly once, and every frame ever handed out is that of an
undisturbed stream.
"""

import argparse
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from itertools import count
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

from reelweave.loader.buckets.cost import LinearQuadraticCost
from tests.bench.loader_ledger import Ledger
from tests.bench.loader_rank import DEADLINE_S, Run, expected_of, train, wait_for
from tests.loader.stream_clips import SHAPES, make_sample, write
from tests.media import write_video

COSTS = (LinearQuadraticCost(token_s=2, square_s=0), LinearQuadraticCost(token_s=0.7, square_s=1e-4))
Victim = Literal["all", "rank", "worker"]


def main(arguments: list[str] | None = None) -> int:
    """Prints the result as JSON; 1 when anything was wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=3, help="of each stream")
    parser.add_argument("--samples", type=int, default=240)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="reelweave-kills-") as folder:
        result = prove(Path(folder), options.kills, options.epochs, options.samples, options.seed)
    print(json.dumps({**result, "wall_s": round(time.monotonic() - began)}, indent=1))
    return 0 if not result["wrong"] else 1


def prove(folder: Path, kills: int, epochs: int, samples: int, seed: int) -> dict[str, Any]:
    """Streams with one seed after the other until there were ``kills``; ``wrong`` names every deviation."""
    dataset = make_dataset(folder / "dataset", samples)
    moments = random.Random(seed)
    totals: Counter[str] = Counter()
    victims: Counter[str] = Counter()
    most_parts, most_bytes = 0, 0
    wrong: list[str] = []
    while victims.total() < kills:
        own = folder / f"stream {totals['streams']}"
        own.mkdir()
        start = Run(own, 0, dataset, moments.getrandbits(64), epochs)
        ledger = Ledger()
        for number in count():
            run = random_run(start, number, moments)
            before = run.saved()["step"]
            victim = strike(run, moments) if victims.total() < kills else undisturbed(run)
            state = run.saved()
            ledger.add(run, before, state["step"])
            most_parts = max(most_parts, len(state["parts"]))
            most_bytes = max(most_bytes, len(json.dumps(state)))
            if victim is None:
                break
            victims[victim] += 1
        wrong += [f"{own.name}: {problem}" for problem in ledger.compare(expected_of(start), epochs)]
        totals.update(
            streams=1, epochs=epochs, runs=number + 1, steps=state["step"], counted=ledger.counted.total(),
            samples_redone=ledger.redone, frames_compared=len(ledger.pixels),
        )  # fmt: skip
    return {
        "kills": victims.total(),
        "killed": dict(victims),
        **totals,
        "most_parts_of_an_epoch": most_parts,
        "largest_state_bytes": most_bytes,
        "wrong": wrong,
    }


def make_dataset(folder: Path, samples: int) -> Path:
    """Clips that all differ."""
    made = []
    for number in range(samples):
        frames, size = SHAPES[number % len(SHAPES)]
        clip = write_video(folder / "clip.mp4", (frames,), size=size, first_scene=number).read_bytes()
        made.append(make_sample(f"key{number:04}", clip, frames, size))
    return write(folder / "dataset", made)


def random_run(start: Run, number: int, moments: random.Random) -> Run:
    """The next run of a stream, with other numbers of everything."""
    return Run(
        folder=start.folder,
        number=number,
        dataset=start.dataset,
        seed=start.seed,
        epochs=start.epochs,
        ranks=moments.randint(1, 4),
        microbatches=moments.randint(1, 3),
        regime=moments.choice(("step", "slot", "pack")),
        lookahead=moments.choice((1, 4)),
        threads=moments.randint(1, 2),
        workers=moments.choice((0, 0, 1, 2)),
        cost=moments.choice(COSTS) if moments.random() < 0.2 else None,
    )


def strike(run: Run, moments: random.Random) -> Victim | None:
    """Starts the ranks and kills at a random moment, before the first step or later; None where they were done."""
    processes = start_ranks(run)
    behind = run.saved()["step"] + moments.randint(0, 5)
    wait_for(lambda: over(run, processes) or run.saved()["step"] >= behind)
    time.sleep(moments.uniform(0, 0.25 if moments.random() < 0.3 else 0.03))
    if over(run, processes):
        return None
    victim: Victim = moments.choice(("all", "rank", "worker") if run.workers else ("all", "rank"))
    if victim != "all":
        hit = moments.choice([process for process in processes if process.exitcode is None] or processes)
        children = children_of(hit) if victim == "worker" else []
        if children:
            kill(moments.choice(children))
        else:
            victim = "rank"
            kill_group(hit)
        time.sleep(moments.uniform(0, 0.1))
    for process in processes:
        kill_group(process)
    for process in processes:
        process.join(DEADLINE_S)
    return victim


def undisturbed(run: Run) -> None:
    """Lets a run come to its end; None, for nothing was killed."""
    processes = start_ranks(run)
    wait_for(lambda: over(run, processes))


def start_ranks(run: Run) -> list[BaseProcess]:
    # Forked from a process that has imported what takes long (pyarrow asks for pandas) and has no threads.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["reelweave.loader.stream.video_stream", "numpy.random", "pandas"])
    processes: list[BaseProcess] = [
        context.Process(target=train, args=(run, rank)) for rank in range(run.ranks)
    ]
    for process in processes:
        process.start()
    return processes


def over(run: Run, processes: list[BaseProcess]) -> bool:
    """Whether all ranks came to the end; ends this program when one failed by itself."""
    codes = [process.exitcode for process in processes]
    for rank, code in enumerate(codes):
        if code not in (None, 0):
            for process in processes:
                kill_group(process)
            raise SystemExit(f"{run}: rank {rank} failed with {code}: {run.errors(rank).read_text()}")
    return all(code == 0 for code in codes)


def children_of(process: BaseProcess) -> list[int]:
    """Worker processes of a rank."""
    try:
        return list(map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()))
    except OSError:
        return []


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def kill_group(process: BaseProcess) -> None:
    """Kills a rank and its worker processes."""
    assert process.pid is not None
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.exitcode is None:
        kill(process.pid)  # one that leads no group yet


if __name__ == "__main__":
    sys.exit(main())
