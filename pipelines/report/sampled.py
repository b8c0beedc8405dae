"""Videos of a model that was trained on a dataset, beside the dataset's report and the clips they are nearest to.

DATASET/report/sampled/videos.json     what was sampled, and which clip each video is nearest to
DATASET/report/sampled/000.mp4         video
DATASET/report/sampled/000.png         strip of its frames, above one of the clip's
The videos show clips, so a take-down of a clip removes them with the report.
"""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, Field, FiniteFloat, TypeAdapter

from reelweave.loader.base.strict_json import parse
from reelweave.loader.dataset import Dataset

FOLDER = "report/sampled/"
_VIDEOS = f"{FOLDER}videos.json"
_MOST_VIDEOS = 100
_MOST_BYTES = 16 << 20
_STRIP_FRAMES = 5


class SampledVideo(BaseModel, frozen=True, extra="forbid"):
    """One sampled video, and the clip of the dataset that it is nearest to.

    Attributes:
        file: name of its MP4; the PNG of its strip has the same stem.
        prompt: its caption; empty if the folder has no manifest.
        given_frames: number of first frames that it was given, as image to video.
        nearest: key of the clip.
        nearest_caption: caption of the clip.
        psnr_db: likeness to the clip, of squares of pixels (`reelweave.pipelines.evaluation.nearest`).
        other_psnr_db: the same to the nearest clip with another caption.
        temporal_flickering: flickering of the video, as in `reelweave evaluate`.
        clip_temporal_flickering: the same of the clip.
    """

    file: str = Field(pattern=r"[0-9]{3}\.mp4")
    prompt: str
    given_frames: int = Field(ge=0)
    nearest: str
    nearest_caption: str
    psnr_db: FiniteFloat
    other_psnr_db: FiniteFloat | None
    temporal_flickering: FiniteFloat | None
    clip_temporal_flickering: FiniteFloat | None


_Videos = TypeAdapter(list[SampledVideo])


def keep_sampled(dataset: Dataset, folder: Path) -> list[SampledVideo]:
    """Compare the videos of a folder with a dataset's clips, and keep them for its report.

    Args:
        dataset: dataset that their model was trained on.
        folder: output of `reelweave sample --prompts`, or any folder of .mp4 files; the first ones are kept.

    Raises:
        UsageError: there is no video.
        RunError: a video cannot be decoded.
    """
    from reelweave.pipelines.evaluation.metrics import temporal_flickering
    from reelweave.pipelines.evaluation.nearest import DatasetClips, clip_frames
    from reelweave.pipelines.evaluation.videos import read_video, video_set
    from reelweave.train.loop.logs.pictures import filmstrip, png, sheet

    videos, clips, sampled = video_set(folder), DatasetClips(dataset), []
    for index, path in enumerate(videos.paths[:_MOST_VIDEOS]):
        video_CTHW, _ = read_video(path)
        # The clip that it comes nearest to, and both as strips of frames.
        near = clips.nearest(video_CTHW)
        row, frames = dataset.row(near.row), video_CTHW.shape[1]
        clip_CTHW = clip_frames(dataset, near.row, (video_CTHW.shape[2], video_CTHW.shape[3]))[:, :frames]
        record = videos.records.get(path.name, {})
        strips = [[filmstrip(each, _STRIP_FRAMES)] for each in (video_CTHW, clip_CTHW)]
        sampled.append(
            SampledVideo(
                file=f"{index:03d}.mp4",
                prompt=videos.caption(path) or "",
                given_frames=record.get("image_frames", 0) if record.get("image") else 0,
                nearest=row["key"],
                nearest_caption=row["caption"] or "",
                psnr_db=round(near.psnr_db, 2),
                other_psnr_db=None if near.other_psnr_db is None else round(near.other_psnr_db, 2),
                temporal_flickering=temporal_flickering(video_CTHW),
                clip_temporal_flickering=temporal_flickering(np.ascontiguousarray(clip_CTHW)),
            )
        )
        dataset.storage.write(FOLDER + sampled[-1].file, path.read_bytes())
        dataset.storage.write(FOLDER + _strip(sampled[-1]), png(sheet(strips)))
    text = json.dumps([video.model_dump() for video in sampled], ensure_ascii=False, indent=1)
    dataset.storage.write(_VIDEOS, text.encode())
    return sampled


def sampled_videos(dataset: Dataset) -> list[SampledVideo]:
    """Return the videos that are kept for a dataset's report; none if there is something else in their place."""
    info = dataset.storage.stat(_VIDEOS)
    if info is None or info.size > _MOST_BYTES:
        return []
    try:
        return _Videos.validate_python(parse(dataset.storage.read(_VIDEOS, 0, _MOST_BYTES)))
    except ValueError:
        return []


def sampled_files(dataset: Dataset) -> list[str]:
    """Return the paths of all that is kept of them, below the report's folder."""
    names = [name for video in sampled_videos(dataset) for name in (video.file, _strip(video))]
    return ["sampled/videos.json", *(f"sampled/{name}" for name in names)]


def sampled_section(dataset: Dataset) -> list[dict[str, Any]]:
    """Return what the page shows of each video: its strip as a data URI, and its numbers."""
    return [
        {**video.model_dump(), "strip": _picture(dataset, video), "place": f"sampled/{video.file}"}
        for video in sampled_videos(dataset)
    ]


def _picture(dataset: Dataset, video: SampledVideo) -> str:
    path = FOLDER + _strip(video)
    info = dataset.storage.stat(path)
    if info is None or info.size > _MOST_BYTES:
        return ""
    return "data:image/png;base64," + base64.b64encode(dataset.storage.read(path, 0, info.size)).decode()


def _strip(video: SampledVideo) -> str:
    return f"{Path(video.file).stem}.png"
