"""The shapes of a training run, measured within its own step and written as the CSV that `reelweave fit` reads."""

import csv
import io
from pathlib import Path

from pipelines.files import write_whole
from pipelines.train_config import TrainRunConfig
from train.parallel.world import join
from train.shapes import MeasuredShape, measure


def bench_shapes(config: TrainRunConfig, out: Path) -> list[MeasuredShape] | None:
    """What each shape took; under torchrun on rank 0, None on the others.

    Args:
        config: of the run; its dataset is not opened.
        out: the CSV; it is replaced when all shapes are measured, and holds those that were when one does not fit.
    """
    rows: list[MeasuredShape] = []
    with join(config.train.device, config.train.lost_after_s) as world:
        try:
            for row in measure(config.train, config.stream.buckets, world):
                rows.append(row)
        finally:
            if world.rank == 0 and rows:
                _write(rows, out)
        return rows if world.rank == 0 else None


def _write(rows: list[MeasuredShape], out: Path) -> None:
    columns = [name for name in MeasuredShape._fields if name != "peak_gib" or rows[0].peak_gib is not None]
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(row._asdict() for row in rows)
    write_whole(out, text.getvalue().encode(), "--out")
