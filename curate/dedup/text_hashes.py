"""Numbers of 64 bits in place of texts: a million of them are compared in the time of a thousand texts."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]

_WORD = 8
_AT_ONCE = 1 << 16
_ODD = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(29)


def hashes(texts: pa.Array) -> Hashes:
    """Return a number for each text, or binary value, equal for equal ones; 0 for null."""
    hash_values = np.empty(len(texts), np.uint64)
    for first in range(0, len(texts), _AT_ONCE):
        hash_values[first : first + _AT_ONCE] = _hashes(texts[first : first + _AT_ONCE])
    return hash_values


def _hashes(texts: pa.Array) -> Hashes:
    lengths = pc.fill_null(pc.binary_length(texts), 0).to_numpy().astype(np.int64)
    hash_values = np.zeros(len(texts), np.uint64)
    # Bytes of all texts lie one behind the other, with 64-bit offsets.
    texts = texts.cast(pa.large_string() if pa.types.is_string(texts.type) else pa.large_binary())
    _, where, data = texts.buffers()
    if data is None or not lengths.any():
        return hash_values
    starts = np.frombuffer(where, np.int64)[texts.offset : texts.offset + len(texts)]
    content = np.frombuffer(data, np.uint8)
    # Texts of one length make a matrix: words are mixed column by column, over all of them.
    for length in np.unique(lengths[lengths > 0]).tolist():
        rows = np.flatnonzero(lengths == length)
        first = starts[rows]
        padded = np.zeros((len(rows), -(-length // _WORD) * _WORD), np.uint8)
        if len(rows) and (np.diff(first) == length).all():
            padded[:, :length] = content[first[0] : first[0] + length * len(rows)].reshape(-1, length)
        else:
            padded[:, :length] = content[first[:, None] + np.arange(length)]
        value = np.full(len(rows), length, np.uint64)
        for word in padded.view(np.uint64).T:
            value = (value ^ word) * _ODD
            value ^= value >> _SHIFT
        hash_values[rows] = value
    return hash_values


def may_repeat(values: Hashes) -> NDArray[np.bool_]:
    """Return which values occur more than once."""
    order = np.sort(values)
    repeated = np.unique(order[1:][order[1:] == order[:-1]])
    if not len(repeated):
        return np.zeros(len(values), bool)
    indices = np.searchsorted(repeated, values)
    return np.asarray(repeated[np.minimum(indices, len(repeated) - 1)] == values)


class TextPlaces:
    """TextPlaces of texts, found by their numbers.

    Args:
        texts: Different texts.
    """

    def __init__(self, texts: pa.Array) -> None:
        self._texts = texts
        hash_values = hashes(texts)
        self._order = np.argsort(hash_values, kind="stable")
        self._sorted = hash_values[self._order]

    def find(self, values: pa.Array) -> NDArray[np.int64]:
        """Return the place of each value, or -1."""
        if not len(self._sorted) or not len(values):
            return np.full(len(values), -1, np.int64)
        hash_values = hashes(values)
        order = np.argsort(hash_values, kind="stable")  # values in order are found ten times as fast
        at = np.empty(len(values), np.int64)
        at[order] = np.minimum(np.searchsorted(self._sorted, hash_values[order]), len(self._sorted) - 1)
        indices = np.where(self._sorted[at] == hash_values, self._order[at], -1)
        # Two texts with one number: the second is looked for as before.
        same = pc.fill_null(pc.equal(self._texts.take(pa.array(indices, mask=indices < 0)), values), False)
        wrong = np.flatnonzero((indices >= 0) & ~same.to_numpy(zero_copy_only=False))
        if len(wrong):
            exact_indices = pc.fill_null(pc.index_in(values.take(pa.array(wrong)), value_set=self._texts), -1)
            indices[wrong] = exact_indices.to_numpy()
        return indices
