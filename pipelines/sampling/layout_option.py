"""The option ``--layout``: degrees of sampling, or a layout of training."""

from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError

from reelweave.loader.errors import UsageError
from reelweave.loader.settings import Settings
from reelweave.train.config.parallel import ParallelConfig
from reelweave.train.sampling.config import SampleLayoutConfig

TOGETHER, PROMPTS, TRAINING = "together", "prompts", "training"
_OF_TRAINING = ("dp_replicate", "dp_shard", "tp", "pp")
_OF_BOTH = ("ring", "ulysses")

Kind = TypeVar("Kind", bound=Settings)


class InTraining(NamedTuple):
    """Layout of training, whose ranks hold parts of the weights.

    Attributes:
        parallel: its degrees; None: those of the run.
    """

    parallel: ParallelConfig | None = None


def read_layout(text: str) -> SampleLayoutConfig | InTraining | None:
    """Return the layout that an option names; None: the advisor's.

    Raises:
        UsageError: there is no such degree, or it belongs to another kind of layout than its neighbours.
    """
    if text == TOGETHER:
        return None
    if text == PROMPTS:
        return SampleLayoutConfig()
    if text == TRAINING:
        return InTraining()
    values = _values(text)
    if not values.keys() & {*_OF_TRAINING}:
        return _validate(SampleLayoutConfig, values, tuple(SampleLayoutConfig.model_fields))
    degrees = (*_OF_TRAINING, *_OF_BOTH)
    if unknown := sorted(values.keys() - {*degrees}):
        raise UsageError(
            f"--layout {text}: {unknown[0]} is no degree of training, of which there are {', '.join(degrees)}; the two"
            " kinds do not mix"
        )
    if values.get("dp_shard") == "rest":
        values.setdefault("dp_replicate", "1")
    return InTraining(_validate(ParallelConfig, values, degrees))


def _values(text: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for part in text.split(","):
        key, equals, value = part.strip().partition("=")
        if not equals:
            raise UsageError(
                f"--layout {text}: {part!r} is no degree; take together, prompts, training, or such as"
                " cfg=2,ulysses=4 or tp=2,dp_shard=4"
            )
        *outer, name = key.split(".")
        inner = values
        for entry in outer:
            inner = inner.setdefault(entry, {})
        inner[name] = value.split(":") if ":" in value else value
    return values


def _validate(kind: type[Kind], values: dict[str, Any], valid_names: tuple[str, ...]) -> Kind:
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"][:1]))
        raise UsageError(
            f"--layout {where}={first['input']}: {first['msg']}; the degrees are {', '.join(valid_names)}"
        ) from error
