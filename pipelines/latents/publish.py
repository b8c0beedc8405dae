"""Publication of written shards of latents as a dataset version, with its accounting and provenance."""

import importlib.metadata
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from reelweave.curate.run.curate import versions
from reelweave.loader.dataset import ACCOUNTING, SCORES, Content, Dataset, Manifest, Row, ShardRecord, publish
from reelweave.loader.dataset.latents import Latents
from reelweave.loader.dataset.publishing.publication import read_once
from reelweave.loader.dataset.schema import FURTHER_TABLES
from reelweave.loader.dataset.tables.parquet import to_rows, to_table
from reelweave.loader.storage import Storage
from reelweave.pipelines.latents.work import STAGE

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
    gone = pa.array(sorted(failed), pa.string())
    accounted = (_account_failed(table, failed, gone) for table in source.table_parts("accounting"))
    scored = (_mark_failed(table, gone) for table in source.table_parts("scores"))
    content = Content(
        further=_further_tables(source, gone),
        accounting=read_once(accounted, ACCOUNTING),
        scores=read_once(scored, SCORES),
        config=asked,
        versions={**versions(), **_versions()},
        removals=source.manifest.removals,
        latents=latents,
        files=files,
    )
    return publish(storage, shards, content)


def _further_tables(source: Dataset, gone: pa.Array) -> dict[str, pa.RecordBatchReader]:
    """Return the tables that a dataset may lack, without captions of samples that could not be encoded."""
    tables = {}
    for name, schema in FURTHER_TABLES.items():
        if (parts := source.further_parts(name)) is not None:
            if name == "captions":
                parts = (part.filter(pc.invert(pc.is_in(part.column("key"), gone))) for part in parts)
            tables[name] = read_once(parts, schema)
    return tables


def _mark_failed(scores: pa.Table, gone: pa.Array) -> pa.Table:
    """Return scores with the state of samples that could not be encoded."""
    state = pc.if_else(pc.is_in(scores.column("key"), gone), "failed", scores.column("state"))
    return scores.set_column(scores.column_names.index("state"), scores.schema.field("state"), state)


def _account_failed(accounting: pa.Table, failed: dict[str, str], gone: pa.Array) -> pa.Table:
    """Return accounting in which samples that could not be encoded are accounted for."""
    concerned = (pc.is_in(accounting.column(name), gone) for name in ("key", "duplicate_of"))
    if not pc.any(pc.or_(*concerned)).as_py():
        return accounting
    return to_table([_accounted_row(row, failed) for row in to_rows(accounting)], ACCOUNTING)


def _accounted_row(row: Row, failed: dict[str, str]) -> Row:
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
