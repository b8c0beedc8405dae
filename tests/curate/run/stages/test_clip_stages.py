"""A stage over clips does the same in one call and in the three steps that keep a GPU busy."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from reelweave.curate.caption.types import Caption
from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.ledger.records import ClipResult, Record, clip_result
from reelweave.curate.models.clip_frames import Fault
from reelweave.curate.run.runners.pipeline import Stage, run_on_ray, run_sequentially
from reelweave.curate.run.stages.clip_stages import ClipStage, ReadClip, clip_identity
from reelweave.curate.run.stages.model_stages import split_for_gpu
from reelweave.curate.source_pass.tasks import ClipTask, CurationTask
from reelweave.loader.storage import open_storage
from tests.thorough import but

CLIPS = 6


@dataclass(frozen=True)
class Input:
    pid: int
    text: str


def prepare(task: ClipTask, read: ReadClip) -> Input:
    return Input(os.getpid(), read(task).decode())


def answer(tasks: Sequence[ClipTask], prepared: Callable[[ClipTask], Input]) -> list[Caption | Fault]:
    inputs = [prepared(task) for task in tasks]
    return [
        Fault("too long")
        if one.text == "clip 3"
        else Caption(one.text, f"{one.pid} {os.getpid()}", {"n": "1"})
        for one in inputs
    ]


def keep(_task: ClipTask, found: Caption | Fault) -> ClipResult:
    return found if isinstance(found, Fault) else Caption(found.text.upper(), found.source, found.provenance)


def staged(folder: Path) -> tuple[ClipStage, list[CurationTask]]:
    ledger = Ledger(open_storage(folder))
    tasks: list[CurationTask] = []
    for number in range(CLIPS):
        record = Record(
            "a.mp4", part=number, source_sha256="0" * 64, key=f"{number:020x}", sha256=f"{number:064x}"
        )
        ledger.blobs.write_clip(record.clip_id, f"clip {number}".encode())
        tasks.append(ClipTask(record, todo=("captions", "text") if number else ()))
    stage = ClipStage(
        "captions", "config", ledger, answer, clip_identity, goes_on, prepare=prepare, keep=keep
    )
    return stage, tasks


def goes_on(task: ClipTask) -> bool:
    return task.record.part != 4


def found(tasks: Sequence[CurationTask]) -> list[tuple[int, tuple[str, ...], str]]:
    """Return what a task knows, without the processes that made it."""
    clips = [task for task in tasks if isinstance(task, ClipTask)]
    assert all(task.input is task.answer is None for task in clips)
    results = [(clip.record.part, clip.todo, clip.found.get("captions")) for clip in clips]
    return sorted(
        (part, todo, one.text if isinstance(one, Caption) else str(one)) for part, todo, one in results
    )


@pytest.mark.parametrize("runner", but([run_sequentially], [run_sequentially, run_on_ray], ()))
def test_three_steps_leave_what_one_leaves(
    runner: Callable[..., object], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if runner is run_on_ray:
        request.getfixturevalue("ray_local")
    whole, tasks = staged(tmp_path / "whole")
    expected = whole(tasks)
    assert [one[2] for one in found(expected)][1:5] == [
        "CLIP 1",
        "CLIP 2",
        "Fault(reason='too long')",
        "CLIP 4",
    ]
    split, tasks = staged(tmp_path / "split")
    stages = split_for_gpu(split, Stage("captions", split, 4, keeps=True, cpus=0.5))
    done = [timed.task for timed in runner(tasks, stages)]
    assert found(done) == found(expected)

    entries = [stage.ledger.entries.read("captions", "config", clip_result) for stage in (whole, split)]
    assert entries[0].keys() == entries[1].keys()
    assert len(entries[1]) == CLIPS - 1
    pids = [one.source.split() for one in entries[1].values() if isinstance(one, Caption)]
    if runner is run_on_ray:
        assert len({model for _, model in pids}) == 1
        assert all(model != made for made, model in pids)
