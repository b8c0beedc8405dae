"""Driver of a curation: sends what is left to do through the stages until the verdict holds."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from functools import cached_property

from reelweave.curate.caption.types import CAPTIONS
from reelweave.curate.config import RunConfig
from reelweave.curate.dedup.fingerprint import Match
from reelweave.curate.ledger.notes import RUN
from reelweave.curate.ledger.records import SourceSummary, clip_result, source_summary
from reelweave.curate.run.clip_arrays import FingerprintPlace
from reelweave.curate.run.outlook.measuring import measure_tasks
from reelweave.curate.run.runners.await_cluster import await_cluster
from reelweave.curate.run.runners.node_paths import model_paths, output_paths, source_paths
from reelweave.curate.run.runners.passes import Pass, plan_notes, run_pass, total_seconds
from reelweave.curate.run.runners.pipeline import SILENCE_S, Kind, Stage, Startable, startable
from reelweave.curate.run.runners.progress import ClipMeter, Finished, Meter, Progress
from reelweave.curate.run.runners.ray_cluster import cluster_size
from reelweave.curate.run.runners.reservations import Resources
from reelweave.curate.run.stages.clip_stages import ClipStage
from reelweave.curate.run.stages.footage import match_many
from reelweave.curate.run.stages.measure_scores import STAGE as MEASURE
from reelweave.curate.run.stages.measure_scores import MeasureScores
from reelweave.curate.run.stages.model_stages import pipeline_stages
from reelweave.curate.run.state.curation_state import CurationState
from reelweave.curate.run.tables.partitions import Partitions
from reelweave.curate.run.undone import Undone
from reelweave.curate.source_pass.at_work import watching
from reelweave.curate.source_pass.cut_source import STAGE as CUT
from reelweave.curate.source_pass.stage import SourceStage
from reelweave.curate.source_pass.tasks import (
    ClipTask,
    ClosedSource,
    CurationTask,
    DonePart,
    PartStep,
    UndoneSource,
    WaitingSource,
)
from reelweave.loader.errors import RunError, first_line

_DONE: Mapping[PartStep, str] = {"scan": "scanned", "cut": "cut"}
_SHARES: Mapping[PartStep, tuple[float, float]] = {"scan": (0.0, 0.8), "cut": (0.8, 0.2)}
"""Shares of the work on a source in parts, about: that before a step, and that of the step."""


class Driver:
    """Sends sources and clips through all stages and adds the results to the state.

    Args:
        state: The state, which this changes.
        run: Runner, workers and their resources.
        progress: Called as the work goes on.
    """

    def __init__(self, state: CurationState, run: RunConfig, progress: Callable[[Progress], None]) -> None:
        self._state, self._inputs, self._run, self._progress = state, state.inputs, run, progress
        self._passes: list[Pass] = []
        self._undone = Undone()
        self._started: Startable | None = None
        self._cut: Progress | None = None
        self._made: Counter[str] = Counter()  # clips by stage over clips
        self._operation_s: Counter[str] = Counter()  # processor seconds of passes over sources
        self._film_s = 0.0  # length of these sources
        self._meters: list[Meter | ClipMeter] = []
        self._note_fault: tuple[str, ...] = ()

    def decide(self, notes: Sequence[str] = ()) -> Partitions:
        """Return every span in its final state; see `decide_some`.

        Args:
            notes: Sentences for the person who runs this, kept with the duration of the run.
        """
        self._await_cluster()
        began = time.monotonic()
        clips = self.decide_some(self._inputs.sources.keys())
        if seconds := self.seconds():
            note = {"wall_s": time.monotonic() - began, "worker_seconds": seconds, "notes": notes}
            note |= {"plans": plan_notes(self._passes), "seconds_per_clip": self._seconds_per_clip(seconds)}
            note |= {"operation_s": dict(self._operation_s), "film_s": self._film_s}
            try:
                self._inputs.ledger.notes.write(RUN, note)
            except RunError as error:  # only the report reads it
                self._note_fault = (f"the report will not say how long this run took: {first_line(error)}",)
        for fingerprint in self._state.results.closed.fingerprints:
            self._inputs.ledger.entries.pack(CUT, fingerprint, source_summary)
        for stage in self._inputs.stages:
            self._inputs.ledger.entries.pack(stage.name, stage.fingerprint, clip_result)
        return clips

    def decide_some(self, chosen: Set[str]) -> Partitions:
        """Return every span of some sources in its final state, after they went through all stages.

        Duplicates are sought before later stages ask their models, so that those receive kept clips only.
        Where a later stage fails a clip that others were dropped for, duplicates are sought once more without it.
        The result follows from sources and configuration alone, whatever earlier runs asked.

        Args:
            chosen: URIs of the sources.

        Raises:
            MachineError: a fault of the machine left sources undone; the others are done.
        """
        verdict, todo = self._state.verdict, self._state.todo
        match = self._match if self._run.runner == "ray" else None
        self._do_sources(chosen)
        failed: set[tuple[int, int]] = set()
        while True:
            clips = verdict.decide(chosen, failed, match)
            if todo.forget_lost(clips):
                self._do_sources(chosen)
                continue
            self._do_later(clips)
            finished = verdict.finish(clips)
            if finished.is_complete:
                return finished.clips
            failed |= finished.failed

    def kind(self) -> Kind:
        """Return the runner of this run: Ray is started when first asked for, and replaced if it does not start."""
        if self._started is None:
            self._started = startable(self._run.runner)
        return self._started.kind

    def notes(self) -> tuple[str, ...]:
        """Return sentences for the person who runs this."""
        start_notes = (self._started.note,) if self._started and self._started.note else ()
        return (*start_notes, *[meter.fault for meter in self._meters if meter.fault][-1:], *self._note_fault)

    def seconds(self) -> dict[str, float]:
        """Return the seconds that all workers of this run spent, by stage."""
        return total_seconds(self._passes)

    def _add_cost(self, summary: SourceSummary) -> None:
        if summary.operation_s:
            self._operation_s.update(summary.operation_s)
            self._film_s += max(record.end_s or 0.0 for record in summary.records)

    def gpu_seconds(self) -> float:
        """Return the seconds that stages over clips held a GPU."""
        shares = {stage.name: stage.gpus for stage in self._clip_pipeline(self._inputs.stages)}
        return sum(spent * shares.get(name, 0.0) for name, spent in self.seconds().items() if name != CUT)

    def _seconds_per_clip(self, seconds: Mapping[str, float]) -> dict[str, float]:
        """Return the seconds of a clip in each stage over clips, as this run or else an earlier one measured them."""
        before = (self._inputs.ledger.notes.read(RUN) or {}).get("seconds_per_clip", {})
        return {
            **before,
            **{name: seconds[name] / count for name, count in self._made.items() if name in seconds},
        }

    def _await_cluster(self) -> None:
        run = self._run
        required = Resources(run.wait_for_cpus, run.wait_for_gpus)
        if run.runner != "ray" or required == Resources(0):
            return

        total = run.wait_for_cpus + run.wait_for_gpus

        def waiting(available: Resources) -> None:
            done = int(min(available.cpus, required.cpus) + min(available.gpus, required.gpus))
            self._progress(Progress("cluster", done, total, done, total))

        await_cluster(required, run.wait_s, waiting)

    def _do_sources(self, chosen: Set[str]) -> None:
        """Send the chosen sources, and their clips that are still wanted, through the stages beside cutting."""
        self._measure(chosen)
        state = self._state
        closed = state.results.closed
        unclosed = closed.unclosed_uris()
        before = Finished(
            lambda uri: uri not in unclosed, closed.pixel_s, closed.states(), closed.failed_whole
        )
        meter = Meter(self._inputs.sources.values(), before, self._progress, self._inputs.ledger)
        self._meters.append(meter)
        meter.show()

        waiting: list[WaitingSource] = []
        remaining: Counter[tuple[str, PartStep]] = Counter()

        def take(task: CurationTask) -> None:
            if isinstance(task, ClosedSource | WaitingSource | DonePart | UndoneSource):
                meter.retries += task.retries
            if isinstance(task, UndoneSource):
                self._undone.add(task.uri, task.reason)
            elif isinstance(task, ClosedSource):
                self._undone.note_success()
                state.todo.close_source(task.uri, task.summary)
                meter.mark_done(task.uri, task.summary)
                self._add_cost(task.summary)
            elif isinstance(task, WaitingSource):
                waiting.append(task)
            elif isinstance(task, DonePart):
                step, part, uri = task.task.step, task.task.part, task.task.source.uri
                remaining[uri, step] -= 1
                ended = part.count - remaining[uri, step]
                message = f"{ended} of {part.count} parts {_DONE[step]}"
                before, share = _SHARES[step]
                message = f"{message}, but it stays whole: {task.fault}" if task.fault else message
                meter.part_done(uri, message, 0.0 if task.fault else before + share * ended / part.count)
            elif isinstance(task, ClipTask):
                self._take_clip(task)

        with watching(self._inputs.ledger, meter.show_at_work):
            if tasks := state.todo.tasks(chosen):
                kind = self.kind()
                stages = [self._cut_stage(), *self._clip_pipeline(self._inputs.beside)]
                self._passes.append(run_pass("sources", tasks, stages, kind, take))
            while waiting:
                # Parts of all long sources side by side; then each source says what comes next.
                parts: list[CurationTask] = [part for source in waiting for part in source.parts]
                remaining.update((part.source.uri, part.step) for source in waiting for part in source.parts)
                behind = [source.task for source in waiting]
                waiting.clear()
                self._passes.append(run_pass("parts", parts, stages[:1], kind, take))
                tasks = [task for task in behind if task.source.uri not in self._undone]
                self._passes.append(run_pass("sources", tasks, stages, kind, take))
        SourceStage.close()
        self._cut = meter.last
        self._undone.refuse(len(chosen))
        if missing := sorted(uri for uri in closed.unclosed_uris() if uri in chosen):
            raise RunError(
                f"{missing[0]} and {len(missing) - 1} other sources gave no result; run the same command again"
            )

    def _measure(self, chosen: Set[str]) -> None:
        """Measure the scores that clips lack and that thresholds ask for; no source is read."""
        count, tasks = measure_tasks(self._state, chosen)
        if not count:
            return
        meter = ClipMeter(count, self._progress, self._inputs.ledger, phase=MEASURE)
        self._meters.append(meter)

        def take(task: CurationTask) -> None:
            if isinstance(task, UndoneSource):
                self._undone.add(task.uri, task.reason)
            elif isinstance(task, ClosedSource):
                self._state.todo.close_source(task.uri, task.summary, task.fingerprint)
                meter.mark_done(task.uri)

        measure = MeasureScores(self._inputs.cut.config.scores, self._inputs.ledger)
        curation_tasks: Iterable[CurationTask] = tasks
        stages: list[Stage[CurationTask]] = [Stage(MEASURE, measure, needs=self._output_paths)]
        self._passes.append(run_pass("sources", curation_tasks, stages, self.kind(), take))
        self._undone.refuse(len(chosen))

    def _match(
        self, pairs: Sequence[tuple[FingerprintPlace, FingerprintPlace]], min_overlap: float
    ) -> list[Match | None]:
        """Return the agreement of the footage of many pairs of clips."""
        matches, cost = match_many(pairs, min_overlap, self._inputs.ledger, self.kind())
        self._passes.append(cost)
        return matches

    def _do_later(self, clips: Partitions) -> None:
        """Send all kept clips through the stages after deduplication."""
        count, tasks = self._state.todo.later_tasks(clips)
        if not count:
            return
        meter = ClipMeter(count, self._progress, self._inputs.ledger, self._cut)
        self._meters.append(meter)

        def take(task: CurationTask) -> None:
            if isinstance(task, ClipTask):
                self._take_clip(task)
                meter.mark_done(task.record.source)

        curation_tasks: Iterable[CurationTask] = tasks
        stages = self._clip_pipeline(self._inputs.later)
        self._passes.append(run_pass("clips", curation_tasks, stages, self.kind(), take))
        self._undone.refuse(len(self._inputs.sources))

    def _take_clip(self, task: ClipTask) -> None:
        """Add the results of a clip, or note the fault of the machine that keeps it from being done."""
        self._state.results.add(task)
        self._made.update(task.made)
        if task.undone:
            self._undone.add(task.record.source, task.undone)

    def _cut_stage(self) -> Stage[CurationTask]:
        inputs, run = self._inputs, self._run
        return Stage(
            CUT,
            SourceStage(inputs.cut, inputs.judge, run.isolate, run.attempts, run.max_source_s, run.part_s),
            gpus=run.shots_gpus if inputs.cut.config.shots.may_use_gpu and self._gpus() else 0.0,
            memory_mb=run.worker_memory_mb,
            max_silence_s=run.attempts * run.max_source_s + SILENCE_S,
            needs=(*self._output_paths, *self._input_paths),
        )

    def _clip_pipeline(self, stages: Sequence[ClipStage]) -> list[Stage[CurationTask]]:
        asked = [(stage, self._inputs.model_stages[stage.name]) for stage in stages]
        planned = pipeline_stages(asked, self._gpus(), self._run.worker_memory_mb)
        return [replace(stage, needs=self._needs_of(stage)) for stage in planned]

    def _needs_of(self, stage: Stage[CurationTask]) -> tuple[str, ...]:
        """Return the local paths that nodes must see for a stage over clips; captions may lie beside sources."""
        name = stage.name.removesuffix(".input")
        inputs = self._input_paths if name == CAPTIONS else ()
        asked = self._inputs.model_stages.get(stage.name)
        models = model_paths(asked.models.values()) if asked is not None and stage.keeps else ()
        return (*self._output_paths, *inputs, *models)

    @cached_property
    def _output_paths(self) -> tuple[str, ...]:
        return output_paths(self._inputs.ledger.storage)

    @cached_property
    def _input_paths(self) -> tuple[str, ...]:
        return source_paths(self._inputs.sources.keys())

    def _gpus(self) -> float:
        return cluster_size().gpus if self.kind() == "ray" else 0.0
