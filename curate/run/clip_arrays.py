"""Arrays of clips as deduplication and shards take them: vectors in memory, fingerprints read when asked for."""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from curate.ledger import Ledger

_VECTOR, _FINGERPRINT = ".perceptual", ".fingerprint"
_MOST_BYTES = 512 << 20
"""Fingerprints in memory: those of the sources that were asked for last. All of them are 13 KB per 5 s of video."""


class ClipArrays:
    """Perceptual embeddings and fingerprints of clips, by identity of their bytes.

    Args:
        ledger: Ledger that holds them.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._read: dict[str, list[str]] = {}
        self._vectors: dict[str, tuple[NDArray[Any], str]] = {}
        self._fingerprints: OrderedDict[str, dict[str, NDArray[np.uint8]]] = OrderedDict()
        self._bytes = 0

    def read(self, names: Iterable[str]) -> None:
        """Read the vectors that are kept under names in the ledger, as far as they are not read yet."""
        new = [name for name in dict.fromkeys(names) if name not in self._read]
        for name, arrays in zip(new, self._ledger.many_arrays(new, _is_vector), strict=True):
            clip_ids = {key.removesuffix(_VECTOR): vector for key, vector in arrays.items()}
            self._read[name] = list(clip_ids)
            self._vectors.update((clip_id, (vector, name)) for clip_id, vector in clip_ids.items())

    def forget(self, name: str) -> None:
        """Forget what was read under a name, which is about to be written again."""
        for clip_id in self._read.pop(name, ()):
            self._vectors.pop(clip_id, None)
        self._bytes -= _size(self._fingerprints.pop(name, {}))

    def vector(self, clip_id: str) -> NDArray[Any] | None:
        """Return the perceptual embedding of a clip, float [D], or None."""
        found = self._vectors.get(clip_id)
        return None if found is None else found[0]

    def fingerprint(self, clip_id: str) -> Callable[[], NDArray[np.uint8] | None] | None:
        """Return a function that reads the fingerprint of a clip; None where there is none."""
        found = self._vectors.get(clip_id)
        return None if found is None else partial(self._fingerprint, found[1], clip_id)

    def _fingerprint(self, name: str, clip_id: str) -> NDArray[np.uint8] | None:
        if name not in self._fingerprints:
            arrays = self._ledger.read_arrays(name, lambda key: key.endswith(_FINGERPRINT))
            self._fingerprints[name] = {
                key.removesuffix(_FINGERPRINT): array for key, array in arrays.items()
            }
            self._bytes += _size(self._fingerprints[name])
        self._fingerprints.move_to_end(name)
        while self._bytes > _MOST_BYTES and len(self._fingerprints) > 1:
            self._bytes -= _size(self._fingerprints.popitem(last=False)[1])
        return self._fingerprints[name].get(clip_id)


def _is_vector(key: str) -> bool:
    return key.endswith(_VECTOR)


def _size(arrays: dict[str, NDArray[np.uint8]]) -> int:
    return sum(array.nbytes for array in arrays.values())
