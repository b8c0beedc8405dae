"""Profiler: traces and GPU memory snapshots of selected steps and ranks."""

from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from torch.profiler import ProfilerActivity

from reelweave.loader.base.whole_file import whole_file
from reelweave.loader.errors import UsageError
from reelweave.train.config.log import LogConfig, MemorySnapshotConfig, ProfileConfig, StepWindow
from reelweave.train.distributed.world import World


class Profiler:
    """Profiles that `reelweave.train.config.log` requests on this rank; files are written atomically.

    A run that begins or ends within the window leaves no file, except a snapshot on running out of GPU memory.

    Args:
        out: folder of the run.
        config: configuration of the log.
        world: all ranks.
        start_step: number of finished steps.

    Raises:
        UsageError: a rank does not exist, or a GPU is needed.
    """

    def __init__(self, out: Path, config: LogConfig, world: World, start_step: int) -> None:
        self._recordings: list[_Recording] = []
        profile, snapshot = config.profile, config.memory_snapshot
        if snapshot and world.device.type != "cuda":
            raise UsageError("log.memory_snapshot needs a GPU, and this run is on a CPU; set it to null")
        if profile and _records("profile", profile, world, start_step + 1):
            self._recordings.append(_Profile(out, profile, world))
        if snapshot and _records("memory_snapshot", snapshot, world, start_step):
            self._recordings.append(_MemorySnapshot(out, snapshot, world))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for recording in self._recordings:
            recording.abandon(error)

    def before(self, step: int) -> None:
        """Start recordings due before a step."""
        for recording in self._recordings:
            recording.before(step)

    def behind(self, step: int) -> None:
        """Write recordings due after a step."""
        for recording in self._recordings:
            recording.behind(step)


def _records(name: str, window: StepWindow, world: World, before: int) -> bool:
    """Return True if this rank records; its window must begin after step ``before``."""
    if max(window.ranks) >= world.size:
        raise UsageError(
            f"log.{name}.ranks has {max(window.ranks)}, and this run's ranks are 0 to {world.size - 1}"
        )
    return world.rank in window.ranks and before < window.from_step


class _Recording(ABC):
    """Recording of one kind, from step ``first`` on."""

    def __init__(self, path: Path, window: StepWindow, device: torch.device, first: int) -> None:
        self._path, self._device = path, device
        self._first, self._last = first, window.last_step
        self._begun = False

    def before(self, step: int) -> None:
        if step == self._first:
            self._begin()
            self._begun = True

    def behind(self, step: int) -> None:
        if self._begun and step == self._last:
            self._write_whole()
            self._stop()

    def abandon(self, error: BaseException | None) -> None:  # noqa: ARG002 - for those that look at it
        if self._begun:
            self._stop()

    def _write_whole(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(self._path) as aside:
            self._write(aside)

    def _stop(self) -> None:
        self._begun = False
        self._end()

    @abstractmethod
    def _begin(self) -> None: ...

    @abstractmethod
    def _write(self, path: Path) -> None: ...

    @abstractmethod
    def _end(self) -> None: ...


class _Profile(_Recording):
    """Trace for Perfetto or chrome://tracing; the step before its first one is the warm-up."""

    def __init__(self, out: Path, config: ProfileConfig, world: World) -> None:
        path = out / "profiles" / _name(config, world, "json.gz")
        super().__init__(path, config, world.device, config.from_step - 1)
        gpu = [ProfilerActivity.CUDA] if world.device.type == "cuda" else []
        self._profiler = torch.profiler.profile(
            activities=[ProfilerActivity.CPU, *gpu],
            schedule=torch.profiler.schedule(wait=0, warmup=1, active=config.steps, repeat=1),
            record_shapes=config.shapes,
            with_stack=config.stacks,
            profile_memory=config.memory,
        )

    def behind(self, step: int) -> None:
        if self._begun:
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)  # include the step's last kernels
            self._profiler.step()
        super().behind(step)

    def _begin(self) -> None:
        self._profiler.start()

    def _write(self, path: Path) -> None:
        self._profiler.export_chrome_trace(str(path))

    def _end(self) -> None:
        self._profiler.stop()


class _MemorySnapshot(_Recording):
    """Allocator history of torch, for the viewer at pytorch.org/memory_viz.

    torch writes it as a pickle. This package never reads it; open only files that you trust.
    """

    def __init__(self, out: Path, config: MemorySnapshotConfig, world: World) -> None:
        path = out / "memory" / _name(config, world, "pickle")
        super().__init__(path, config, world.device, config.from_step)
        self._max_events = config.max_events

    def abandon(self, error: BaseException | None) -> None:
        if self._begun and isinstance(error, torch.OutOfMemoryError):
            self._write_whole()
        super().abandon(error)

    def _begin(self) -> None:
        torch.cuda.memory._record_memory_history(max_entries=self._max_events)

    def _write(self, path: Path) -> None:
        torch.cuda.memory._dump_snapshot(str(path))  # type: ignore[no-untyped-call]  # torch's own

    def _end(self) -> None:
        torch.cuda.memory._record_memory_history(enabled=None)


def _name(window: StepWindow, world: World, kind: str) -> str:
    return f"steps-{window.from_step:06d}-{window.last_step:06d}-rank-{world.rank:04d}.{kind}"
