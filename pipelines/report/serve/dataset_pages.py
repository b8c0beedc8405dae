"""Pages of a dataset's report, in memory, and its clips to play."""

import re
from collections.abc import Mapping

from loader.dataset import Dataset
from pipelines.report.clips.media import ClipBytes, clip_bytes
from pipelines.report.sampled import sampled_files
from pipelines.report.web.files import assets, data_file

_CLIP = re.compile(r"clip/(.{1,1024})\.mp4", re.DOTALL)


class DatasetPages:
    """Page, data, scripts, sampled videos; its gallery plays clips.

    Args:
        dataset: its sampled videos are read from ``report/``, clips from shards and the ledger.
        page: HTML of ``index.html``.
        beside: files beside it.
    """

    def __init__(self, dataset: Dataset, page: str, beside: Mapping[str, bytes]) -> None:
        videos = (path for path in sampled_files(dataset) if path.endswith(".mp4"))
        found = ((path, f"report/{path}") for path in videos)
        sampled = {path: dataset.storage.read(name) for path, name in found if dataset.storage.stat(name)}
        # Browsers ask every server for an icon.
        own = {"data/place.js": data_file("place", {"plays": True}), "favicon.ico": b""}
        self.dataset = dataset
        self._files = {**assets(), **sampled, **beside, **own, "index.html": page.encode()}

    def find(self, path: str) -> bytes | ClipBytes | None:
        """Return a file of the report, or where a clip lies; see `Pages`."""
        if (content := self._files.get(path)) is not None:
            return content
        clip = _CLIP.fullmatch(path)
        return clip_bytes(self.dataset, clip[1]) if clip else None
