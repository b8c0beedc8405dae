"""The section ``stages`` of a configuration: each stage checked by the model of its own code."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from reelweave.curate.filters.config import FilterConfig
from reelweave.curate.filters.decision import score_of
from reelweave.curate.models.custom.code import StageCode, find_code
from reelweave.curate.models.custom.types import CustomStage, StageConfig
from reelweave.loader.errors import UsageError

NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
"""Names of stages and of scores."""

_MEASURED = ("motion_source", "has_audio", "bar_top_px", "bar_bottom_px", "bar_left_px", "bar_right_px")
"""Scores of ours that have no threshold."""


def configure_stages(values: Any) -> Any:
    """Return a configuration for each stage, of the model that its code names.

    Raises:
        UsageError: the code of a stage cannot be found or imported, or two stages give one score.
        ValidationError: a key is unknown or has a wrong value.
    """
    if not isinstance(values, Mapping):
        return values
    stage_configs: dict[Any, Any] = {}
    wrong: list[InitErrorDetails] = []
    for name, stage_values in values.items():
        try:
            stage_configs[name] = (
                stage_values
                if isinstance(stage_values, StageConfig)
                else _configure_stage(name, stage_values)
            )
        except _WrongError as error:
            wrong += error.details
    if wrong:
        raise ValidationError.from_exception_data("stages", wrong)
    _check_scores(stage_configs)
    return stage_configs


def _configure_stage(name: object, values: object) -> StageConfig:
    values = {} if values is None else values
    if not isinstance(name, str) or not NAME.fullmatch(name):
        reason = "a stage's name has lower-case letters, digits and underscores, a letter first, at most 40"
        raise _WrongError([_detail((str(name),), values, reason)])
    if not isinstance(values, dict) or not isinstance(use := values.get("use") or "", str):
        reason = "a stage is a mapping of its keys, and `use` is text"
        raise _WrongError([_detail((name,), values, reason)])
    code = find_code(name, use)
    model = stage_class(code).Config
    try:
        config = model.model_validate(values)
    except ValidationError as error:
        raise _WrongError(list(_locate_error(name, error, model))) from error
    config._code = code
    return config


def stage_class(code: StageCode) -> type[CustomStage]:
    """Import the code of a stage.

    Raises:
        UsageError: it fails, or is no stage.
    """
    stage_type = code.load()
    wrong = None
    if not issubclass(stage_type, CustomStage):
        wrong = "does not derive from reelweave.CustomStage"
    elif stage_type.__abstractmethods__:
        wrong = f"lacks {', '.join(sorted(stage_type.__abstractmethods__))}"
    elif not (isinstance(stage_type.Config, type) and issubclass(stage_type.Config, StageConfig)):
        wrong = "has a Config that does not derive from reelweave.StageConfig"
    elif not all(isinstance(score, str) and NAME.fullmatch(score) for score in stage_type.scores):
        wrong = "has a score whose name is other than lower-case letters, digits and underscores"
    if wrong:
        raise UsageError(f"stages.{code.stage}: {code.place} {wrong}")
    return stage_type


def check_thresholds(filters: FilterConfig, stages: Mapping[str, StageConfig]) -> None:
    """Check that thresholds on other scores than ours name those of stages.

    Raises:
        ValidationError: a threshold is of no score.
    """
    scores = [score for stage_config in stages.values() for score in stage_class(stage_config.code).scores]
    valid_keys = {f"{bound}_{score}" for bound in ("min", "max") for score in scores}
    wrong: list[InitErrorDetails] = [
        {"type": "extra_forbidden", "loc": (key,), "input": value}
        for key, value in (filters.model_extra or {}).items()
        if key not in valid_keys
    ]
    if wrong:
        raise ValidationError.from_exception_data("filters", wrong)


def check_embeds(name: str, stages: Mapping[str, StageConfig]) -> None:
    """Check that a stage gives the vectors of all clips that are compared with each other.

    Raises:
        ValueError: there is no such stage, or it gives none, or too late.
    """
    if name not in stages:
        raise ValueError(f"backend names stages.{name}, and there is no such stage in the section stages")
    stage_type = stage_class(stages[name].code)
    if not stage_type.embeds:
        raise ValueError(
            f"backend names stages.{name}, which gives no vectors: its class lacks `embeds = True`"
        )
    if stage_type.reads_caption or stages[name].after_dedup:
        raise ValueError(
            f"backend names stages.{name}, which runs after the comparison that needs its vectors"
        )


def _check_scores(stages: Mapping[str, StageConfig]) -> None:
    """Check that no two stages give a score of one name, and none one of ours."""
    givers = dict.fromkeys((*map(score_of, FilterConfig.model_fields), *_MEASURED), "reelweave itself")
    for name, config in stages.items():
        for score in stage_class(config.code).scores:
            if score in givers:
                raise UsageError(f"stages.{name} gives the score {score}, which {givers[score]} gives, too")
            givers[score] = f"stages.{name}"


class _WrongError(Exception):
    """Errors of one stage's configuration, as those of the section."""

    def __init__(self, details: list[InitErrorDetails]) -> None:
        super().__init__()
        self.details = details


def _locate_error(name: str, error: ValidationError, model: type[StageConfig]) -> Iterator[InitErrorDetails]:
    for item in error.errors():
        reason = str(item["msg"]).removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            reason = f"the stage has no such key; known here: {', '.join(model.model_fields)}"
        yield _detail((name, *item["loc"]), item["input"], reason)


def _detail(key: tuple[int | str, ...], value: object, reason: str) -> InitErrorDetails:
    kind = PydanticCustomError("stage", "{said}", {"said": reason})
    return {"type": kind, "loc": key, "input": value}
