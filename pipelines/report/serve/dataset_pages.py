"""Pages of a dataset's report, its clips to play, and searches in its captions."""

import base64
import re
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reelweave.loader.dataset import Dataset
from reelweave.pipelines.report.clips.media import ClipBytes, locate_clip
from reelweave.pipelines.report.sampled import sampled_files
from reelweave.pipelines.report.web.files import Files, assets, data_file

_CLIP = re.compile(r"clip/(.{1,1024})\.mp4", re.DOTALL)
_SEARCH = re.compile(r"data/search-((?:[0-9a-f]{2}){1,800})\.js")
_SEARCHED = 1 << 16  # captions at once, whose lower case is in memory


class DatasetPages:
    """Page, data, scripts, sampled videos; its gallery plays clips.

    Args:
        dataset: its sampled videos are read from ``report/``, clips from shards and the ledger.
        page: HTML of ``index.html``.
        beside: files beside it.
        captions: captions in the order of the gallery's rows.
    """

    def __init__(
        self, dataset: Dataset, page: str, beside: Mapping[str, bytes], captions: pa.ChunkedArray
    ) -> None:
        videos = (path for path in sampled_files(dataset) if path.endswith(".mp4"))
        video_paths = ((path, f"report/{path}") for path in videos)
        sampled = {
            path: dataset.storage.read(name) for path, name in video_paths if dataset.storage.stat(name)
        }
        # Browsers ask every server for an icon.
        server_files = {
            "data/place.js": data_file("place", {"plays": True, "searches": True}),
            "favicon.ico": b"",
        }
        self.dataset, self._captions = dataset, captions
        self._files = Files(assets(), sampled, beside, server_files, {"index.html": page.encode()})

    def find(self, path: str) -> bytes | ClipBytes | None:
        """Return a file of the report, or where a clip lies; see `Pages`."""
        if (content := self._files.get(path)) is not None:
            return content
        if question := _SEARCH.fullmatch(path):
            return self._search(question[1])
        clip = _CLIP.fullmatch(path)
        return locate_clip(self.dataset, clip[1]) if clip else None

    def _search(self, query: str) -> bytes | None:
        """Return which rows have a text in their caption, as bits, the first row in the lowest one of the first byte.

        Args:
            query: UTF-8 bytes of the text, as hexadecimal digits; upper and lower case are the same.
        """
        try:
            text = pc.utf8_lower(bytes.fromhex(query).decode()).as_py()
        except UnicodeDecodeError:
            return None
        hits = [
            pc.match_substring(pc.utf8_lower(self._captions.slice(start, _SEARCHED)), text)
            for start in range(0, len(self._captions), _SEARCHED)
        ]
        chosen_N = np.concatenate([np.asarray(part, np.bool_) for part in hits] or [np.zeros(0, np.bool_)])
        bits = np.packbits(chosen_N, bitorder="little").tobytes()
        return data_file(f"search-{query}", {"hits": base64.b64encode(bits).decode()})
