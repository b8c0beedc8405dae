"""Text found by an optional OCR package."""

import importlib.util
from functools import cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from reelweave.curate.filters.config import ScoreConfig
from reelweave.curate.filters.sample import ReadText
from reelweave.loader.base.operations import charged
from reelweave.loader.errors import UsageError

Polygon = NDArray[np.float64]
Line = tuple[Polygon, str]

_PACKAGES = {"rapidocr": ("rapidocr", "rapidocr_onnxruntime"), "easyocr": ("easyocr",)}
"""Names by which packages are imported; any one of them will do, the first is the newest."""

READ_PER_S, READ_LONG_SIDE_PX = 1.0, 960
"""Pictures that are read in a second, and their long side."""

_DETECTOR_PX = 480  # long side at which RapidOCR looks for lines; it reads them at full size


class TextReader(Protocol):
    """Detector of text in a picture."""

    def __call__(self, picture: NDArray[np.uint8]) -> list[Line]:
        """Return the lines of text in a picture [h, w, 3] RGB: outline [corners, 2], in (x, y) pixels, and text."""
        ...


def check_ocr(config: ScoreConfig) -> None:
    """Check that the package of ``scores.ocr`` is installed.

    Raises:
        UsageError: The package is not installed.
    """
    packages = _PACKAGES.get(config.ocr, ())
    if packages and not any(map(importlib.util.find_spec, packages)):
        install = "'reelweave[ocr]'" if config.ocr == "rapidocr" else packages[0]
        raise UsageError(
            f"scores.ocr = {config.ocr} needs the package {packages[0]}, which is not installed:"
            f" pip install {install}, or set scores.ocr to none"
        )


@cache
def text_reader(name: str) -> TextReader:
    """Return this process's reader of an OCR package.

    Raises:
        UsageError: The name is not one of ``scores.ocr``.
    """
    if name == "rapidocr":
        return _RapidReader()
    if name == "easyocr":
        return _EasyReader()
    raise UsageError(f"scores.ocr = {name} is not known; use one of {', '.join(_PACKAGES)}, or none")


class TextMeter:
    """Reader of the text in pictures of one clip after the other.

    Args:
        reader: Detector of text.

    Attributes:
        pictures: Number of pictures of the clip that were read so far.
    """

    def __init__(self, reader: TextReader) -> None:
        self._reader = reader
        self.pictures = 0
        self._lines: list[tuple[float, ...]] = []

    @charged("scores: text by OCR")
    def push(self, picture: NDArray[np.uint8], times: int = 1) -> None:
        """Read a picture, uint8 [h, w, 3] RGB, that counts so many times."""
        height, width = picture.shape[:2]
        for polygon, text in self._reader(picture):
            corners = np.asarray(polygon, np.float64) / (width, height)
            (left, top), (right, bottom) = corners.min(axis=0), corners.max(axis=0)
            line = left, top, right, bottom, min(1.0, _area(corners)), float(len(text))
            self._lines += [(float(self.pictures + index), *line) for index in range(times)]
        self.pictures += times

    def take(self) -> ReadText:
        """Return the text of the clip, and start the next one."""
        text = ReadText(self.pictures, np.array(self._lines, np.float32).reshape(-1, 7))
        self.pictures, self._lines = 0, []
        return text


def ocr_scores(text: ReadText) -> dict[str, float]:
    """Return ``ocr_share`` and ``ocr_chars`` of the text in a clip.

    They are the share of the picture inside text outlines, median of one picture per second, and the mean number of
    characters in a picture.
    """
    shares, chars = np.zeros((2, max(1, text.pictures)))
    pictures = text.lines[:, 0].astype(np.intp)
    np.add.at(shares, pictures, text.lines[:, 5])
    np.add.at(chars, pictures, text.lines[:, 6])
    return {"ocr_share": float(np.median(np.minimum(shares, 1.0))), "ocr_chars": float(chars.mean())}


def _area(polygon: Polygon) -> float:
    x, y = np.asarray(polygon, np.float64).T
    return float(abs(x @ np.roll(y, 1) - y @ np.roll(x, 1))) / 2


class _RapidReader:
    """RapidOCR on the CPU; its models are part of the wheel."""

    def __init__(self) -> None:
        self._is_old = importlib.util.find_spec("rapidocr") is None
        if self._is_old:
            from rapidocr_onnxruntime import RapidOCR

            self._engine: Any = RapidOCR(det_limit_side_len=_DETECTOR_PX, det_limit_type="max")
            return
        from rapidocr import RapidOCR

        one_thread = "EngineConfig.onnxruntime"
        self._engine = RapidOCR(
            params={
                "Det.limit_side_len": _DETECTOR_PX,
                "Det.limit_type": "max",
                f"{one_thread}.intra_op_num_threads": 1,
                f"{one_thread}.inter_op_num_threads": 1,
                "Global.log_level": "error",
            }
        )

    def __call__(self, picture: NDArray[np.uint8]) -> list[Line]:
        image = np.ascontiguousarray(picture[..., ::-1])
        if self._is_old:
            detections, _ = self._engine(image, use_cls=False)
            return [(np.array(box, np.float64), text) for box, text, _ in detections or ()]
        # Options of one call hold in later ones, so each call names them all.
        read = self._engine(image, use_det=True, use_cls=False, use_rec=True)
        if read.txts is None:
            return []
        return [(np.array(box, np.float64), text) for box, text in zip(read.boxes, read.txts, strict=True)]


class _EasyReader:
    """EasyOCR on the CPU; it downloads its models unless they are in its cache."""

    def __init__(self) -> None:
        import easyocr

        self._engine: Any = easyocr.Reader(["en"], gpu=False, verbose=False)

    def __call__(self, picture: NDArray[np.uint8]) -> list[Line]:
        detections = self._engine.readtext(np.ascontiguousarray(picture))
        return [(np.array(box, np.float64), text) for box, text, _ in detections]
