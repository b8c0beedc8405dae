"""Stored arrays are read as the manifest promises them, or refused; nothing in a file is trusted."""

import io

import numpy as np
import pytest

from reelweave.loader.blend.latents import common
from reelweave.loader.buckets.frame_sampling import FrameSampling
from reelweave.loader.dataset.latents import LatentBucket, Latents, array_of, view_of
from reelweave.loader.dataset.shard import npy_bytes
from reelweave.loader.errors import RunError, UsageError

VIEWS = np.arange(2 * 3 * 2 * 4 * 5, dtype=np.float16).reshape(2, 3, 2, 4, 5)


def test_a_view_is_that_of_the_pass() -> None:
    for passed in range(4):
        found = view_of(npy_bytes(VIEWS), "float16", (3, 2, 4, 5), passed)
        assert np.array_equal(found, VIEWS[passed % 2])


def pickled() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.array([{"a": 1}], object), allow_pickle=True)
    return buffer.getvalue()


def claiming(shape: str) -> bytes:
    """A header that promises more than there is."""
    return npy_bytes(np.zeros((1, 2), np.float16)).replace(b"(1, 2)", shape.encode(), 1)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not an array",
        pickled(),
        claiming("(9, 2)"),
        claiming("(1, 3)"),
        npy_bytes(np.zeros((1, 2), np.float32)),
        npy_bytes(np.zeros((1, 1, 2), np.float16)),
        npy_bytes(np.asfortranarray(np.zeros((3, 2), np.float16))),
        npy_bytes(np.zeros((1, 2), np.float16))[:-1],
        npy_bytes(np.zeros((1, 2), np.float16)) + b"\0",
        npy_bytes(np.zeros((1, 2), ">f2")),
    ],
)
def test_another_file_than_promised_is_refused(data: bytes) -> None:
    with pytest.raises(RunError, match=r"its context\.npy"):
        array_of(data, "float16", (None, 2), "context.npy")


def test_an_array_without_views_is_refused() -> None:
    with pytest.raises(RunError, match="no view"):
        view_of(npy_bytes(VIEWS[:0]), "float16", (3, 2, 4, 5), 0)


def described(**changes: object) -> Latents:
    stored = {
        "samples": 1,
        "encode_s": None,
        "step_share": None,
        "latent_bytes": 1,
        "clip_bytes": 1,
        "why": "",
    }
    values = {
        "source": "s",
        "source_index": "i",
        "tokenizer": {"kind": "patch"},
        "text": None,
        "shapes": {},
        "seed": None,
        "dtype": "float16",
        "device": "cpu",
        "buckets": (LatentBucket(frames=1, height=2, width=2, latent=(1, 1, 1, 1), **stored),),
    }
    return Latents.model_validate(values | changes)


def test_datasets_are_blended_where_their_latents_are_alike() -> None:
    one = described()
    assert common([("a", one), ("b", described(source="t", source_index="j", device="gpu"))]) == one
    assert common([("a", None), ("b", None)]) is None
    with pytest.raises(UsageError, match="b holds latents and a does not"):
        common([("a", None), ("b", one)])
    with pytest.raises(UsageError, match=r"a and b cannot be blended: dtype was 'float16' and is 'float32'$"):
        common([("a", one), ("b", described(dtype="float32"))])
    on_the_fly = described(buckets=[one.buckets[0].model_copy(update={"latent": None})])
    with pytest.raises(UsageError, match=r"stored\.1x2x2 was True and is False"):
        common([("a", one), ("b", on_the_fly)])


@pytest.mark.parametrize(
    "sampling", [{"mode": "window"}, {"mode": "stride", "stride": 2}, {"mode": "fps", "fps": 10}]
)
def test_the_choices_of_frames_are_those_that_are_made(sampling: dict[str, object]) -> None:
    config = FrameSampling.model_validate(sampling)
    for frames, count in ((9, 5), (5, 5), (30, 9), (17, 9), (9, 1)):
        if config.available(frames, 25.0) < count:
            continue
        firsts = {int(config.frames(str(n), frames, 25.0, count)[0]) for n in range(400)}
        assert len(firsts) == config.starts(frames, 25.0, count)
    assert FrameSampling(mode="all").starts(30, 25.0, 5) == 1
