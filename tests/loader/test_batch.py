"""What a batch prints."""

from tests.train.clips import ClipStream


def test_a_printed_batch_has_shapes_in_place_of_pixels() -> None:
    batch = next(iter(ClipStream()))
    printed = repr(batch)
    assert printed.startswith("Microbatch(keys=(")
    assert f"video_BCTHW=uint8{list(batch.video_BCTHW.shape)}" in printed
    assert len(printed) < 2_000
    assert "tensor(" not in printed
