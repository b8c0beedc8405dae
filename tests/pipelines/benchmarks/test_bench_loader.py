"""The loader's benchmark, on few samples."""

from reelweave.pipelines.benchmarks.loader import bench_loader
from reelweave.pipelines.benchmarks.peers import installed_peers
from tests.thorough import nightly


@nightly
def test_it_reads_everything_and_is_no_slower_than_the_others() -> None:
    result = bench_loader(samples=200)
    assert all(speed > 0 for speed in result["mb_per_s"].values())
    for peer in ("webdataset", "energon"):
        assert 0 < result[f"ratio_to_raw_{peer}"] < result["ratio_to_raw"]
    assert result["stream_mb_per_s"] > 0
    assert result["two_workers_mb_per_s"] > 0
    assert (result["ratio_to_raw_mosaic"] is None) == ("mosaic" not in result["mb_per_s"])


def test_a_peer_that_is_not_installed_is_left_out(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("reelweave.pipelines.benchmarks.peers.find_spec", lambda name: None)
    assert installed_peers(tmp_path, tmp_path) == {}
