"""The benchmark of reading from S3, on few samples and with many faults."""

from tests.bench.loader_s3 import KINDS, as_streamed, bench
from tests.thorough import thorough


@thorough
def test_no_sample_is_lost_whatever_goes_wrong() -> None:
    result = bench(as_streamed(4), samples=60, rounds=1, share=0.4)
    assert set(result["faulty"]["injected"]) == set(KINDS)
    assert result["clean"]["samples"] == result["faulty"]["samples"] > 20
    assert result["clean"]["lost"] == result["faulty"]["lost"] == 0
    assert result["clean"]["sent_over_used"] < 1.02
    assert result["clean"]["sent_over_used"] < result["faulty"]["sent_over_used"]


def test_a_reader_that_loses_or_mixes_up_samples_is_found_out() -> None:
    def swaps(dataset, rows):
        yield from as_streamed(2)(dataset, [rows[1], rows[0], *rows[2:-1]])

    result = bench(swaps, samples=20, rounds=1, share=0.0)
    assert result["clean"]["lost"] == 3
    assert not result["ok"]
