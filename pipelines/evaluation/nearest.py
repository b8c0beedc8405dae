"""Nearest clips of a dataset to a sampled video: has a model learned its clips, or copied them?"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from reelweave.loader.dataset import Dataset
from reelweave.loader.read.decode import decode

CELL_PX = 8
"""Side of the squares whose mean colour is compared: what is seen from afar."""
MOST_CLIPS = 500
MOST_FRAMES = 300
_MOST_CLIP_BYTES = 256 << 20


@dataclass(frozen=True)
class Nearest:
    """Clip that is nearest to a video.

    Attributes:
        row: its row in the dataset's index.
        psnr_db: PSNR of the video to it, of squares of `CELL_PX`.
        other_psnr_db: the same to the nearest clip with another caption; None if all have one caption.
    """

    row: int
    psnr_db: float
    other_psnr_db: float | None


class DatasetClips:
    """Clips of a dataset in the size of a video's squares, decoded once for each size.

    Args:
        dataset: dataset of clips; at most `MOST_CLIPS` of its clips are compared, evenly spread.
    """

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._decoded: dict[tuple[int, int], dict[int, NDArray[np.float32]]] = {}

    def nearest(self, video_CTHW: NDArray[np.uint8]) -> Nearest:
        """Return the nearest clip: of every frame of the video, the clip's frame that is most alike counts.

        Args:
            video_CTHW: RGB, [3, frames, height, width], at least a square high and wide.
        """
        cells_CTHW = mean_colours(video_CTHW)
        psnr_of = {
            row: _psnr(cells_CTHW, clip_CTHW)
            for row, clip_CTHW in self._clips(cells_CTHW.shape[2], cells_CTHW.shape[3]).items()
        }
        row = max(psnr_of, key=psnr_of.__getitem__)
        caption = self._captions[row]
        other_psnrs = [value for other, value in psnr_of.items() if self._captions[other] != caption]
        return Nearest(row, psnr_of[row], max(other_psnrs, default=None))

    @cached_property
    def _captions(self) -> list[str]:
        return [text or "" for text in self._dataset.column("caption").to_pylist()]

    def _clips(self, height: int, width: int) -> dict[int, NDArray[np.float32]]:
        if (height, width) not in self._decoded:
            self._decoded[height, width] = dict(self._decode(height, width))
        return self._decoded[height, width]

    def _decode(self, height: int, width: int) -> Iterator[tuple[int, NDArray[np.float32]]]:
        total = len(self._dataset)
        count = min(total, MOST_CLIPS)
        for index in range(count):
            row = index * total // count
            member = self._dataset.media.place(row)
            if member is None or member[2] > _MOST_CLIP_BYTES:
                continue
            pixels_CTHW = clip_frames(self._dataset, row, (height * CELL_PX, width * CELL_PX))
            yield row, mean_colours(pixels_CTHW)


def clip_frames(
    dataset: Dataset, row: int, size: tuple[int, int], max_frames: int = MOST_FRAMES
) -> NDArray[np.uint8]:
    """Return the first frames of a clip as training sees them, uint8 RGB [3, frames, height, width].

    Args:
        dataset: the dataset.
        row: row of the clip in its index.
        size: height and width, which the clip covers, cropped at the centre.
        max_frames: number of frames, if the clip has them.
    """
    frames = min(dataset.row(row)["frames"], max_frames)
    pixels_CTHW = np.empty((3, frames, *size), np.uint8)
    decode(dataset.read_media(row), np.arange(frames), pixels_CTHW)
    return pixels_CTHW


def mean_colours(video_CTHW: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the mean colours of squares, in 0 to 1."""
    channels, frames, height, width = video_CTHW.shape
    rows, columns = height // CELL_PX, width // CELL_PX
    cut = video_CTHW[:, :, : rows * CELL_PX, : columns * CELL_PX]
    parts = cut.reshape(channels, frames, rows, CELL_PX, columns, CELL_PX)
    return np.asarray(parts.mean(axis=(3, 5), dtype=np.float32) / 255)


def _psnr(video_CTHW: NDArray[np.float32], clip_CTHW: NDArray[np.float32]) -> float:
    video_TN, clip_TN = (x.swapaxes(0, 1).reshape(x.shape[1], -1) for x in (video_CTHW, clip_CTHW))
    errors_TT = np.square(video_TN[:, None] - clip_TN[None]).mean(axis=2)
    return float(-10 * np.log10(max(float(errors_TT.min(axis=1).mean()), 1e-10)))
