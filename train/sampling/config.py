"""Configuration of sampling; importing it loads no torch."""

from typing import Literal

from pydantic import Field

from loader.settings import Settings

Solver = Literal["euler", "heun"]


class SampleConfig(Settings):
    """Size, solver and guidance of a sampled video."""

    frames: int = Field(ge=1, description="number of frames")
    height: int = Field(ge=1, description="height in pixels")
    width: int = Field(ge=1, description="width in pixels")
    steps: int = Field(50, ge=1, description="solver steps from noise to video")
    solver: Solver = Field(
        "euler", description="ODE solver; heun evaluates the model twice per step, with a smaller error"
    )
    guidance: float = Field(
        5.0,
        ge=0,
        description="classifier-free guidance scale; 1 is the caption alone, at half the cost",
    )
    seed: int = Field(0, ge=0, lt=2**63, description="seed of the noise")
