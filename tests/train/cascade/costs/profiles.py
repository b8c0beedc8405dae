"""Profiles whose parameters are known."""

import numpy as np

from reelweave.loader.base.arrays import Floats
from reelweave.train.cascade.costs.cost_model import DiTCost, Links, TextCost
from reelweave.train.cascade.costs.profile_csv import Profile
from reelweave.train.cascade.costs.run_sizes import RunSizes
from reelweave.train.cascade.costs.vae_cost import FittedVAECost, UnitSeconds
from reelweave.train.cascade.problem import Module
from reelweave.train.models.encoders.tile_grid import TileGrid

LINKS = Links(gpus_per_node=8, node_bytes_per_s=200e9, network_bytes_per_s=30e9, balanced=True)
DIT = DiTCost(
    fixed_s=0.02, linear_s=4e-5, square_s=3e-10, exchanged_bytes=3e6, states_bytes=40 * 2**30, token_bytes=2e5
)
VAE = FittedVAECost(
    call_s=0.01, unit=UnitSeconds(fixed_s=0.005, volume_s=2e-8), memory_bytes=41 * 2**30, volume_bytes=300.0
)
TEXT = TextCost(fixed_s=0.01, sample_s=0.002)
GRID = TileGrid(height=256, width=256, height_step=192, width_step=192)
SIZES = RunSizes(
    states_bytes=40.0 * 2**30,
    handed_token_bytes=0.0,
    handed_sample_bytes=0.0,
    exchanged_bytes=3e6,
    grid=None,
    at_once=True,
)
SHAPES = [
    (frames, *picture)
    for frames in (1, 13, 33, 57, 81, 113)
    for picture in ((256, 256), (480, 832), (720, 1280), (1088, 1920))
]


def efficiency(size_N3) -> Floats:
    """Time of a picture's pixel beside others': kernels suit some sizes."""
    return np.where(size_N3[:, 1] == 480, 1.3, 1.0) * np.where(size_N3[:, 1] == 256, 0.85, 1.0)


def profile(
    degrees: tuple[int, ...] = (1, 2, 4, 8, 16),
    noise: float = 0.02,
    peaks: bool = True,
    vae=VAE,
    uneven: bool = True,
    links=LINKS,
) -> Profile:
    """Of the costs above; pictures of one size have another efficiency in the VAE, which a line cannot know."""
    rows, draw = [], np.random.default_rng(0)
    for size in SHAPES:
        length = 64 + (1 + (size[0] - 1) // 4) * (size[1] // 16) * (size[2] // 16)
        for batch in (1, 2, 4):
            size_13, batch_1 = np.array([size]), np.array([batch])
            told = batch, *size, length
            text_s, one = float(TEXT.seconds(batch_1)[0]), np.array([1])
            vae_s = float(vae.seconds(batch_1, size_13, one)[0, 0])
            vae_s *= float(efficiency(size_13)[0]) if uneven else 1.0
            vae_gib = (vae.bytes_of_a_gpu(batch_1, size_13, one)[0, 0] - vae.memory_bytes) / 2**30 + 0.25
            rows += [(Module.TEXT, *told, 1, text_s, 0.1), (Module.VAE, *told, 1, vae_s, vae_gib)]
            for degree in degrees:
                where = batch_1, np.array([length]), np.array([degree])
                gib = (DIT.bytes_of_a_gpu(*where)[0, 0] - DIT.states_bytes) / 2**30 + 0.5
                rows.append((Module.DIT, *told, degree, float(DIT.seconds(*where, links)[0, 0]), gib))
    columns = np.array(rows).T
    whole = columns[:7].astype(np.int64)
    seconds = columns[7] * draw.normal(1, noise, len(rows)).clip(1 - 3 * noise, 1 + 3 * noise)
    gib = columns[8] if peaks else np.full(len(rows), np.nan)
    return Profile(whole[0], whole[1], whole[2:5].T, whole[5], whole[6], seconds, gib)
