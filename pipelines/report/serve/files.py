"""Files of a served report, in memory."""

from collections.abc import Mapping

from loader.dataset import Dataset
from pipelines.report.sampled import sampled_files
from pipelines.report.web.files import assets, data_file


def served_files(dataset: Dataset, page: str, beside: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return content by path: page, data, scripts, sampled videos; its gallery plays clips.

    Args:
        dataset: its sampled videos are read from ``report/``.
        page: HTML of ``index.html``.
        beside: files beside it.
    """
    videos = (path for path in sampled_files(dataset) if path.endswith(".mp4"))
    found = ((path, f"report/{path}") for path in videos)
    sampled = {path: dataset.storage.read(name) for path, name in found if dataset.storage.stat(name)}
    # Browsers ask every server for an icon.
    own = {"data/place.js": data_file("place", {"plays": True}), "favicon.ico": b""}
    return {**assets(), **sampled, **beside, **own, "index.html": page.encode()}
