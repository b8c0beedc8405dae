"""Log of a run: records as lines of JSON, which readers show on the console, in TensorBoard and elsewhere."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Self

from reelweave.loader.batch import BadSample
from reelweave.train.config.log import LogConfig
from reelweave.train.loop.logs.console import ConsoleReader
from reelweave.train.loop.logs.metrics import RunSummary, StepMetrics
from reelweave.train.loop.logs.rank_records import RankRecord, limit_size
from reelweave.train.loop.logs.readers import RecordReader
from reelweave.train.loop.logs.record import BAD_SAMPLES, Record
from reelweave.train.loop.logs.records import forget_after, read_metrics
from reelweave.train.loop.logs.run_id import run_id


class RunLog:
    """Writer of a run's records in its folder, from ``start_step`` on; readers get each one behind its line.

    Lines of later steps, left by a run that was killed after its last checkpoint, are removed, so that no step
    appears twice.

    Args:
        out: existing folder of the run.
        config: configuration of the log.
        start_step: number of finished steps.
        total_steps: number of steps of the whole run.
        writes: True on the one rank that writes; the others only update the summary.
        readers: readers beside the console, closed with the log.

    Attributes:
        summary: summary of the whole run, including steps before ``start_step``.
    """

    def __init__(
        self,
        out: Path,
        config: LogConfig,
        start_step: int,
        total_steps: int,
        writes: bool,
        readers: Sequence[RecordReader] = (),
    ) -> None:
        self.summary = RunSummary()
        self._out = out
        self._writes = writes
        for metrics in read_metrics(out, start_step):
            self.summary.add(metrics)
        if not writes:
            return
        self._console = ConsoleReader(config.every_steps, start_step, total_steps)
        self._readers = (*readers, self._console)
        forget_after(out, start_step)
        self._run = run_id(out)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writes:
            for reader in self._readers:
                reader.close(failed=kind is not None)

    def say(self, message: str) -> None:
        """Print one line on the console."""
        if self._writes:
            self._console.say(message)

    def bad_samples(self, samples: Sequence[BadSample]) -> None:
        """Append replaced samples to ``bad_samples.jsonl``; on every rank."""
        if samples:
            with (self._out / BAD_SAMPLES).open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(asdict(sample)) + "\n" for sample in samples)

    def write(self, record: Record) -> None:
        """Append a record to its file, and hand it to the readers."""
        if isinstance(record, StepMetrics):
            self.summary.add(record)
        if not self._writes:
            return
        # Opened for each line: 11 us of processor time, and steps take a tenth of a second or more. A file held open
        # would go on silently behind what others make of its name: a deleted folder, a file that was moved away, or
        # one that `limit_size` replaced. Readers on other machines see a line of a network folder at its close.
        path = self._out / record.FILE
        with path.open("a", encoding="utf-8") as file:
            file.write(record.line(self._run))
        if isinstance(record, RankRecord):
            limit_size(path)
        for reader in self._readers:
            reader.read(record)
