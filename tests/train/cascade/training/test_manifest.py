"""What ranks tell each other of a step."""

from dataclasses import replace

import pytest
import torch

from reelweave.loader.batch import BadSample
from reelweave.train.cascade.execution.ops import TensorSpec
from reelweave.train.cascade.training.manifest import exchange
from reelweave.train.distributed.world import World
from tests.train.cascade.training.runs import packed
from tests.train.clips import ClipStream

ALONE = World(0, 1, torch.device("cpu"))
BAD = BadSample("clip9", "shards/000001.tar", 512, "“damaged”\0\n")


def batches():
    """A microbatch, and a pack of which one clip is stored as latents."""
    stream = ClipStream(sizes=(3, 1))
    first, second = stream.microbatch(0), stream.microbatch(1, 1)
    captions = ("ein Boot über \U0001f30a", *first.captions[1:])
    pack = packed(replace(first, captions=captions, bad=(BAD,)))
    latent = torch.zeros(24, 3, 8, 8, dtype=torch.float16)
    return replace(second, weight=1 / 3), replace(pack, videos=(*pack.videos[:2], latent), bad=(BAD,))


def no_contexts(_batch):
    return []


def test_all_but_pixels_comes_through():
    own = batches()
    found = exchange(own, no_contexts, ALONE)
    assert [type(entry.batch) for entry in found] == [type(batch) for batch in own]
    left_out = {"video_BCTHW", "videos", "latents_BCTHW", "contexts", "media", "after"}
    for entry, batch in zip(found, own, strict=True):
        for name in vars(batch).keys() - left_out:
            assert getattr(entry.batch, name) == getattr(batch, name), name
        assert entry.owner == 0
    assert found[0].videos == (TensorSpec((3, 3, 16, 24), torch.uint8),)
    pixels, latents = TensorSpec((3, 5, 16, 16), torch.uint8), TensorSpec((24, 3, 8, 8), torch.float16)
    assert found[1].videos == (pixels, pixels, latents)
    assert all(entry.encodes for entry in found)


@pytest.mark.parametrize("stored", [True, False])
def test_sizes_of_contexts_are_told_whether_they_are_there_or_not(stored):
    batch = batches()[0]
    contexts = (torch.zeros(7, 8, dtype=torch.bfloat16),)
    own = replace(batch, contexts=contexts) if stored else batch
    [entry] = exchange([own], lambda batch: [TensorSpec((7, 8), torch.bfloat16)], ALONE)
    assert entry.contexts == (TensorSpec((7, 8), torch.bfloat16),)
    assert entry.text_stored is stored


def test_stored_latents_are_not_encoded():
    batch = replace(batches()[0], latents_BCTHW=torch.zeros(1, 24, 2, 8, 12))
    [entry] = exchange([batch], no_contexts, ALONE)
    assert entry.videos == (TensorSpec((24, 2, 8, 12), torch.float32),)
    assert not entry.encodes
