import io
import os

import numpy as np
import pytest
import torch
from PIL import Image

from reelweave.train.distributed.world import World, join
from reelweave.train.vae.contact_sheet import side_by_side
from reelweave.train.vae.quality import Quality, measures, psnr, ssim


def frames(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def ssim_by_the_paper(one_HW: np.ndarray, other_HW: np.ndarray) -> float:
    """Wang et al., 2004, eq. 13, place by place, where the whole window of 11 x 11 lies within the picture."""
    axis = np.arange(11) - 5
    line = np.exp(-(axis**2) / (2 * 1.5**2))
    window = np.outer(line, line) / line.sum() ** 2
    found = []
    for row in range(one_HW.shape[0] - 10):
        for column in range(one_HW.shape[1] - 10):
            x, y = (a[row : row + 11, column : column + 11] for a in (one_HW, other_HW))
            mx, my = (window * x).sum(), (window * y).sum()
            vx, vy, c = (
                (window * x * x).sum() - mx**2,
                (window * y * y).sum() - my**2,
                (window * x * y).sum() - mx * my,
            )
            top = (2 * mx * my + 0.01**2) * (2 * c + 0.03**2)
            found.append(top / ((mx**2 + my**2 + 0.01**2) * (vx + vy + 0.03**2)))
    return float(np.mean(found))


def test_ssim_of_each_frame_is_the_papers():
    video = frames(2, 3, 2, 14, 16)
    made = (video + 0.2 * (frames(2, 3, 2, 14, 16, seed=1) - 0.5)).clamp(0, 1)
    found = ssim(made, video)
    assert found.shape == (2, 2)
    for number, frame in ((0, 0), (1, 1)):
        planes = (x[number, :, frame].double().numpy() for x in (made, video))
        expected = np.mean([ssim_by_the_paper(a, b) for a, b in zip(*planes, strict=True)])
        assert found[number, frame].item() == pytest.approx(expected, abs=1e-4)


def test_psnr_of_each_frame_is_that_of_its_error():
    from torchmetrics.functional.image import peak_signal_noise_ratio

    video, made = frames(2, 3, 2, 8, 8), frames(2, 3, 2, 8, 8, seed=1)
    expected = [
        [peak_signal_noise_ratio(made[b, :, t], video[b, :, t], data_range=1.0) for t in (0, 1)]
        for b in (0, 1)
    ]
    torch.testing.assert_close(psnr(made, video), torch.tensor(expected))
    assert psnr(video, video).tolist() == [[pytest.approx(100)] * 2] * 2


def test_pixels_are_measured_as_they_are_seen():
    video = torch.ones(1, 3, 1, 16, 16)
    assert measures(video * 5, video, None)["psnr"].item() == pytest.approx(100)


def test_first_frames_count_apart_from_the_rest():
    quality = Quality()
    quality.add({"psnr": torch.tensor([[30.0, 20.0, 10.0], [32.0, 22.0, 12.0]])})
    quality.add({"psnr": torch.tensor([[40.0]])})
    found = quality.over(World(0, 1, torch.device("cpu")), ("psnr",))["psnr"]
    assert found.first == pytest.approx((30 + 32 + 40) / 3)
    assert found.rest == pytest.approx((20 + 10 + 22 + 12) / 4)
    assert found.mean == pytest.approx((30 + 32 + 40 + 20 + 10 + 22 + 12) / 7)
    assert found.by_frame == pytest.approx((34, 21, 11))


def of_rank() -> int:
    """Rank 0 has a clip of three frames, rank 1 a picture, rank 2 nothing."""
    with join("cpu") as world:
        quality = Quality()
        for values in ([[[1.0, 2.0, 3.0]]], [[[5.0]]], [])[int(os.environ["RANK"])]:
            quality.add({"psnr": torch.tensor(values)})
        found = quality.over(world, ("psnr",))["psnr"]
        return int((found.mean, found.first, found.rest) != (11 / 4, 3.0, 2.5))


def test_ranks_may_have_other_clips_or_none(ranks):
    ended = ranks.run(of_rank, 3)
    assert ended.codes == [0] * 3, ended.errors


def test_a_picture_shows_each_clip_above_its_reconstruction():
    clip, picture = torch.ones(3, 9, 8, 10), -torch.ones(3, 1, 6, 6)
    with Image.open(io.BytesIO(side_by_side([(clip, -clip), (picture, picture * 9)]))) as sheet:
        assert sheet.size == (6 * 10 + 5 * 4, 2 * 8 + 2 * 6 + 3 * 4)
        shown = np.asarray(sheet)
    assert (shown[:8, :10] == 255).all()
    assert (shown[12:20, :10] == 0).all()
    assert (shown[24:30, :6] == 0).all()
