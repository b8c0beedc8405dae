"""Samples at which somebody else killed the reading process, kept until the index is published.

The kernel kills where memory runs out, and that may be another program's doing. So a sample is at fault only in the
second run that loses its reader there.
"""

import json
import threading

from pydantic import TypeAdapter, ValidationError

from reelweave.curate.foreign.tar import NOTES
from reelweave.loader.base.processors import is_low_on_memory
from reelweave.loader.errors import MachineError
from reelweave.loader.storage import ObjectInfo, Storage

_NOTE = f"{NOTES}killed.json"
_OFFSETS = TypeAdapter(dict[str, list[int]])


class KilledSamples:
    """Offsets of samples at which readers were killed, of this run and the ones before it that published nothing.

    Args:
        tars: Storage of the tars.
        place: Storage of the note.
    """

    def __init__(self, tars: Storage, place: Storage) -> None:
        self._tars, self._place = tars, place
        self._lock = threading.Lock()
        try:
            self._known = _OFFSETS.validate_json(place.read(_NOTE))
        except (FileNotFoundError, ValidationError):  # a damaged note costs one more run
            self._known = {}

    def refuse(self, info: ObjectInfo, offset: int, times: int, reason: str) -> None:
        """Leave a tar undone whose readers were killed at a sample; return where the run before was killed there, too.

        Args:
            info: The tar.
            offset: Offset of the sample; -1 where no sample was begun.
            times: Number of readers that ended there in this run.
            reason: How the last reader ended.

        Raises:
            MachineError: the tar is left undone.
        """
        low = is_low_on_memory()
        with self._lock:
            offsets = self._known.setdefault(f"{info.path} {info.version}", [])
            if offset in offsets and offset >= 0 and not low:
                return
            if offset not in offsets:
                offsets.append(offset)
                self._place.write(_NOTE, json.dumps(self._known).encode())
        where = f"at the sample at byte {offset} of" if offset >= 0 else "before the first sample of"
        raise MachineError(
            f"the reader was killed {times} times {where} {self._tars.uri(info.path)} ({reason}). Nothing is"
            " published; tars that were read stay read. Look for lack of memory, or give fewer --workers; the same"
            " command goes on. If the next run is killed there too, while this machine has memory left, the sample is"
            " left out",
            lasts=True,
        )


def forget_killed(place: Storage) -> None:
    """Remove the note, once an index is published."""
    if place.stat(_NOTE) is not None:
        place.delete(_NOTE)
