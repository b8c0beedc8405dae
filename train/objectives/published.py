"""Differences of an objective to what a published model was trained with, as the file of its scheduler says."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from reelweave.train.config.objective import ConstantShift, DDPMConfig, EDMConfig, FlowConfig

_DDPM = {
    "prediction": "prediction_type",
    "schedule": "beta_schedule",
    "timesteps": "num_train_timesteps",
    "beta_start": "beta_start",
    "beta_end": "beta_end",
    "zero_terminal_snr": "rescale_betas_zero_snr",
    "snr_shift": "snr_shift_scale",
}
_EDM = {name: name for name in ("sigma_data", "sigma_min", "sigma_max", "rho")}
_VALUES = {"v_prediction": "v", "squaredcos_cap_v2": "cosine"}
_SHIFTS = ("flow_shift", "shift")  # of multistep solvers, and of Euler's


class Compared(NamedTuple):
    """Key of an objective that a scheduler has a value of.

    Attributes:
        key: key below ``objective``.
        configured: value of the configuration.
        published: value of the scheduler, in our words.
        default: value where a configuration leaves the key out.
    """

    key: str
    configured: Any
    published: Any
    default: Any

    @property
    def differs(self) -> bool:
        return bool(self.configured != self.published)


def compare(config: FlowConfig | EDMConfig | DDPMConfig, scheduler: Mapping[str, Any]) -> list[Compared]:
    """Compare an objective with a scheduler of diffusers.

    A shift that depends on the number of tokens is a choice, and is not compared.

    Args:
        config: configuration of the objective.
        scheduler: values of ``scheduler_config.json``; those that it lacks are not compared.
    """
    if isinstance(config, FlowConfig):
        if not isinstance(config.shift, ConstantShift):
            return []
        values = [("shift.factor", config.shift.factor, name, 1.0) for name in _SHIFTS]
    else:
        names = _DDPM if isinstance(config, DDPMConfig) else _EDM
        fields = type(config).model_fields
        values = [(key, getattr(config, key), name, fields[key].default) for key, name in names.items()]
    cosine = isinstance(config, DDPMConfig) and scheduler.get("beta_schedule") == "squaredcos_cap_v2"
    return [
        Compared(key, configured, _in_our_words(scheduler[name]), default)
        for key, configured, name, default in values
        if scheduler.get(name) is not None and not (cosine and key in ("beta_start", "beta_end"))
    ]


def _in_our_words(value: Any) -> Any:
    return _VALUES.get(value, value) if isinstance(value, str) else value
