"""Perceptual embeddings and fingerprints of clips are found by identity, also where a source was cut again."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from reelweave.curate.dedup.fingerprint import ARRAY
from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.run.clip_arrays import ClipArrays, FingerprintPlace, Fingerprints
from reelweave.loader.storage import open_storage


def source(number: int, clips: int, seed: int) -> dict[str, Any]:
    rng, arrays = np.random.default_rng(seed), {}
    for part in range(clips):
        arrays[f"{number}-{part}.perceptual"] = rng.normal(size=8).astype(np.float16)
        arrays[f"{number}-{part}{ARRAY}"] = rng.integers(0, 255, (2, 27, 48), np.uint8)
    return arrays


def test_clips_are_found_by_identity_until_their_source_is_cut_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reelweave.curate.run.clip_arrays._BLOCK", 4)
    ledger = Ledger(open_storage(tmp_path))
    written = {"a": source(1, 5, 1), "b": {}, "c": source(3, 7, 3)}
    for name, arrays in written.items():
        ledger.blobs.write_arrays(name, arrays)
    clips = ClipArrays(ledger)
    assert clips.read_stored(np.array([-1])).tolist() == [[0.0]], "before any was read"
    clips.read(["a", "b"])
    clips.read(["a", "c"])
    ids = ["1-4", "3-6", "9-9", "3-0"]

    def check(expected: list[str]) -> None:
        places = clips.find(pa.array(ids), ["a", "c"])
        found = clips.read_stored(places)
        assert [one for one, place in zip(ids, places, strict=True) if place >= 0] == expected
        for clip, place, vector in zip(ids, places.tolist(), found, strict=True):
            if clip not in expected:
                assert not vector.any()
                continue
            arrays = written["a" if clip[0] == "1" else "c"]
            assert np.array_equal(vector, arrays[f"{clip}.perceptual"])
            fingerprint = clips.fingerprint(place, clip)
            assert fingerprint is not None
            assert np.array_equal(fingerprint, arrays[f"{clip}{ARRAY}"])

    check(["1-4", "3-6", "3-0"])
    clips.forget("c")
    check(["1-4"])
    written["c"] = source(3, 3, 9)
    ledger.blobs.write_arrays("c", written["c"])
    clips.read(["c"])
    check(["1-4", "3-0"])


def test_a_fingerprint_of_an_earlier_version_has_each_picture_for_its_half_second(tmp_path: Path) -> None:
    ledger, pictures = (
        Ledger(open_storage(tmp_path)),
        np.arange(2 * 27 * 48).reshape(2, 27, 48).astype(np.uint8),
    )
    ledger.blobs.write_arrays("old", {"clip.fingerprint": pictures})
    dense = Fingerprints(ledger).read(FingerprintPlace("old", "clip"))
    assert dense is not None
    assert np.array_equal(dense, pictures[[0, 0, 0, 0, 1, 1, 1, 1]])
