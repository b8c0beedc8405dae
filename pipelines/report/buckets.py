"""Buckets of a dataset's report: those given, those of its last report, or those of the package."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import yaml
from pydantic import Field

from reelweave.loader.base.yaml_text import MAX_BYTES
from reelweave.loader.blend import is_blend_file
from reelweave.loader.blend.selection.config import GroupSplit, Quota, Selection, Where
from reelweave.loader.buckets.assignment import BucketConfig
from reelweave.loader.errors import UsageError
from reelweave.loader.settings import Settings
from reelweave.loader.storage import Storage, StorageConfig, open_storage
from reelweave.pipelines.configuration.config import File, Given, given_text, read_given
from reelweave.pipelines.configuration.kept import kept_yaml
from reelweave.pipelines.report.steps_config import StepsConfig

PACKAGED = Path(__file__).parent.parent / "configs" / "report.yaml"
KEPT = "report/buckets.yaml"
"""Path in a dataset of the configuration of its last report; made again at will, like the page beside it."""


class ReportConfig(Settings):
    """Every key of ``reelweave report``, and of step plans of a dataset."""

    buckets: BucketConfig
    where: Where | None = Field(
        None, description="condition on the samples that buckets and steps count, as stream.where; null: all"
    )
    split: GroupSplit | None = Field(
        None,
        description="part of a split by groups that buckets and steps count, as stream.split; null: all samples",
    )
    quota: Quota | None = Field(
        None,
        description="most samples of a group that buckets and steps count, as stream.quota; null: no limit",
    )
    groups: tuple[str, ...] = Field(
        ("source",),
        max_length=8,
        description="columns, scores or attributes whose groups should not stand on both sides of a split",
    )
    max_clips: int = Field(
        240, ge=0, description="most clips shown with a thumbnail, spread evenly over the dataset"
    )
    max_rejected: int = Field(
        8, ge=0, description="most clips shown with a thumbnail that were left out for one reason"
    )
    plan: StepsConfig | None = Field(
        default=None, description="cluster whose steps are planned under every policy; null: none"
    )
    max_lost: int = Field(500, ge=0, description="most rows shown of what was not kept")
    max_mapped: int = Field(
        5000, ge=0, description="most clips on the map of embeddings, spread evenly over the dataset"
    )
    projection: Literal["pca", "umap"] = Field(
        "pca", description="two dimensions of the map; umap keeps neighbours together and needs umap-learn"
    )
    storage: StorageConfig = StorageConfig()

    @property
    def selection(self) -> Selection:
        """Choice among the samples that buckets and steps count."""
        return Selection.of(self.where, self.split, self.quota, "report")


def default_config(storage: StorageConfig) -> ReportConfig:
    """Return the configuration of the package, for a dataset on ``storage``."""
    return ReportConfig(**yaml.safe_load(PACKAGED.read_text()), storage=storage)


def report_config(dataset: str, file: File, overrides: Sequence[str]) -> ReportConfig:
    """Return the configuration of a dataset's report: of a file, else of its last report, else of the package.

    Args:
        dataset: folder or prefix; may be a blend.
        file: YAML, or None.
        overrides: "key=value" each, on top.

    Raises:
        UsageError: names the file or option that is wrong.
    """
    given_values = read_given(file or PACKAGED, overrides)
    if "stream" in given_values.values:
        raise UsageError(
            f"{given_values.name} is a configuration of training: --config takes a file with `buckets:`, those of its"
            " section stream, moved to the left"
        )
    if "buckets" not in given_values.values:
        raise UsageError(
            f"{given_values.name} has no `buckets:`; put frames, sizes and the other keys of buckets below that, each"
            " two spaces to the right, as report/buckets.yaml of a dataset has them"
        )
    packaged = given_values.validate(ReportConfig)
    if file or is_blend_file(dataset):
        return packaged
    kept_values = _find_kept(open_storage(dataset, packaged.storage), overrides)
    return kept_values.validate(ReportConfig) if kept_values else packaged


def kept_config(folder: Storage, storage: StorageConfig) -> ReportConfig:
    """Return the configuration of a dataset's last report, or that of the package.

    Raises:
        UsageError: what is kept there is wrong.
    """
    kept_values = _find_kept(folder, ())
    return (
        kept_values.validate(ReportConfig).model_copy(update={"storage": storage})
        if kept_values
        else default_config(storage)
    )


def keep(folder: Storage, config: ReportConfig) -> None:
    """Write the configuration of a report beside its page."""
    folder.write(KEPT, buckets_yaml(config, KEPT).encode())


def buckets_yaml(config: ReportConfig, name: str) -> str:
    """Return a report's configuration as YAML for ``--config``, for a file of this name."""
    command = ["report", "DATASET", "--config", name]
    # A selection is of one report: later ones, such as that of the next update, count all samples.
    return kept_yaml(config, command, leave_out=frozenset({"storage", "where", "split", "quota"}))


def _find_kept(folder: Storage, overrides: Sequence[str]) -> Given | None:
    info = folder.stat(KEPT)
    if info is None:
        return None
    if info.size > MAX_BYTES:
        raise UsageError(
            f"{folder.uri(KEPT)} is larger than {MAX_BYTES >> 10} KiB; give buckets with --config"
        )
    return given_text(folder.read(KEPT), folder.uri(KEPT), overrides)
