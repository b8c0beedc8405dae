"""Publication of written shards of latents as a dataset version, with its accounting and provenance."""

import importlib.metadata
from typing import Any

from curate.run.curate import versions
from loader.dataset import Content, Dataset, Manifest, Row, ShardRecord, publish
from loader.dataset.latents import Latents
from loader.dataset.tables.parquet import to_rows
from loader.storage import Storage
from pipelines.latents.work import STAGE

_VERSIONED = ("torch", "diffusers", "transformers")


def publish_version(
    source: Dataset,
    storage: Storage,
    shards: list[ShardRecord],
    failed: dict[str, str],
    asked: dict[str, Any],
    latents: Latents,
    files: dict[str, bytes],
) -> Manifest:
    """Publish a version of a dataset with latents.

    Args:
        source: dataset it was made from.
        storage: place of the version, with its shards.
        shards: all of them.
        failed: key of each sample that could not be encoded, and why.
        asked: settings that decide the content; kept in the manifest.
        latents: section of the manifest.
        files: further files by path.
    """
    scores = to_rows(source.scores)
    content = Content(
        accounting=[_accounted(row, failed) for row in to_rows(source.accounting)],
        scores=[{**row, "state": "failed"} if row["key"] in failed else row for row in scores],
        config=asked,
        versions={**versions(), **_versions()},
        removals=source.manifest.removals,
        latents=latents,
        files=files,
    )
    return publish(storage, shards, content)


def _accounted(row: Row, failed: dict[str, str]) -> Row:
    """Return a span's row in the new version; a duplicate of a failed clip loses its reference."""
    nothing = {"stage": STAGE, "score": None, "threshold": None, "duplicate_of": None}
    if row["state"] == "kept" and row["key"] in failed:
        return {**row, **nothing, "state": "failed", "reason": failed[row["key"]]}
    if row["state"] == "duplicate" and row["duplicate_of"] in failed:
        reason = f"duplicate of {row['duplicate_of']}, which could not be encoded"
        return {**row, **nothing, "state": "filtered", "reason": reason}
    return row


def _versions() -> dict[str, str]:
    found = {}
    for name in _VERSIONED:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
