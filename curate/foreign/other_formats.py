"""Words for folders of other formats, which hold no tars: what can be done with them instead."""

import posixpath
import shlex
from collections.abc import Sequence

from reelweave.loader.storage import ObjectInfo

_MEDIA = (".mp4", ".webm", ".mkv", ".mov", ".avi", ".m4v")
_LISTS = ("metadata.csv", "metadata.jsonl", "metadata.parquet")

_FROM_PARQUET = (
    "it holds Parquet, which is not read yet; write the videos into tars once:"
    " python -c \"import datasets, webdataset as w; s = w.ShardWriter('tars/%06d.tar');"
    " [s.write({'__key__': f'{n:09}', 'mp4': r['video']['bytes'], 'json': {k: r[k] for k in r if k != 'video'}})"
    " for n, r in enumerate(datasets.load_dataset('FOLDER', split='train').cast_column('video',"
    ' datasets.Video(decode=False)))]; s.close()"'
)


def explain_other_format(listed: Sequence[ObjectInfo], root: str) -> str:
    """Return what a folder without tars holds, and what to do with it; "" where it is nothing that is known."""
    names = [info.path for info in listed]
    parts = {part for name in names for part in name.split("/")[:-1]}
    if any(name.endswith(".lance") for name in parts) or ("_versions" in parts and "data" in parts):
        return (
            "it is a Lance dataset, which is not read yet; write its videos into tars (webdataset.ShardWriter), or as"
            " files for `reelweave curate`"
        )
    if any(".mds" in posixpath.basename(name) for name in names):
        return "it has shards of MDS without their index.json at its root; merge it (streaming.base.util.merge_index)"
    if listing := next((name for name in names if posixpath.basename(name) in _LISTS), None):
        named = shlex.quote(f"{root}/{listing}")
        return f"its videos are files beside {listing}: `reelweave curate {named} --out OUT` makes a dataset of them"
    if any(name.endswith(".parquet") for name in names):
        return _FROM_PARQUET
    if any(name.lower().endswith(_MEDIA) for name in names):
        return (
            f"its videos are files: `reelweave curate {shlex.quote(root)} --out OUT` makes a dataset of them"
        )
    return ""
