"""The decoding benchmark, on few clips."""

from importlib.util import find_spec

from reelweave.pipelines.benchmarks.decode import SCENES, bench_decode
from tests.thorough import nightly


@nightly
def test_stream_and_decoders_decode_the_same_clips() -> None:
    result = bench_decode(scenes=SCENES[1:2], frames=34, copies=2, rounds=1)
    assert result["clips"] == 4
    assert all(speed > 0 for speed in result["clips_per_s"].values())
    assert (result["ratio_to_decord"] is None) == (find_spec("decord") is None)
    assert 0 < result["ratio_to_pyav"] < 3
