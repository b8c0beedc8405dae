"""Construction of objectives from their configuration."""

from train.config.objective import DDPMConfig, EDMConfig, FlowConfig
from train.objectives.ddpm import DDPM
from train.objectives.edm import EDM
from train.objectives.flow import RectifiedFlow
from train.objectives.level import Objective


def build_objective(config: FlowConfig | EDMConfig | DDPMConfig) -> Objective:
    if isinstance(config, FlowConfig):
        return RectifiedFlow(config)
    if isinstance(config, EDMConfig):
        return EDM(config)
    return DDPM(config)
