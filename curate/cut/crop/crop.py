"""Lines that clips lose at each side, so that no bar is left."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from av.video.frame import VideoFrame

from reelweave.curate.frames.picture import Geometry
from reelweave.loader.dataset.colour.chain import Chain

SIDES = ("top", "bottom", "left", "right")


@dataclass(frozen=True)
class Crop:
    """Lines cropped at each side of finished pictures, even numbers of pixels."""

    top: int = 0
    bottom: int = 0
    left: int = 0
    right: int = 0

    def size(self, picture: Geometry) -> Geometry:
        """Return the size of what is left of pictures."""
        return replace(
            picture,
            width=picture.width - self.left - self.right,
            height=picture.height - self.top - self.bottom,
        )

    def scores(self) -> dict[str, float]:
        """Return the lines by the name of their score, ``crop_top_px`` and so on."""
        return {f"crop_{side}_px": float(lines) for side, lines in asdict(self).items()}

    def describe(self) -> str:
        """Return the crop in words."""
        sides = [f"{lines} px at the {side}" for side, lines in asdict(self).items() if lines]
        return f"bars cropped: {', '.join(sides)}"


class PictureCropper:
    """Cropper of finished pictures, which hold their samples on."""

    def __init__(self) -> None:
        self._chain = Chain()

    def __call__(self, picture: VideoFrame, crop: Crop | None) -> VideoFrame:
        """Return the part of a finished picture that is left; without a crop the picture itself."""
        if crop is None:
            return picture
        width, height = picture.width - crop.left - crop.right, picture.height - crop.top - crop.bottom
        return self._chain(picture, (f"crop={width}:{height}:{crop.left}:{crop.top}",))
