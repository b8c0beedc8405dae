"""The loader's benchmark, on few samples."""

from pipelines.bench_loader import bench_loader


def test_it_reads_everything_and_is_no_slower_than_webdataset() -> None:
    result = bench_loader(samples=200)
    assert all(speed > 0 for speed in result["mb_per_s"].values())
    assert 0 < result["ratio_to_raw_webdataset"] < result["ratio_to_raw"]
