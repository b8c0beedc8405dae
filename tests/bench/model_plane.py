"""Share of the time in which a GPU's model works: all in its own worker, against inputs made ahead by processors.

    python -m tests.bench.model_plane [CLIP] [--clips 160] [--load 0.7] [--store-ms 20]

Ray is told of one GPU and of four times as many processors as there are: of few it gives the inputs one at a time. The
model sleeps: a stand-in of known speed, so slow that inputs take ``--load`` of the processors. The clip is decoded for
it as for a captioning model, again and again, and each result waits ``--store-ms`` for a storage. Printed are the
seconds of all workers by stage, and the seconds in which the model works over those from its first to its last clip.
"""

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reelweave.curate.caption import CaptionConfig
from reelweave.curate.caption.captioner import caption_input
from reelweave.curate.caption.types import Caption
from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.ledger.records import ClipResult, Record
from reelweave.curate.run.runners.pipeline import Stage, run_on_ray
from reelweave.curate.run.stages.clip_stages import ClipStage, ReadClip, clip_identity
from reelweave.curate.run.stages.model_stages import split_for_gpu
from reelweave.curate.source_pass.tasks import ClipTask, CurationTask
from reelweave.loader.base.processors import processors
from reelweave.loader.storage import open_storage
from tests.media import write_video

_CONFIG = CaptionConfig()
_BATCH = 8
_TOLD = 4  # processors that Ray is told of, for each that is there


def decoded(task: ClipTask, read: ReadClip) -> Any:
    """Return the pictures of a clip, as a captioning model takes them."""
    return caption_input(read(task), _CONFIG)


@dataclass(frozen=True)
class StandIn:
    """Model that takes its time and writes when it worked."""

    clip_s: float
    times: str

    def __call__(self, tasks: Sequence[ClipTask], sample: Callable[[ClipTask], Any]) -> list[Caption]:
        """Return a caption for each clip."""
        for task in tasks:
            sample(task)
        began = time.monotonic()
        time.sleep(self.clip_s * len(tasks))
        with Path(self.times).open("a") as file:
            file.write(f"{began} {time.monotonic()}\n")
        return [Caption("A red kite.", "model:stand-in", {}) for _ in tasks]


@dataclass(frozen=True)
class Stored:
    """Storage that answers late."""

    wait_s: float

    def __call__(self, _task: ClipTask, found: Any) -> ClipResult:
        """Return the result."""
        time.sleep(self.wait_s)
        return found  # type: ignore[no-any-return]


def staged(ledger: Ledger, data: bytes, count: int) -> list[CurationTask]:
    """Return tasks of as many clips, staged in the ledger."""
    tasks: list[CurationTask] = []
    for number in range(count):
        record = Record(
            "a.mp4", part=number, source_sha256="0" * 64, key=f"{number:020x}", sha256=f"{number:064x}"
        )
        ledger.write_clip(record.clip_id, data)
        tasks.append(ClipTask(record, todo=("captions",)))
    return tasks


def busy(times: Path) -> tuple[float, float]:
    """Return the seconds in which the model worked, and those from its first to its last clip."""
    spans = [tuple(map(float, line.split())) for line in times.read_text().splitlines()]
    times.unlink()
    return sum(end - begin for begin, end in spans), max(end for _, end in spans) - min(
        begin for begin, _ in spans
    )


def main() -> None:
    """Print one line for each way."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "clip", type=Path, nargs="?", help="MP4 with a constant frame rate; 128 drawn frames of 720p"
    )
    parser.add_argument("--clips", type=int, default=160)
    parser.add_argument("--load", type=float, default=0.7)
    parser.add_argument("--store-ms", type=float, default=20.0)
    parser.add_argument("--way", choices=("alone", "ahead"), help="one way only")
    options = parser.parse_args()

    import ray

    with tempfile.TemporaryDirectory() as folder:
        clip = options.clip or write_video(Path(folder) / "a.mp4", (128,), size=(1280, 720))
        data = clip.read_bytes()
    began = time.process_time()
    for _ in range(5):
        caption_input(data, _CONFIG)
    input_s = (time.process_time() - began) / 5
    clip_s = input_s / processors() / options.load
    ray.init(
        address="local",
        num_cpus=_TOLD * processors(),
        num_gpus=1,
        include_dashboard=False,
        log_to_driver=False,
    )
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(open_storage(Path(folder) / "dataset"))
        tasks, times = staged(ledger, data, options.clips), Path(folder) / "times"
        stage = ClipStage(
            "captions",
            "config",
            ledger,
            StandIn(clip_s, str(times)),
            clip_identity,
            prepare=decoded,
            keep=Stored(options.store_ms / 1000),
        )
        model: Stage[CurationTask] = Stage("captions", stage, _BATCH, keeps=True, gpus=1.0)
        for name, stages in (("alone", [model]), ("ahead", split_for_gpu(stage, model))):
            if options.way not in (None, name):
                continue
            began = time.monotonic()
            spent: Counter[str] = Counter()
            for timed in run_on_ray(tasks, stages):
                spent.update(timed.seconds)
            wall_s = time.monotonic() - began
            worked_s, span_s = busy(times)
            said = {"way": name, "clips": len(tasks), "input_ms": 1000 * input_s, "model_ms": 1000 * clip_s}
            print(json.dumps({**said, "wall_s": wall_s, "seconds": spent, "busy": worked_s / span_s}))


if __name__ == "__main__":
    main()
