"""Parallel reading of tars, each in a child process that a damaged video may kill."""

import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from reelweave.curate.foreign.fields import FieldChoice
from reelweave.curate.foreign.killed import KilledSamples
from reelweave.curate.foreign.tar import ENDS_ITS_READER, TarTask, read_tar
from reelweave.curate.frames.child_process import Isolated, Quarantined
from reelweave.loader.dataset.tars.mds_scan import MdsShard
from reelweave.loader.errors import RunError
from reelweave.loader.storage import ObjectInfo, Storage

_MAX_SILENCE_S = 600.0
_DEATHS_OF_A_SAMPLE = 2  # the first may have another cause
_DEATHS_WITHOUT_A_SAMPLE = 3


@dataclass(frozen=True)
class TarProgress:
    """Finished tars and bytes, those of earlier runs too, and the tar that was finished last."""

    done: int
    total: int
    done_bytes: int
    total_bytes: int
    current: str = ""


def read_tars(
    tars: Storage,
    place: Storage,
    todo: Sequence[ObjectInfo],
    found: Sequence[ObjectInfo],
    workers: int,
    progress: Callable[[TarProgress], None],
    fields: FieldChoice = FieldChoice(),  # noqa: B008 - frozen
    mds: Mapping[str, MdsShard] | None = None,
) -> None:
    """Read the tars ``todo``, and write the table of each (`reelweave.curate.foreign.tar`).

    Args:
        tars: Storage of the tars.
        place: Storage of the tables.
        todo: Tars to read.
        found: All tars, for the progress.
        workers: Number of processes.
        progress: Called after each tar.
        fields: Fields of the samples' metadata to keep.
        mds: What its index says of each shard of MDS; None for tars.

    Raises:
        MachineError: readers of one were killed, as where memory runs out, or it changed meanwhile.
        RunError: one cannot be read.
    """
    total_bytes = sum(info.size for info in found)
    done, done_bytes = len(found) - len(todo), total_bytes - sum(info.size for info in todo)
    progress(TarProgress(done, len(found), done_bytes, total_bytes))
    children = _Children(tars, place, workers, fields, mds or {})
    running: dict[Future[None], ObjectInfo] = {}
    with ThreadPoolExecutor(workers) as pool:
        try:
            for info in todo:
                running[pool.submit(children.read, info)] = info
            while running:
                finished, _ = wait(running, return_when=FIRST_EXCEPTION, timeout=0.5)
                for future in finished:
                    info = running.pop(future)
                    future.result()
                    done, done_bytes = done + 1, done_bytes + info.size
                    progress(TarProgress(done, len(found), done_bytes, total_bytes, info.path))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            children.stop()
            while not all(future.done() for future in running):
                time.sleep(0.1)
                children.stop()  # a child may just have been starting


class _Children:
    """Child processes, one per worker, and the samples they were at when they died."""

    def __init__(
        self,
        tars: Storage,
        place: Storage,
        workers: int,
        fields: FieldChoice,
        mds: Mapping[str, MdsShard],
    ) -> None:
        self._tars, self._place, self._fields, self._mds = tars, place, fields, mds
        self._killed = KilledSamples(tars, place)
        self._all = [Isolated(read_tar, attempts=1, max_silence_s=_MAX_SILENCE_S) for _ in range(workers)]
        self._idle = list(self._all)
        self._stopped = threading.Event()

    def read(self, info: ObjectInfo) -> None:
        """Read a tar; samples that end the process are left out.

        Raises:
            MachineError: somebody else killed the process, and for the first time there (`KilledSamples`).
            RunError: it cannot be read.
        """
        child = self._idle.pop()
        try:
            with tempfile.NamedTemporaryFile(prefix="reelweave-index-") as at:
                self._try(child, info, Path(at.name))
        finally:
            self._idle.append(child)

    def _try(self, child: Isolated[TarTask, None], info: ObjectInfo, at: Path) -> None:
        deaths: Counter[int] = Counter()
        killed: set[int] = set()
        doubted: dict[int, str] = {}
        while not self._stopped.is_set():
            at.write_bytes(b"")  # a child that dies before it begins dies at no sample
            mds = self._mds.get(info.path)
            result = child(TarTask(self._tars, info.path, self._place, doubted, at, self._fields, mds))
            if not isinstance(result, Quarantined) or self._stopped.is_set():
                return
            offset = int(at.read_bytes() or -1)
            deaths[offset] += 1
            if result.killed:
                killed.add(offset)
            if deaths[offset] < (_DEATHS_OF_A_SAMPLE if offset >= 0 else _DEATHS_WITHOUT_A_SAMPLE):
                continue
            if offset in killed:
                self._killed.refuse(info, offset, deaths[offset], result.reason)
            elif offset < 0:
                raise RunError(f"{self._tars.uri(info.path)} cannot be read: {result.reason}")
            doubted[offset] = f"{ENDS_ITS_READER}: {result.reason}"

    def stop(self) -> None:
        """End all children, at work or not."""
        self._stopped.set()
        for child in self._all:
            child.close()
