"""Resolution of a blend file to its leaves: nested files, subsets of subsets, and each dataset opened once."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from reelweave.loader.base.arrays import Flags, IndexArray
from reelweave.loader.blend.config import BlendFile, Node, RepeatedNode, WeightedNode
from reelweave.loader.blend.reading import beside, canonical_name, is_blend_file, read_blend_file, speaks_for
from reelweave.loader.blend.selection.choose import choose, rows_digest
from reelweave.loader.blend.selection.config import PARTS, Selection
from reelweave.loader.blend.subset import SampleRange, within
from reelweave.loader.blend.tree import BlendNode, Group, Leaf, check_weights, exact
from reelweave.loader.dataset import Dataset
from reelweave.loader.errors import RunError, UsageError
from reelweave.loader.storage import Storage, StorageConfig, open_storage
from reelweave.loader.storage.names import redact_uri

MAX_LEAVES = 1000
MAX_NESTED = 16
"""Maximum nesting of blends and files."""


@dataclass(frozen=True)
class ResolvedBlend:
    """Resolved content of a blend file."""

    datasets: tuple[Dataset, ...]
    leaves: tuple[Leaf, ...]
    tree: int | Group


def resolve(uri: str, split: str, config: StorageConfig) -> ResolvedBlend:
    """Open all datasets of a blend file's split.

    Raises:
        UsageError: a file is invalid, includes itself, or takes samples beyond the dataset's.
        RunError: a named dataset does not exist or is unfinished.
    """
    resolver = _Resolver(config)
    file = canonical_name(uri)
    tree = resolver.split(file, split, _NodeContext(named=redact_uri(uri)))
    return ResolvedBlend(tuple(resolver.datasets.values()), tuple(resolver.leaves), tree)


def leaf_rows(
    dataset: Dataset, split: str | None, selection: Selection, among: Flags | None = None
) -> IndexArray:
    """Return the selected index rows of a split in the order of the shards, in which ranges count.

    Args:
        dataset: the dataset.
        split: split of the dataset; None for all samples.
        selection: choice among its samples.
        among: bool [N], True for the rows that it chooses among; None for all.

    Raises:
        UsageError: no sample has a field that the selection names.
    """
    if split is not None and not selection:
        ordered = split_rows(dataset, split)
        return ordered if among is None else ordered[among[ordered]]
    return _by_shard(dataset, choose(dataset, selection, split, among).rows)


def split_rows(dataset: Dataset, split: str) -> NDArray[np.int64]:
    """Return the index rows of a split in the order of the shards, in which ranges count.

    One process of a machine computes them for all, and reads only the index's split column.
    """

    def make() -> dict[str, NDArray[np.int64]]:
        rows_n = np.flatnonzero(
            pc.equal(dataset.read_columns("index", ["split"]).column("split"), split).to_numpy()
        )
        return {"rows": _by_shard(dataset, rows_n)}

    name = hashlib.sha256(split.encode()).hexdigest()[:16]
    return dataset.node.arrays(f"{dataset.fingerprint}.split-{name}", make)["rows"]


def _by_shard(dataset: Dataset, rows_n: IndexArray) -> IndexArray:
    index = dataset.plan_index
    ordered: IndexArray = rows_n[np.lexsort((index.offset[rows_n], index.shard[rows_n]))]
    return ordered


@dataclass(frozen=True)
class _NodeContext:
    """Context of a node in the tree, with inherited values.

    Attributes:
        named: file and key, for messages.
        name: name of the leaf or node; "" for the root.
        span: range of everything below that is kept; None for all.
        subflavors: metadata of the enclosing nodes.
        selection: selections of the enclosing nodes.
        files: (file, split) pairs that led here.
        depth: number of enclosing blends and files.
        listed_in: remote blend file that names the node; "" for local files.
    """

    named: str
    name: str = ""
    span: SampleRange | None = None
    subflavors: dict[str, Any] = field(default_factory=dict)
    selection: Selection = field(default_factory=Selection)
    files: tuple[tuple[str, str], ...] = ()
    depth: int = 0
    listed_in: str = ""


class _Resolver:
    def __init__(self, config: StorageConfig) -> None:
        self.datasets: dict[str, Dataset] = {}
        self.leaves: list[Leaf] = []
        self._config = config
        self._files: dict[str, BlendFile] = {}
        self._pools: dict[tuple[str, str | None, Selection], tuple[int, str]] = {}

    def split(self, file: str, split: str, context: _NodeContext) -> int | Group:
        """Return the tree below a split of a file."""
        if (file, split) in context.files:
            raise UsageError(f"{context.named} leads back to {redact_uri(file)}, in which it stands")
        if file not in self._files:
            try:
                self._files[file] = read_blend_file(file, self._config, context.listed_in)
            except UsageError as error:
                raise UsageError(f"{context.named}: {error}" if context.files else str(error)) from error
        splits = self._files[file].splits
        if split not in splits:
            raise UsageError(
                f"{redact_uri(file)} has no split {split}; it has {', '.join(splits)} (from {context.named})"
            )
        inner = replace(
            context,
            named=f"{redact_uri(file)}: splits.{split}",
            files=(*context.files, (file, split)),
            depth=context.depth + 1,
        )
        return self._node(splits[split], file, split, inner)

    def _node(self, node: Node, file: str, split: str, context: _NodeContext) -> int | Group:
        if context.depth > MAX_NESTED:
            raise UsageError(f"{context.named} is nested in more than {MAX_NESTED} blends and files")
        # What the node names: a group of nodes, another blend, or one dataset.
        uri = _uri(file, node.path, f"{context.named}.path") if node.path else None
        leaf = uri is not None and not is_blend_file(uri)
        try:
            span = within(node.subset.span, context.span) if node.subset else context.span
            if not leaf:
                within(None, span)
        except ValueError as error:
            raise UsageError(f"{context.named}.subset: {error}") from error
        try:
            own = Selection.of(node.where, node.split, node.quota, context.named)
            context = replace(context, selection=context.selection.within(own))
        except UsageError as error:
            raise UsageError(f"{context.named} {error}") from error
        if uri is None:
            return self._group(node, file, split, context, span)
        # What its inner nodes take over. The outermost file that names an address answers for it.
        subflavors = {**node.subflavors, **context.subflavors}
        inner = replace(
            context,
            named=f"{context.named}.path",
            span=span,
            subflavors=subflavors,
            listed_in=speaks_for(file) or context.listed_in,
        )
        part = node.split_part or split
        if not leaf:
            return self.split(canonical_name(uri), part, inner)
        by_groups = context.selection.split
        if by_groups is None:
            return self._leaf(uri, part, inner)
        # Groups decide the part, whatever the index says, unless the node asks for a split of the index, too.
        if by_groups.part is None:
            if split not in PARTS:
                raise UsageError(
                    f"{context.named}.split has the parts {' and '.join(PARTS)}: set part, since {split} is none"
                )
            by_groups = by_groups.model_copy(update={"part": split})
        inner = replace(inner, selection=replace(inner.selection, split=by_groups))
        return self._leaf(uri, node.split_part, inner)

    def _group(
        self, node: Node, file: str, split: str, context: _NodeContext, span: SampleRange | None
    ) -> Group:
        key = "blend" if node.blend else "blend_epochized"
        nodes: Sequence[WeightedNode | RepeatedNode] = node.blend or node.blend_epochized or ()
        parts = []
        for index, (child, child_name) in enumerate(
            zip(nodes, _names(nodes, file, context.named), strict=True)
        ):
            name = f"{context.name}/{child_name}" if context.name else child_name
            named = f"{context.named}.{key}.{index}"
            inner = replace(context, named=named, name=name, span=span, depth=context.depth + 1)
            factor = child.weight if isinstance(child, WeightedNode) else child.repetitions
            parts.append(BlendNode(name, exact(factor), self._node(child, file, split, inner)))
        by = (node.weight_by or "samples") if node.blend else "repetitions"
        try:
            check_weights(parts, by)
        except UsageError as error:
            raise UsageError(f"{context.named}.{key}: {error}") from error
        return Group(tuple(parts), by, node.epoch_samples)

    def _dataset(self, storage: Storage) -> Dataset:
        """Return the dataset of a storage, opened once."""
        known = self.datasets.get(storage.root)
        if known is None:
            known = self.datasets[storage.root] = Dataset(storage, self._config)
        # Names of web datasets lack the query, which may be a signature or may choose a dataset.
        elif _query_of(known.storage) != _query_of(storage) and (
            Dataset(storage, self._config).manifest != known.manifest
        ):
            raise UsageError(
                f"{storage.root} names two datasets, whose addresses differ in the query alone; give them different"
                " paths"
            )
        return known

    def _leaf(self, uri: str, split: str | None, context: _NodeContext) -> int:
        if len(self.leaves) == MAX_LEAVES:
            raise UsageError(f"{context.named}: a blend may have {MAX_LEAVES} datasets")
        try:
            # A dataset that several leaves name is opened once, and a split counted once.
            storage = open_storage(uri, self._config, context.listed_in)
            dataset, selection = self._dataset(storage), context.selection
            if (storage.root, split, selection) not in self._pools:
                rows = leaf_rows(dataset, split, selection)
                digest = rows_digest(np.sort(rows)) if selection else ""
                self._pools[storage.root, split, selection] = len(rows), digest
        except (UsageError, RunError) as error:
            raise type(error)(f"{context.named}: {error}") from error
        samples, digest = self._pools[storage.root, split, selection]
        # The leaf's range of the split's samples.
        span = context.span or SampleRange()
        try:
            start, stop = span.of(samples)
        except ValueError as error:
            raise UsageError(
                f"{context.named}: the subset {error} in {_describe_pool(uri, split, selection)}"
            ) from error
        if start == stop:
            raise UsageError(
                f"{context.named} takes no sample; {_describe_pool(uri, split, selection)} has {samples}"
            )
        dataset_index = list(self.datasets).index(storage.root)
        name = context.name or _last(uri)
        self.leaves.append(
            Leaf(name, dataset_index, split, start, stop, context.subflavors, span, selection, digest)
        )
        return len(self.leaves) - 1


def _describe_pool(uri: str, split: str | None, selection: Selection) -> str:
    pool = redact_uri(uri) if split is None else f"split {split} of {redact_uri(uri)}"
    return f"{pool} ({selection.words})" if selection else pool


def _uri(file: str, path: str, named: str) -> str:
    try:
        return beside(file, path)
    except UsageError as error:
        raise UsageError(f"{named}: {error}") from error


def _names(nodes: Sequence[Node], file: str, named: str) -> list[str]:
    """Return the names of siblings; equal names all get their number as a suffix."""
    names = [
        node.name or (_last(_uri(file, node.path, f"{named}.path")) if node.path else str(index))
        for index, node in enumerate(nodes)
    ]
    counts = Counter(names)
    return [name if counts[name] == 1 else f"{name}[{index}]" for index, name in enumerate(names)]


def _last(uri: str) -> str:
    """Return the last part of a path, without the ending of a blend file."""
    last = redact_uri(uri).rstrip("/").rpartition("/")[2]
    return last.rpartition(".")[0] if is_blend_file(last) else last


def _query_of(storage: Storage) -> str:
    return str(getattr(storage, "query", ""))  # of the web, whose module is loaded where it is used
