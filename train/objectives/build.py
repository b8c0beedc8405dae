"""Construction of objectives from their configuration."""

from reelweave.train.config.objective import DDPMConfig, EDMConfig, FlowConfig
from reelweave.train.objectives.ddpm import DDPM
from reelweave.train.objectives.edm import EDM
from reelweave.train.objectives.flow import RectifiedFlow
from reelweave.train.objectives.level import Objective


def build_objective(
    config: FlowConfig | EDMConfig | DDPMConfig, times: tuple[float, float] = (0.0, 1.0)
) -> Objective:
    """Build the objective of a configuration.

    Args:
        config: its configuration.
        times: least and greatest time t that the model is for; flow matching alone has models for less than all.
    """
    if isinstance(config, FlowConfig):
        return RectifiedFlow(config, times)
    if isinstance(config, EDMConfig):
        return EDM(config)
    return DDPM(config)
