"""Background saving and loading of a run's named tensors."""

import json
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple, TypeVar, cast

import torch

from reelweave.loader.errors import RunError, UsageError, first_line
from reelweave.loader.storage import Storage
from reelweave.train.checkpoint.checksums import crc32, metadata_of
from reelweave.train.checkpoint.directory import locate
from reelweave.train.checkpoint.files import data_of, header, in_order, sharding
from reelweave.train.checkpoint.folder import drop_unfinished, latest, prune, sweep
from reelweave.train.checkpoint.names import STATE, folder_of, part
from reelweave.train.checkpoint.pieces import Piece, Tensors, local, piece_of
from reelweave.train.checkpoint.reading import copy_, shapes_of
from reelweave.train.checkpoint.state import CheckpointState, read_checkpoint_state
from reelweave.train.checkpoint.writers import pieces_of_rank, shapes_everywhere
from reelweave.train.config.checkpoint import CheckpointConfig
from reelweave.train.distributed.first_rank import on_first
from reelweave.train.distributed.world import RankError, World

_LATE_S = 60.0

T = TypeVar("T")
_Act = Callable[[Callable[[str], None]], None]

_log = logging.getLogger(__name__)


class SaveProgress(NamedTuple):
    """Progress of the checkpoint in flight: of one rank, or summed over the ranks.

    Attributes:
        done: Number of ranks that have finished the present half.
        failed: Number of ranks that could not.
    """

    done: float = 0.0
    failed: float = 0.0

    def over(self, ranks: int) -> bool:
        """Return True if no rank is still at it."""
        return self.done + self.failed == ranks


def _sweep(storage: Storage) -> None:
    """Remove what earlier writers left unfinished."""
    storage.sweep()
    sweep(storage)


class Checkpoints:
    """Checkpoints of a run; every rank calls the same methods at the same steps.

    `save` copies this rank's tensors and lets a thread write them. No thread takes part in a collective. The
    progress of all ranks is summed with the numbers of a step (`progress`, `advance`), and then rank 0 makes
    the checkpoint visible. At most one checkpoint is in flight.

    Construction is a collective.

    Args:
        storage: storage that no other run writes to.
        config: interval and retention.
        world: all ranks.
        groups: named tensors of each group; plain ones are replicated. Ranks may have different tensors, like
            pipeline stages.

    Attributes:
        groups: named tensors of this rank by group.
        shapes: dtypes and shapes of all ranks' tensors by group and name.
        published: step of the newest checkpoint that this run has written whole; None before the first.
    """

    def __init__(
        self, storage: Storage, config: CheckpointConfig, world: World, groups: Mapping[str, Tensors]
    ) -> None:
        self._storage, self._config, self._world = storage, config, world
        self.groups = groups
        # Before any rank can write.
        on_first(world, partial(_sweep, storage))
        local_pieces = [
            piece_of(group, name, t) for group, tensors in groups.items() for name, t in tensors.items()
        ]
        everywhere = shapes_everywhere(local_pieces, world)
        self.shapes = {
            group: shapes_of([tensor[1:] for tensor in everywhere if tensor[0] == group]) for group in groups
        }
        mine = in_order(pieces_of_rank(local_pieces, world))
        self._mine = {group: [piece for piece in mine if piece.group == group] for group in groups}
        self._staged: dict[Piece, torch.Tensor] = {}
        self._flight: _Flight | None = None
        self._failed_before = False
        self._clearing: threading.Thread | None = None
        self.published: int | None = None

    def latest(self) -> CheckpointState | None:
        """Return the state of the newest checkpoint, the same on every rank; a collective.

        Raises:
            RunError: a rank cannot see it, or it is damaged; then on every rank.
        """
        newest = on_first(self._world, lambda: latest(self._storage))
        return (
            self.together(lambda: read_checkpoint_state(self._storage, folder_of(newest))) if newest else None
        )

    def load_(self, state: CheckpointState) -> None:
        """Load a checkpoint's tensors into those of this run.

        Raises:
            RunError: the parts that some rank reads are damaged.
            UsageError: its tensors do not match those of this run.
        """
        if not state.checked and self._world.rank == 0:
            _log.warning(
                "%s was written without checksums, by an earlier version: wrong bytes in it cannot be told",
                self.uri(state.step),
            )
        for group, targets in self.groups.items():
            shapes, folder = self.shapes[group], folder_of(state.step)
            pieces = locate(self._storage, folder, state, group, targets, shapes, self._world, self.together)
            self.together(partial(copy_, self._storage, group, targets, pieces))

    def together(self, act: Callable[[], T]) -> T:
        """Run an action that may fail on a single rank, and fail on all ranks if it does; a collective."""
        failure, result = None, None
        try:
            result = act()
        except (RunError, UsageError) as error:
            failure = error
        rank_errors = self._world.gather_text("" if failure is None else str(failure))
        if failure is not None:
            raise failure
        for rank, text in enumerate(rank_errors):
            if text:
                raise RankError(f"rank {rank}: {text}", self._world.global_rank(rank))
        return cast(T, result)

    def uri(self, step: int) -> str:
        """Return the URI of a step's checkpoint."""
        return self._storage.uri(folder_of(step))

    def save(self, state: CheckpointState, last: bool = False) -> None:
        """Begin to write a checkpoint; a collective.

        While ranks still write the one before, it waits for ``max_wait_s`` and then leaves this one out. The
        storage of one rank may stall for minutes, and the steps of all go on.

        Args:
            state: state after the finished step.
            last: wait as long as it takes until it is complete, as at the end of a run.

        Raises:
            RunError: this checkpoint and the one before failed, or the last one of the run failed.
        """
        if not self._land(math.inf if last else self._config.max_wait_s):
            self._leave_out(state.step)
            return
        state = state.model_copy(update={"groups": list(self.groups), "writers": self._world.size})
        copied = self._stage()
        headers: dict[str, str] = {}
        self._flight = _Flight(state, headers, lambda at: headers.update(self._write(state, copied, at)))
        if last or not self._config.background:
            self._land()
        if last and self._failed_before:
            self._await_clearing(_LATE_S)
            raise RunError(f"{self.uri(state.step)}, the last checkpoint, could not be written: see above")

    def reserve(self) -> None:
        """Allocate the staging memory; page-locking takes seconds, which the first `save` would spend in a step."""
        for group, pieces in self._mine.items():
            for piece in pieces:
                if piece not in self._staged:
                    source = local(self.groups[group][piece.name])
                    self._staged[piece] = torch.empty(
                        piece.sizes, dtype=source.dtype, pin_memory=source.is_cuda
                    )

    def progress(self) -> SaveProgress:
        """Return this rank's progress, without waiting; `advance` takes the sum over all ranks."""
        return self._flight.progress() if self._flight else SaveProgress()

    def advance(self, total: SaveProgress) -> None:
        """Advance the checkpoint in flight as far as all ranks are; a collective once none is still at it.

        A rank that failed is reported when the others are over, too: to wait for them would stop the steps.

        Args:
            total: sum of the `progress` of all ranks.

        Raises:
            RunError: this checkpoint and the one before failed.
        """
        flight = self._flight
        if flight is None or not total.over(self._world.size):
            return
        if total.failed:
            self._flight = None
            self._report(flight)
        elif flight.publishing:
            self._flight, self._failed_before = None, False
            self.published = flight.state.step
        else:
            rank_headers = self._world.gather_text(json.dumps(flight.headers))
            headers = {path: crc for text in rank_headers for path, crc in json.loads(text).items()}
            flight.state = flight.state.model_copy(update={"headers": headers})
            first = self._world.rank == 0
            flight.publish(self._publish if first else lambda *_: None)

    def _land(self, most_s: float = math.inf) -> bool:
        """Wait for the checkpoint in flight, for so many seconds, and return True if it is over; a collective."""
        end = time.monotonic() + most_s
        while self._flight is not None:
            self._flight.wait(end - time.monotonic())
            total = SaveProgress(*self._world.sums(self.progress()))
            if not total.over(self._world.size):
                return False
            self.advance(total)
        return True

    def _leave_out(self, step: int) -> None:
        """Tell which ranks are late, and with what; a collective."""
        unfinished = self._world.gather_text("" if self._flight is None else self._flight.unfinished_uri())
        late = [f"rank {rank} still writes {uri}" for rank, uri in enumerate(unfinished) if uri]
        if self._world.rank == 0:
            _log.warning(
                "%s is left out, since after %g s %s; training goes on, and the next one counts",
                self.uri(step),
                self._config.max_wait_s,
                ", ".join(late[:3]) or "the one before is not published",
            )

    def _stage(self) -> Callable[[], None]:
        """Copy this rank's tensors into staging memory; returns a function that waits for the copies.

        Copies from a GPU are enqueued after the step that computed the values and before the next one, which
        need not wait.
        """
        self.reserve()
        cuda = False
        for group, pieces in self._mine.items():
            for piece in pieces:
                source = local(self.groups[group][piece.name])
                cuda = cuda or source.is_cuda
                self._staged[piece].copy_(source, non_blocking=True)
        if not cuda:
            return lambda: None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch's own
        event.record()
        return event.synchronize

    def _write(
        self, state: CheckpointState, copied: Callable[[], None], at: Callable[[str], None]
    ) -> dict[str, str]:
        """Write this rank's parts and return the checksum of each header by path; tell ``at`` the URI of each."""
        copied()
        self._await_clearing()
        headers = {}
        for group, pieces in self._mine.items():
            path = part(group, self._world.rank, self._world.size)
            staged = {piece.name: self._staged[piece] for piece in pieces}
            head = header(pieces, sharding(pieces) | metadata_of(staged))
            headers[path] = crc32(head)
            size = len(head) + sum(piece.bytes for piece in pieces)
            data = data_of(list(staged.values()))
            path = f"{folder_of(state.step)}/{path}"
            at(self._storage.uri(path))
            self._storage.write_chunks(path, (head, *data), size)
        return headers

    def _publish(self, state: CheckpointState, at: Callable[[str], None]) -> None:
        at(self._storage.uri(f"{folder_of(state.step)}/{STATE}"))
        self._await_parts(state)
        if not self._storage.create(f"{folder_of(state.step)}/{STATE}", state.encode()):
            raise RunError(
                f"{self.uri(state.step)} is there already: another run writes into the same folder; stop it"
            )
        try:
            prune(self._storage, self._config.keep_last, self._config.keep_every)
        except RunError as error:
            _log.warning("old checkpoints stay where they are: %s", error)

    def _await_parts(self, state: CheckpointState) -> None:
        """Wait until this rank sees all ranks' files, which network file systems may show late."""
        folder, deadline = folder_of(state.step), time.monotonic() + _LATE_S
        expected = {f"{folder}/{path}" for group in state.groups for path in state.parts(group)}
        while missing := expected - {file.path for file in self._storage.list(f"{folder}/")}:
            if time.monotonic() > deadline:
                raise RunError(
                    f"{self._storage.uri(min(missing))} was written, but cannot be seen from rank 0;"
                    " keep checkpoints where all ranks see the same files"
                )
            time.sleep(1.0)

    def _report(self, flight: "_Flight") -> None:
        complaints = self._world.gather_text(flight.complaint())
        reasons = [f"rank {rank}: {text}" for rank, text in enumerate(complaints) if text]
        message = f"{self.uri(flight.state.step)} could not be written ({'; '.join(reasons[:3])})"
        if self._world.rank == 0:
            # In a thread: storage that failed a moment ago may stall, and no step waits for it.
            self._clearing = threading.Thread(target=self._clear, args=(flight.state.step,), daemon=True)
            self._clearing.start()
        if self._failed_before:
            self._await_clearing(_LATE_S)
            raise RunError(f"{message}, nor the checkpoint before; make room there and start again")
        self._failed_before = True
        if self._world.rank == 0:
            _log.warning("%s; the checkpoint before stays good, and training goes on", message)

    def _clear(self, step: int) -> None:
        """Give back the room of a failed checkpoint, which the next one may need."""
        try:
            drop_unfinished(self._storage, step)
        except RunError as error:
            _log.warning("parts of %s stay until the next start: %s", self.uri(step), error)

    def _await_clearing(self, most_s: float | None = None) -> None:
        if self._clearing is not None:
            self._clearing.join(most_s)


class _Flight:
    """A checkpoint in flight: its parts are written first, then it is published.

    Args:
        state: state of the checkpoint.
        headers: checksums of the headers of this rank's parts, filled by ``write``.
        write: function that writes these parts, and tells its argument the URI of each before.
    """

    def __init__(self, state: CheckpointState, headers: Mapping[str, str], write: _Act) -> None:
        self.state, self.headers = state, headers
        self.publishing = False
        self._uri = ""
        self._begin(write)

    def publish(self, act: Callable[[CheckpointState, Callable[[str], None]], None]) -> None:
        """Start the second half: publication."""
        self.publishing = True
        self._begin(lambda at: act(self.state, at))

    def progress(self) -> SaveProgress:
        """Return how far this rank is with the present half."""
        if self._thread.is_alive():
            return SaveProgress()
        return SaveProgress(failed=1.0) if self._error else SaveProgress(done=1.0)

    def wait(self, most_s: float) -> None:
        """Wait until the present half is over, for so many seconds."""
        self._thread.join(min(max(0.0, most_s), threading.TIMEOUT_MAX))

    def unfinished_uri(self) -> str:
        """Return the URI that this rank is writing; empty if it is over."""
        return self._uri if self._thread.is_alive() else ""

    def complaint(self) -> str:
        """Return the error of this rank; empty without one."""
        return first_line(self._error) if self._error else ""

    def _begin(self, act: _Act) -> None:
        self._error: BaseException | None = None

        def at(uri: str) -> None:
            self._uri = uri

        def run() -> None:
            try:
                act(at)
            except BaseException as error:  # noqa: BLE001 - reported to all ranks
                self._error = error

        # A failing process does not wait for it, since a partial checkpoint is ignored.
        self._thread = threading.Thread(target=run, name="checkpoint", daemon=True)
        self._thread.start()
