"""Trains in rank processes that are killed at random moments, and compares the end with an undisturbed run's.

    python -m tests.bench.train_kills --kills 100 [--ranks 2] [--steps 60] [--seed 0]

A run trains a small model, with a checkpoint in the background every other step, from its first checkpoint to its last.
SIGKILL strikes one rank at a moment drawn over all of a run's time: while it starts, loads, trains, writes or removes
checkpoints. What the others say is kept; those that wait for a rank that never came are ended as a launcher would.
Then the same call goes on, until it comes to its end. All is well when weights, optimizer and losses are, bit by bit,
those of the undisturbed run.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from reelweave.loader.storage import open_storage
from reelweave.train.checkpoint.folder import latest
from tests.train.loop import worlds
from tests.train.ranks import Ended, Ranks
from tests.train.saved import losses, tensors

GRACE_S = 4.0


def main(arguments: list[str] | None = None) -> int:
    """Prints the result as JSON; 1 when anything was wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--ranks", type=int, default=2, help="1, 2 or 4")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="reelweave-kills-") as folder, Ranks() as ranks:
        result = prove(Path(folder), ranks, options)
    print(json.dumps({**result, "wall_s": round(time.monotonic() - began)}, indent=1))
    return 0 if not result["wrong"] else 1


def prove(folder: Path, ranks: Ranks, options: argparse.Namespace) -> dict[str, Any]:
    """Trains one run after the other to its end until there were enough kills; ``wrong`` names every deviation."""
    moments = random.Random(options.seed)
    whole = folder / "undisturbed"
    ranks.run(
        worlds.killed_at, options.ranks, str(whole), options.steps
    )  # once, for what a first time is slow at
    began = time.monotonic()
    undisturbed = ranks.run(worlds.killed_at, options.ranks, str(folder / "timed"), options.steps)
    lasts_s = time.monotonic() - began
    assert undisturbed.codes == [0] * options.ranks, undisturbed.errors
    counts: Counter[str] = Counter()
    wrong = []
    while counts["kills"] < options.kills:
        out = folder / f"run {counts['runs']}"
        while True:
            victim, moment = moments.randrange(options.ranks), moments.uniform(0, lasts_s)
            aimed = (str(out), options.steps, victim, moment) if counts["kills"] < options.kills else ()
            ended = ranks.run(
                worlds.killed_at, options.ranks, *(aimed or (str(out), options.steps)), grace_s=GRACE_S
            )
            if ended.codes == [0] * options.ranks:
                break
            counts.update(kills=1, **_outcome(ended, victim, latest(open_storage(out / "checkpoints"))))
            if ended.codes[victim] != -9:
                wrong.append(f"{out.name}: {ended.codes} {ended.errors}")
                break
        counts["runs"] += 1
        wrong += [f"{out.name}: {name}" for name in _differences(out, whole)]
    return {
        "ranks": options.ranks,
        "steps": options.steps,
        "run_s": round(lasts_s, 2),
        **counts,
        "wrong": wrong,
    }


def _outcome(ended: Ended, victim: int, step: int | None) -> dict[str, int]:
    """What the other ranks did, and whether there was a checkpoint to go on from."""
    others = [rank for rank in range(len(ended.codes)) if rank != victim]
    named = sum(f"rank {victim} " in ended.errors[rank] for rank in others)
    store = sum("rank 0 or its torchrun" in ended.errors[rank] for rank in others) if victim == 0 else 0
    waited = sum(ended.codes[rank] == -9 for rank in others)
    return {
        "survivors": len(others),
        "named_the_victim": named,
        "named_the_lost_store": store,
        "waited_for_it_to_come": waited,
        "went_on_from_a_checkpoint": int(step is not None),
    }


def _differences(out: Path, whole: Path) -> list[str]:
    found = [] if losses(out) == losses(whole) else ["losses"]
    for group in ("model", "optimizer"):
        own, expected = tensors(out, group), tensors(whole, group)
        found += [f"{group} {name}" for name in expected if not torch.equal(own[name], expected[name])]
    return found


if __name__ == "__main__":
    sys.exit(main())
