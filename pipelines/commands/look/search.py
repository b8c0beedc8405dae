"""Find clips of a dataset by words, or by an example: a sample's key, a picture or a video."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from reelweave.loader.dataset import Dataset, open_dataset
from reelweave.loader.errors import UsageError
from reelweave.loader.text import pluralize
from reelweave.pipelines.configuration.storage_options import add_storage_arguments, storage_config
from reelweave.pipelines.report.clips.lookup import find_keys
from reelweave.pipelines.terminal.console import print_json, stdout, table

if TYPE_CHECKING:
    from reelweave.curate.models.embed import EmbedConfig
    from reelweave.curate.search.search import ClipSearch, Hit

_MAX_CAPTION = 120


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `reelweave search`."""
    parser.add_argument("dataset", metavar="DATASET", help="folder or s3:// prefix")
    parser.add_argument("words", metavar="WORDS", nargs="?", help="words to search by")
    parser.add_argument(
        "--like", metavar="EXAMPLE", help="example to search by: key of a sample, picture or video file"
    )
    parser.add_argument(
        "--top", type=int, default=10, metavar="N", help="number of clips to print (default: 10)"
    )
    parser.add_argument("--model", metavar="MODEL", help="place of the embeddings' model on this machine")
    parser.add_argument("--pretrained", metavar="FILE", help="weights of MODEL, if MODEL is a name")
    parser.add_argument(
        "--index",
        action="store_true",
        help="make the search index, so that a search reads near embeddings alone; it may miss some of the nearest",
    )
    parser.add_argument("--exact", action="store_true", help="compare with all embeddings, without the index")
    add_storage_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Search and print the nearest clips, best first."""
    from reelweave.curate.search.search import ClipSearch

    # Exactly one of words, an example, and making the index.
    if options.index and options.words is None and options.like is None:
        return _make_index(options)
    if options.index:
        raise UsageError("--index makes the search index and searches nothing; search without it afterwards")
    if (options.words is None) == (options.like is None):
        raise UsageError('give either words, reelweave search DATASET "red car", or --like KEY')
    if options.top < 1:
        raise UsageError(f"--top {options.top} asks for nothing; give 1 or more")
    dataset = open_dataset(options.dataset, storage_config(options))
    search = ClipSearch(dataset, exact=options.exact)
    hits = _hits(dataset, search, options)
    described = [_describe_hit(dataset, hit) for hit in hits]
    if options.json:
        print_json({"dataset": dataset.storage.root, "searched": search.searched, "hits": described})
        return 0
    columns = ["key", "score", "source", "span s", "caption"]
    rows = [
        (
            hit["key"],
            f"{hit['score']:.3f}",
            hit["source"],
            f"{hit['start_s']:.2f}-{hit['end_s']:.2f}",
            _shorten_caption(hit["caption"]),
        )
        for hit in described
    ]
    stdout().print(table(f"nearest of {pluralize(search.searched, 'clip')}", columns, rows))
    return 0


def _make_index(options: argparse.Namespace) -> int:
    """Make the search index of a dataset."""
    from reelweave.curate.search.cell_file import make_search_index

    index = make_search_index(open_dataset(options.dataset, storage_config(options)))
    if options.json:
        print_json({"dataset": options.dataset, "vectors": len(index), "cells": len(index.cells.fine)})
    else:
        text = f"{options.dataset}: search index of {len(index)} embeddings made (cells: {len(index.cells.fine)})"
        stdout().print(text, markup=False, soft_wrap=True)
    return 0


def _hits(dataset: Dataset, search: "ClipSearch", options: argparse.Namespace) -> "list[Hit]":
    from reelweave.curate.models.embed import ClipEmbedder

    if options.like is not None:
        if dataset.row_number(options.like) is not None:
            return search.by_key(options.like, options.top)
        # As `show` and `extract` do, the beginning of a single key names it; a file of that name goes first.
        keys = [] if Path(options.like).exists() else find_keys(dataset, options.like)
        if len(keys) == 1 and dataset.row_number(keys[0]) is not None:
            return search.by_key(keys[0], options.top)
    config = _embed_config(dataset, options)
    if options.words is not None and config.backend != "open_clip":
        raise UsageError(
            f"the embeddings of {options.dataset} are of the backend {config.backend!r}, which knows no words; search"
            " with --like, or curate again with --set embed.backend=open_clip and a model"
        )
    embedder = ClipEmbedder(config)
    try:
        embedder.check()
    except UsageError as error:
        raise UsageError(f"{error}; --model and --pretrained say where it lies on this machine") from error
    if options.like is not None:
        return search.by_file(options.like, embedder, options.top, storage_config(options))
    return search.by_words(options.words, embedder, options.top)


def _embed_config(dataset: Dataset, options: argparse.Namespace) -> "EmbedConfig":
    """Return the configuration of the dataset's embeddings, with the model's place from the options."""
    from pydantic import ValidationError

    from reelweave.curate.models.embed import EmbedConfig

    # The manifest says which model embedded the clips; whoever wrote it must not choose what is loaded.
    curate = dataset.manifest.config.get("curate")
    embed = curate.get("embed") if isinstance(curate, dict) else None
    if embed is None and options.model is None:
        raise UsageError(
            f"the manifest of {options.dataset} does not say how its embeddings were made;"
            " name their model with --model"
        )
    values: dict[str, Any] = dict(embed) if isinstance(embed, dict) else {"backend": "open_clip"}
    if options.model is None and values.get("backend") == "open_clip":
        _refuse_other_places(values, options)
    # An option says where that model lies here.
    if options.model is not None:
        values |= {"model": options.model, "pretrained": options.pretrained or ""}
    elif options.pretrained is not None:
        values["pretrained"] = options.pretrained
    try:
        config = EmbedConfig.model_validate(values | {"device": "auto"})
    except ValidationError as error:
        raise UsageError(
            f"the manifest of {options.dataset} says how its embeddings were made in a way this version does not know:"
            f" {error.errors()[0]['loc']}"
        ) from error
    if config.backend == "none":
        raise UsageError(
            f"{options.dataset} was curated with embed.backend=none; curate again with another backend to search it"
        )
    return config


def _refuse_other_places(embed: dict[str, Any], options: argparse.Namespace) -> None:
    """Refuse a model or weights that a manifest names by a place: whoever made the dataset would choose what is loaded.

    Names in open_clip's own list, and tags of its own training runs, are no place.
    """
    from reelweave.curate.models.open_clip_model import listed_names

    model, pretrained = str(embed.get("model")), str(embed.get("pretrained") or "")
    if model not in listed_names():
        raise UsageError(
            f"the manifest of {options.dataset} names the model {model}, which is loaded only where you name it; look"
            f" what lies there, then search with --model {model}"
        )
    import open_clip

    if options.pretrained is None and pretrained not in open_clip.list_pretrained_tags_by_model(model):
        raise UsageError(
            f"the manifest of {options.dataset} names the weights {pretrained!r}, which are loaded only where you name"
            f" them; look what they are, then search with --pretrained {pretrained or 'FILE'}"
        )


def _describe_hit(dataset: Dataset, hit: "Hit") -> dict[str, Any]:
    names = ("key", "source", "start_s", "end_s", "caption")
    [row] = dataset.rows_at(np.array([hit.row_number]), names).to_pylist()
    return {"score": round(hit.score, 6), **row}


def _shorten_caption(caption: str) -> str:
    return caption if len(caption) <= _MAX_CAPTION else caption[: _MAX_CAPTION - 1] + "…"
