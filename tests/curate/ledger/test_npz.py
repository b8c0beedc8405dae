"""Arrays of .npz files as numpy reads them, and the same refusals."""

import io
from zipfile import BadZipFile

import numpy as np
import pytest

from reelweave.curate.ledger.npz import read_npz


def npz(**arrays: np.ndarray) -> bytes:
    np.savez(buffer := io.BytesIO(), **arrays)
    return buffer.getvalue()


def test_arrays_are_those_that_numpy_reads() -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "half": rng.random(264).astype(np.float16),
        "pictures": rng.integers(0, 255, (3, 27, 48), np.uint8),
        "columns": np.asfortranarray(rng.random((4, 5))),
        "big_endian": np.arange(3, dtype=">i4"),
        "scalar": np.float64(7.5),
        "empty": np.zeros((0, 3), np.float32),
    }
    found = read_npz(npz(**arrays), lambda key: key != "half")
    assert found.keys() == arrays.keys() - {"half"}
    for key, array in found.items():
        expected = np.asarray(arrays[key])
        assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
        np.testing.assert_array_equal(array, expected)


def test_a_damaged_file_is_refused() -> None:
    data = npz(one=np.arange(900))
    for damaged in (b"", data[:-40], data.replace(np.arange(9).tobytes(), bytes(72))):
        with pytest.raises(BadZipFile):
            read_npz(damaged, lambda _: True)
