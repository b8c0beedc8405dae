"""Fingerprints of many pairs are compared by the workers of a runner, as one process compares them."""

from pathlib import Path

import numpy as np
import pytest

from reelweave.curate.dedup.fingerprint import ARRAY, overlap
from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.run.clip_arrays import FingerprintPlace
from reelweave.curate.run.stages.footage import match_many
from reelweave.loader.storage import open_storage
from tests.thorough import but


@pytest.mark.parametrize("kind", but(["sequential"], ["sequential", "ray"], ()))
def test_each_pair_has_the_agreement_of_its_two_clips(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if kind == "ray":
        request.getfixturevalue("ray_local")
    rng, ledger = np.random.default_rng(0), Ledger(open_storage(tmp_path))
    scenes = rng.integers(0, 256, (3, 40, 27, 48), np.uint8)
    clips = {f"{n}": scenes[n % 3][n : n + 12 + n].repeat(4, axis=0) for n in range(9)} | {
        "short": scenes[0][:4]
    }
    places = []
    for number, (clip_id, fingerprint) in enumerate(clips.items()):
        ledger.blobs.write_arrays(f"source{number // 4}", {f"{clip_id}{ARRAY}": fingerprint})
        places.append(FingerprintPlace(f"source{number // 4}", clip_id))
    by_source = {place.arrays: {} for place in places}
    for place in places:
        by_source[place.arrays][f"{place.clip_id}{ARRAY}"] = clips[place.clip_id]
    for name, arrays in by_source.items():
        ledger.blobs.write_arrays(name, arrays)
    places.append(FingerprintPlace("source0", "none"))
    pairs = [(one, two) for one in places for two in places] * 4
    expected = [overlap(clips.get(one.clip_id), clips.get(two.clip_id), 0.7) for one, two in pairs]
    found, cost = match_many(pairs, 0.7, ledger, kind)
    assert found == expected
    assert any(one is not None and one.agreement > 0.9 for one in found)
    assert any(one is None for one in found)
    assert cost.tasks == -(-len(pairs) // 256)
