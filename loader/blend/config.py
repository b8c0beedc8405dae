"""Keys of a blend file: Megatron-Energon's MetadatasetV2, and a few keys of our own."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from reelweave.loader.blend.selection.config import GroupSplit, Quota, Where
from reelweave.loader.blend.subset import SampleRange, span_of
from reelweave.loader.settings import Settings

MAX_EPOCH_SAMPLES = 2**31

Factor = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False, strict=True)]


class Subset(Settings):
    """Range of samples, in the order of the shards."""

    range: tuple[Any, Any] = Field(
        description="[0%, 80%], or numbers of samples as [100, 200] or [100, end]; the end is exclusive"
    )

    @model_validator(mode="after")
    def _readable(self) -> Self:
        span_of(*self.range)
        return self

    @property
    def span(self) -> SampleRange:
        """Parsed form of the key `range`."""
        return span_of(*self.range)


class Node(Settings):
    """Dataset, other blend file, or blend of nodes; exactly one of path, blend and blend_epochized."""

    path: str | None = Field(
        default=None,
        description="folder or s3:// URI of a dataset, or of another blend file (.yaml), relative to this file",
    )
    blend: tuple["WeightedNode", ...] | None = Field(default=None, description="nodes mixed by weight")
    blend_epochized: tuple["RepeatedNode", ...] | None = Field(
        default=None, description="nodes mixed by repetitions per epoch"
    )
    split_part: str | None = Field(
        default=None,
        description="split of the dataset, train or val; null: the requested split",
    )
    subset: Subset | None = Field(default=None, description="range of the node's samples; null: all")
    subflavors: dict[str, Any] = Field(
        default_factory=dict, description="metadata attached to the samples; outer nodes override inner ones"
    )
    where: Where | None = Field(
        default=None, description="condition on the node's samples; null: none (not in Energon)"
    )
    split: GroupSplit | None = Field(
        default=None, description="split of the node's samples by groups; null: none (not in Energon)"
    )
    quota: Quota | None = Field(
        default=None, description="most samples of a group that are drawn; null: no limit (not in Energon)"
    )
    name: Annotated[str, Field(pattern=r"^[^/]+$")] | None = Field(
        default=None,
        description="name in reports and curricula; null: last part of the path (not in Energon)",
    )
    weight_by: Literal["samples", "tokens"] | None = Field(
        default=None, description="unit of a blend's weights; null: samples (not in Energon)"
    )
    epoch_samples: Annotated[int, Field(gt=0, le=MAX_EPOCH_SAMPLES)] | None = Field(
        default=None,
        description="samples drawn from a blend per epoch; null: the number its nodes hold (not in Energon)",
    )
    shuffle_over_epochs_multiplier: Literal[1] = Field(
        default=1, description="accepted for Energon; an epoch never trades one sample for another"
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        kinds = [key for key in ("path", "blend", "blend_epochized") if getattr(self, key) is not None]
        if len(kinds) != 1:
            listed = " and ".join(kinds) or "none of them"
            raise ValueError(f"a node has exactly one of path, blend and blend_epochized; here is {listed}")
        if not (self.path or self.blend or self.blend_epochized):
            raise ValueError(f"{kinds[0]} is empty")
        for key, home in (
            ("split_part", "path"),
            ("subflavors", "path"),
            ("weight_by", "blend"),
            ("epoch_samples", "blend"),
        ):
            if key in self.model_fields_set and kinds != [home]:
                raise ValueError(f"{key} belongs to a node with {home}; here is {kinds[0]}")
        return self


class WeightedNode(Node):
    """Node of a `blend`, with its weight."""

    weight: Factor = Field(default=1.0, description="share of the blend, relative to the sum of its weights")


class RepeatedNode(Node):
    """Node of a `blend_epochized`, with its repetitions."""

    repetitions: Factor = Field(
        default=1.0, description="times each sample comes per epoch; fractions allowed"
    )


class BlendFile(Settings):
    """Content of a blend file."""

    splits: dict[str, Node] = Field(min_length=1, description="root node of each split: train, val, ...")
