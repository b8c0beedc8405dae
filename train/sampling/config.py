"""The configuration of sampling; importing it loads no torch."""

from typing import Literal

from pydantic import BaseModel, Field

Solver = Literal["euler", "heun"]


class SampleConfig(BaseModel, frozen=True, extra="forbid"):
    """How a video is sampled."""

    frames: int = Field(ge=1, description="frames of the video")
    height: int = Field(ge=1, description="pixels")
    width: int = Field(ge=1, description="pixels")
    steps: int = Field(50, ge=1, description="steps from noise to video")
    solver: Solver = Field("euler", description="heun asks the model twice a step and errs less")
    guidance: float = Field(
        5.0,
        ge=0,
        description="how far to go from no caption to the caption; 1 is the caption alone, at half the cost",
    )
    seed: int = Field(0, ge=0, lt=2**63, description="decides the noise")
