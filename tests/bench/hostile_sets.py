"""Damages and forges small datasets and checkpoints, and runs every command that reads them.

    python -m tests.bench.hostile_sets --datasets 1500 --checkpoints 1500 [--seed 1]

A case changes one file of a fresh copy: bytes flipped, cut off, emptied, added, or a pipe, a folder, a link to itself
or nothing in its place. A third of the datasets' cases are forged instead: tables, plan index, tars or the manifest are
changed as somebody would who knows the format, and the manifest's checksums are made right again. The commands then run
in a process of their own. A case is survived when each of them ends in a result or in words; it is lost by any other
exception, a process that dies, more than 10 s of processor time, a minute of waiting, 1 GiB of memory beyond what it
began with, or a file made outside of the copy. Prints counts as JSON, and every lost case with its seed.
"""

import argparse
import contextlib
import io
import json
import os
import random
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from tests.hostile import KINDS, damage, exchange, files, rewrite

CPU_S, WALL_S, MEMORY = 10.0, 60.0, 1 << 30
VALUES: tuple[Any, ...] = (
    None,
    -1,
    0,
    2**40,
    2**63,
    2**70,
    1e308,
    "",
    "../x",
    "/etc/passwd",
    "\x1b[31m",
    [],
    {},
    True,
    [[]],
    "9",
)

Command = Callable[[Path], object]


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints what was tried, survived and lost; 1 when a case was lost."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--datasets", type=int, default=1500)
    parser.add_argument("--checkpoints", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    result: dict[str, Any] = {}
    torch.set_num_threads(1)  # threads that a forked process has not would be waited for
    with tempfile.TemporaryDirectory(prefix="reelweave-hostile-") as name:
        for what, count, make, commands, change in (
            ("dataset", options.datasets, make_dataset, DATASET, change_dataset),
            ("checkpoint", options.checkpoints, make_run, CHECKPOINT, change_checkpoint),
        ):
            place = Path(name) / what
            place.mkdir()
            if count:
                in_child(lambda place=place, make=make: make(place / "whole"), 300)
                (place / "canary").write_text("stays")
                result[what] = tried(place, range(options.seed, options.seed + count), commands, change)
    print(json.dumps(result, indent=1))
    return 1 if any(one["lost"] for one in result.values()) else 0


def tried(
    place: Path, seeds: range, commands: dict[str, Command], change: Callable[[Path, random.Random], str]
) -> dict[str, Any]:
    """Counts by kind of change, and what each lost case was."""
    for command in commands.values():  # imports, once for all
        command(shutil.copytree(place / "whole", place / "case"))
        shutil.rmtree(place / "case")
    counts: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    lost = []
    for seed in seeds:
        folder = Path(shutil.copytree(place / "whole", place / "case"))
        kind = change(folder, random.Random(seed))
        report = in_child(lambda folder=folder: attempt(folder, commands), WALL_S)
        if sorted(path.name for path in place.iterdir()) != ["canary", "case", "whole"]:
            report = {**report, "lost": "a file outside"}
        counts[kind] += 1
        outcomes.update(report.get("outcomes", ()))
        if said := report.get("lost"):
            lost.append({"seed": seed, "kind": kind, "said": said})
            print(json.dumps(lost[-1]), file=sys.stderr, flush=True)
        shutil.rmtree(folder)
    return {
        "tried": sum(counts.values()),
        "commands": sum(outcomes.values()),
        "survived": sum(counts.values()) - len(lost),
        "lost": lost,
        "kinds": dict(sorted(counts.items())),
        "outcomes": dict(sorted(outcomes.items())),
    }


def attempt(folder: Path, commands: dict[str, Command]) -> dict[str, Any]:
    """Run commands one after the other: how each ended, and the first thing that counts as lost."""
    from reelweave.loader.errors import RunError, UsageError

    outcomes, lost = [], ""
    for name, command in commands.items():
        began, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                status = command(folder)
            outcomes.append(f"{name}: {'refused' if status else 'a result'}")
        except (RunError, UsageError):
            outcomes.append(f"{name}: refused")
        except Exception:  # noqa: BLE001 - what this script is for
            lost = lost or f"{name}: {traceback.format_exc()[-1500:]}"
        if (used := time.process_time() - began) > CPU_S:
            lost = lost or f"{name}: {used:.0f} s"
        if (grown := 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)) > MEMORY:
            lost = lost or f"{name}: {grown} bytes"
    return {"outcomes": outcomes, "lost": lost}


def in_child(act: Callable[[], Any], limit_s: float) -> dict[str, Any]:
    """What a function returns in a forked process, or how that ended."""
    reader, writer = os.pipe()
    if not (pid := os.fork()):
        status = 1
        try:
            os.close(reader)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            with os.fdopen(writer, "w") as file:
                json.dump(act() or {}, file)
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    text, deadline = b"", time.monotonic() + limit_s
    while (left := deadline - time.monotonic()) > 0 and select.select([reader], [], [], left)[0]:
        if not (block := os.read(reader, 1 << 20)):
            break
        text += block
    else:
        os.kill(pid, signal.SIGKILL)
    os.close(reader)
    _, status = os.waitpid(pid, 0)
    if status:
        return {
            "lost": f"waited {limit_s:.0f} s" if status == signal.SIGKILL else f"died with status {status}"
        }
    return dict(json.loads(text))


def make_dataset(folder: Path) -> None:
    """Two films, curated as a person would, with embeddings and a report."""
    from reelweave.curate.config import CurateConfig
    from reelweave.curate.run.curate import curate
    from reelweave.pipelines.cli import main as reelweave
    from tests.media import write_video

    raw = folder.with_name("raw")
    raw.mkdir()
    write_video(raw / "a.mp4", (40,), size=(320, 192))
    write_video(raw / "b.mp4", (40,), size=(192, 320), first_scene=5)
    (raw / "a.txt").write_text("a red kite")
    settings = {
        "run": {"runner": "sequential"},
        "spans": {"min_clip_s": 1},
        "embed": {"backend": "perceptual"},
    }
    curate([str(raw)], str(folder), CurateConfig.model_validate(settings))
    with contextlib.redirect_stdout(io.StringIO()):
        reelweave(["report", str(folder)])
    shutil.rmtree(raw)


def make_run(folder: Path) -> None:
    """A tiny model trained for eight steps, with two checkpoints."""
    from reelweave.train.loop.trainer import Trainer
    from tests.train.clips import ClipStream, tiny_config

    Trainer(tiny_config(8), ClipStream(), folder).run()


def change_dataset(folder: Path, chance: random.Random) -> str:
    """Damage one file, or forge what the dataset says."""
    kind = chance.choice((*KINDS, "forged bytes", "forged manifest", "forged table", "forged plan"))
    path = chance.choice(files(folder))
    if kind in KINDS:
        damage(path, kind, chance)
    elif kind == "forged bytes":
        names = [str(one.relative_to(folder)) for one in files(folder)]
        name = chance.choice(
            [one for one in names if one.endswith((".parquet", ".arrow", ".tar", ".idx", ".sqlite"))]
        )
        damage(folder / name, chance.choice(("flip", "cut", "empty", "grow")), chance)
        exchange(folder, name, (folder / name).read_bytes())
    elif kind == "forged manifest":
        rewrite(folder, lambda body: forge(body, chance))
    elif kind == "forged table":
        forge_table(folder, chance)
    else:
        forge_plan(folder, chance)
    return kind


def forge(body: Any, chance: random.Random) -> None:
    """Replace, remove or double one value anywhere in JSON."""
    while True:
        key = chance.choice(list(body)) if isinstance(body, dict) else chance.randrange(len(body))
        if isinstance(body[key], dict | list) and body[key] and chance.random() < 0.8:
            body = body[key]
            continue
        how = chance.random()
        if how < 0.15:
            del body[key]
        elif how < 0.25 and isinstance(body, list):
            body.append(body[key])
        else:
            body[key] = chance.choice(VALUES)
        return


def forge_table(folder: Path, chance: random.Random) -> None:
    """Put other values of the right type into a row of a table, or leave rows out."""
    from reelweave.loader.dataset.schema import TABLES
    from reelweave.loader.dataset.tables.parquet import from_parquet, to_parquet, to_rows, to_table

    name = chance.choice(("index", "accounting", "scores"))
    rows = to_rows(from_parquet((folder / f"{name}.parquet").read_bytes()))
    row = chance.choice(rows)
    column = chance.choice(list(row))
    value = row[column]
    if isinstance(value, float):
        row[column] = chance.choice((float("nan"), float("inf"), -1.0, 1e308, 0.0))
    elif isinstance(value, int):
        row[column] = chance.choice(
            (-1, 0, 2**31 - 1, -(2**31)) if column not in ("offset", "size") else (-1, 2**40, 2**63 - 1, 0)
        )
    elif isinstance(value, str):
        row[column] = chance.choice(("", "../../x", "x" * 5000, "\x1b[2J", "a/b", "0"))
    elif isinstance(value, list) and value:
        chance.choice(value).update(
            chance.choice(({"offset": -1}, {"size": 2**50}, {"suffix": "zip"}, {"size": 0}))
        )
    elif isinstance(value, dict) and value:
        value[next(iter(value))] = chance.choice((float("nan"), 1e308)) if column == "scores" else "x"
    else:
        rows.pop(chance.randrange(len(rows)))
    exchange(folder, f"{name}.parquet", to_parquet(to_table(rows, TABLES[name])))


def forge_plan(folder: Path, chance: random.Random) -> None:
    """Put another number into the plan index."""
    import numpy as np

    from reelweave.loader.dataset import open_dataset
    from reelweave.loader.dataset.plan_index import PlanIndex, from_arrow, to_arrow

    samples = open_dataset(folder).manifest.totals.samples
    found = from_arrow((folder / "plan.arrow").read_bytes(), "plan.arrow", samples)
    columns: dict[str, Any] = {name: values.copy() for name, values in found.columns().items()}
    values = columns[chance.choice(list(columns))]
    extremes = (
        (np.nan, np.inf, 0)
        if values.dtype.kind == "f"
        else (np.iinfo(values.dtype).max, np.iinfo(values.dtype).min, 0, 1)
    )
    values[chance.randrange(len(values))] = chance.choice(extremes)
    exchange(folder, "plan.arrow", to_arrow(PlanIndex(**columns)))


def change_checkpoint(folder: Path, chance: random.Random) -> str:
    """Damage one file of a checkpoint."""
    kind = chance.choice((*KINDS, "flip", "flip", "cut"))
    damage(chance.choice(files(folder / "checkpoints")), kind, chance)
    return kind


def _reelweave(*words: str) -> Command:
    def run(folder: Path) -> int:
        from reelweave.pipelines.cli import main as reelweave

        return reelweave([word.replace("FOLDER", str(folder)) for word in words])

    return run


def _stream(folder: Path) -> None:
    from reelweave.loader.dataset import open_dataset
    from reelweave.loader.stream.video_stream import VideoStream
    from tests.loader.stream_clips import config

    stream = VideoStream(open_dataset(folder), config(epochs=1))
    for microbatch in stream:
        assert microbatch.keys


def _read_all(folder: Path) -> None:
    from reelweave.loader.dataset import open_dataset

    dataset = open_dataset(folder)
    dataset.shards()
    for row in range(len(dataset.plan_index)):
        dataset.sample(row)
        dataset.read_media(row)


def _search(folder: Path) -> int:
    from reelweave.loader.dataset import open_dataset
    from reelweave.pipelines.cli import main as reelweave

    return reelweave(["search", str(folder), "--like", open_dataset(folder).key(0)])


def _remove(folder: Path) -> int:
    from reelweave.loader.dataset import open_dataset
    from reelweave.pipelines.cli import main as reelweave

    return reelweave(["remove", str(folder), "--key", open_dataset(folder).key(0)])


def _resume(folder: Path) -> None:
    from reelweave.train.loop.trainer import Trainer
    from tests.train.clips import ClipStream, tiny_config

    Trainer(tiny_config(8), ClipStream(), folder).run()


DATASET: dict[str, Command] = {
    "verify": _reelweave("verify", "FOLDER"),
    "report": _reelweave("report", "FOLDER"),
    "plan": _reelweave("plan", "FOLDER", "--world-size", "1", "--microbatches", "1"),
    "read": _read_all,
    "search": _search,
    "stream": _stream,
    "remove": _remove,
}
CHECKPOINT: dict[str, Command] = {
    "verify": _reelweave("verify", "FOLDER"),
    "export": _reelweave("export", "FOLDER", "--out", "FOLDER/weights.safetensors"),
    "inspect": _reelweave("state", "inspect", "FOLDER/checkpoints/step-000008"),
    "sample": _reelweave(
        "sample", "--checkpoint", "FOLDER", "--prompt", "x", "--size", "16x16", "--frames", "5", "--steps", "1",
        "--out", "FOLDER/sample.mp4",
    ),
    "resume": _resume,
}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
