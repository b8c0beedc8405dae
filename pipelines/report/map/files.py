"""Files of the map: its page, and its table."""

from collections.abc import Mapping
from typing import Any

from reelweave.loader.dataset import Dataset
from reelweave.loader.dataset.tables.parquet import to_parquet
from reelweave.pipelines.report.gallery.files import Gallery
from reelweave.pipelines.report.map.table import FILE, map_table
from reelweave.pipelines.report.numbers.dataset_map import DatasetMap
from reelweave.pipelines.report.numbers.vector_map import NEIGHBOURS
from reelweave.pipelines.report.web.chart import CLUSTER_COLOURS, Chart
from reelweave.pipelines.report.web.curves import scatter
from reelweave.pipelines.report.web.template import render

PAGE = "map.html"


def map_files(
    dataset: Dataset, mapped: DatasetMap, figures: Mapping[str, Any], gallery: Gallery
) -> dict[str, bytes]:
    """Return the files by path; none where there is no map. The points are in the gallery's ``data/map.js``.

    Args:
        dataset: no clip of it is read.
        mapped: its map.
        figures: the same as `DatasetMap.to_json` gives them.
        gallery: its gallery, whose pictures are shown.
    """
    if mapped.problem:
        return {}
    title = "/".join(dataset.storage.root.rsplit("/", 2)[-2:])
    page = render(
        "map.html",
        title=f"Map of {title}",
        subtitle=f"{len(mapped.row_M):,} clips of {dataset.storage.root} by their embeddings of"
        f" {mapped.dimensions:,} numbers",
        notes=[mapped.note] if mapped.note else [],
        figures=[],
        map=figures,
        points=_chart(mapped, figures),
        about=_about(figures),
        pictures=_pictures(dataset, mapped, gallery),
        colours=CLUSTER_COLOURS,
        neighbours=NEIGHBOURS,
        table_file=FILE,
    )
    return {PAGE: page.encode(), FILE: to_parquet(map_table(dataset, mapped, gallery))}


def _chart(mapped: DatasetMap, figures: Mapping[str, Any]) -> Chart:
    if mapped.explained:
        x, y = mapped.explained
        shown = f"Principal axes, which hold {x:.0%} and {y:.0%} of the variance. "
    else:
        shown = "UMAP: neighbours lie together, distances between groups mean little. "
    rows = [
        (
            cluster["cluster"],
            cluster["clips"],
            cluster["outliers"],
            cluster["x"],
            cluster["y"],
            cluster["likeness"],
        )
        for cluster in figures["clusters"]
    ]
    return scatter(
        "map",
        "Clips that look alike lie together",
        [str(cluster["cluster"]) for cluster in figures["clusters"]],
        len(mapped.row_M),
        ("cluster", "clips", "outliers", "x, mean", "y, mean", "cosine to its centre, mean"),
        rows,
        f"{shown}Drag a rectangle to choose clips; click a point to see its clip.",
    )


def _about(figures: Mapping[str, Any]) -> str:
    """Return how much of the dataset is on the map, in words."""
    sentences = []
    if left_out := figures["left_out"]:
        clips = figures["clips"]
        sentences.append(
            f"The map has {clips:,} clips, evenly spread; with --set max_mapped={clips + left_out} it has the other"
            f" {left_out:,}, too."
        )
    if without := figures["without_embedding"]:
        sentences.append(f"Clips without an embedding: {without:,}.")
    return " ".join(sentences)


def _pictures(dataset: Dataset, mapped: DatasetMap, gallery: Gallery) -> dict[str, tuple[str, int, int, int]]:
    """Return the pictures by key of the clips that stand for clusters, and of outliers."""
    shown = mapped.shown_rows
    keys = dataset.rows_at(shown, ["key"]).column("key").to_pylist()
    rows = gallery.rows.rows_of_index(shown).tolist()
    return {
        key: gallery.pictures[row] for key, row in zip(keys, rows, strict=True) if row in gallery.pictures
    }
