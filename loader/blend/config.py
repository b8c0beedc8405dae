"""What a blend file may say: Megatron-Energon's MetadatasetV2, and a few keys of our own."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, model_validator

from loader.blend.subset import Span, span_of

MAX_EPOCH_SAMPLES = 2**31

Factor = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False, strict=True)]


class Subset(BaseModel, frozen=True, extra="forbid"):
    """A range of samples, in the order they have in the shards."""

    range: tuple[Any, Any] = Field(
        description="[0%, 80%], or numbers of samples as [100, 200] or [100, end]; the end is not included"
    )

    @model_validator(mode="after")
    def _readable(self) -> Self:
        span_of(*self.range)
        return self

    @property
    def span(self) -> Span:
        """The range in numbers."""
        return span_of(*self.range)


class Node(BaseModel, frozen=True, extra="forbid"):
    """A dataset, another blend file, or a blend of nodes; exactly one of path, blend and blend_epochized."""

    path: str | None = Field(
        default=None,
        description="folder or s3:// URI of a dataset, or another blend file (.yaml); relative to this file",
    )
    blend: tuple["WeightedNode", ...] | None = Field(
        default=None, description="nodes that are mixed by weight"
    )
    blend_epochized: tuple["RepeatedNode", ...] | None = Field(
        default=None, description="nodes of which each sample comes so and so often in an epoch"
    )
    split_part: str | None = Field(
        default=None,
        description="which part of the dataset, train or val; null is the split that was asked for",
    )
    subset: Subset | None = Field(default=None, description="only a range of the samples")
    subflavors: dict[str, Any] = Field(
        default_factory=dict, description="facts about the samples, to read; outer ones replace inner ones"
    )
    name: Annotated[str, Field(pattern=r"^[^/]+$")] | None = Field(
        default=None,
        description="for reports and curricula; null is the last part of the path (not in Energon)",
    )
    weight_by: Literal["samples", "tokens"] | None = Field(
        default=None, description="what the weights of a blend count; null is samples (not in Energon)"
    )
    epoch_samples: Annotated[int, Field(gt=0, le=MAX_EPOCH_SAMPLES)] | None = Field(
        default=None,
        description="samples of an epoch of a blend; null is as many as its nodes hold together (not in Energon)",
    )
    shuffle_over_epochs_multiplier: Literal[1] = Field(
        default=1, description="of Energon; an epoch here never leaves a sample out in favour of another"
    )

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        given = [key for key in ("path", "blend", "blend_epochized") if getattr(self, key) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none of them"
            raise ValueError(f"a node has exactly one of path, blend and blend_epochized; here is {found}")
        if not (self.path or self.blend or self.blend_epochized):
            raise ValueError(f"{given[0]} is empty")
        for key, home in (
            ("split_part", "path"),
            ("subflavors", "path"),
            ("weight_by", "blend"),
            ("epoch_samples", "blend"),
        ):
            if key in self.model_fields_set and given != [home]:
                raise ValueError(f"{key} belongs to a node with {home}; here is {given[0]}")
        return self


class WeightedNode(Node, frozen=True, extra="forbid"):
    """A node of a blend."""

    weight: Factor = Field(default=1.0, description="share of the blend, over the sum of its weights")


class RepeatedNode(Node, frozen=True, extra="forbid"):
    """A node of a blend_epochized."""

    repetitions: Factor = Field(default=1.0, description="how often a sample comes in an epoch; also 0.5")


class BlendFile(BaseModel, frozen=True, extra="forbid"):
    """A whole file."""

    splits: dict[str, Node] = Field(min_length=1, description="a node for train, val, ...")
