"""Numbers of several datasets beside each other."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelweave.loader.dataset import Dataset, StageTotal
from reelweave.pipelines.report.numbers.outcomes import Outcomes
from reelweave.pipelines.report.numbers.scores import BINS, Scores, bin_edges, drawn_mask
from reelweave.pipelines.report.run.configuration import Configuration, differences, flat
from reelweave.pipelines.report.run.numbers import distinct_names

MOST_KEYS = 50
"""Keys that are named of those which only one dataset has."""


def compared_numbers(datasets: Sequence[Dataset]) -> dict[str, Any]:
    """Return the numbers as plain values; lists have a value for each dataset, in their order.

    Args:
        datasets: two or more; no clip of them is read.
    """
    names = distinct_names(
        [tuple(part for part in dataset.storage.root.split("/") if part) for dataset in datasets]
    )
    configurations = [
        Configuration(
            "manifest.json",
            "",
            "",
            flat({**_without_words(dataset.manifest.config), "versions": dataset.manifest.versions}),
        )
        for dataset in datasets
    ]
    return {
        "datasets": [
            {"name": name, "dataset": dataset.storage.root, "totals": dataset.manifest.totals.model_dump()}
            for name, dataset in zip(names, datasets, strict=True)
        ],
        "stages": _stages([Outcomes.of(dataset, 0).stages for dataset in datasets]),
        "scores": _scores([Scores.of(dataset) for dataset in datasets]),
        "differences": [
            {"key": difference.key, "values": difference.values} for difference in differences(configurations)
        ],
        "keys": _keys([dataset.column("key") for dataset in datasets]),
    }


def _without_words(config: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest's configuration with the recipe's name and digest alone: its keys stand among the others."""
    curate = config.get("curate")
    recipe = curate.get("recipe") if isinstance(curate, dict) else None
    if not isinstance(curate, dict) or not isinstance(recipe, dict):
        return config
    named = {name: recipe.get(name) for name in ("name", "digest")}
    return {**config, "curate": {**curate, "recipe": named}}


def _stages(totals: Sequence[Sequence[StageTotal]]) -> list[dict[str, Any]]:
    """Return rows, sources and seconds of each state and stage that any dataset has."""
    totals_of = [{(stage_total.state, stage_total.stage): stage_total for stage_total in of} for of in totals]
    both = dict.fromkeys(key for of in totals_of for key in of)
    return [
        {
            "state": state,
            "stage": stage,
            **{
                name: [getattr(of[state, stage], name) if (state, stage) in of else 0 for of in totals_of]
                for name in ("rows", "sources", "seconds")
            },
        }
        for state, stage in both
    ]


def _scores(scores: Sequence[Scores]) -> list[dict[str, Any]]:
    """Return the distribution of each score over all clips that were cut, in the same bins for all datasets."""
    names = sorted({name for score in scores for name in score.columns})
    rows = []
    for name in names:
        values = [_drawn_values(score.columns.get(name)) for score in scores]
        reach = np.concatenate(values)
        if not len(reach):
            continue
        lowest, highest = float(reach.min()), float(reach.max())
        edges = bin_edges(lowest, highest, BINS)
        rows.append(
            {
                "name": name,
                "clips": [len(of) for of in values],
                "mean": [float(of.mean()) if len(of) else None for of in values],
                "median": [float(np.median(of)) if len(of) else None for of in values],
                "min_threshold": [score.thresholds.get(f"min_{name}") for score in scores],
                "max_threshold": [score.thresholds.get(f"max_{name}") for score in scores],
                "edges": edges.tolist(),
                "counts": [np.histogram(of, edges)[0].tolist() for of in values]
                if lowest < highest
                else [[len(of)] for of in values],
            }
        )
    return rows


def _drawn_values(column_N: NDArray[np.float64] | None) -> NDArray[np.float64]:
    return np.zeros(0) if column_N is None else column_N[drawn_mask(column_N)]


def _keys(columns: Sequence[pa.ChunkedArray]) -> dict[str, Any]:
    """Return how many keys of samples all datasets have, and which only one has."""
    common = columns[0]
    for other in columns[1:]:
        common = common.filter(pc.is_in(common, other.combine_chunks()))
    only = []
    for index, column in enumerate(columns):
        for other_place, other in enumerate(columns):
            if other_place != index:
                column = column.filter(pc.invert(pc.is_in(column, other.combine_chunks())))
        only.append({"count": len(column), "first": column.slice(0, MOST_KEYS).to_pylist()})
    return {"common": len(common), "only": only}
