"""Every configuration key as a page and as a YAML file, made from the models' own fields so that none can disagree.

python -m pipelines.configuration.config_docs page > docs/curate-config.md
python -m pipelines.configuration.config_docs yaml > pipelines/configs/curate.yaml
python -m pipelines.configuration.config_docs train > docs/train-config.md
python -m pipelines.configuration.config_docs vae > docs/vae-config.md
python -m pipelines.configuration.config_docs latents > docs/latents-config.md
"""

import json
import sys
from collections.abc import Iterable, Iterator
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from loader.settings import summary

CURATE_HEAD = """# Every key of `reelweave curate`

Set a key in a YAML file (`--config FILE`) or on the command line (`--set section.key=value`). This page is made by
`python -m pipelines.configuration.config_docs page`.
Where the defaults come from: [curate-defaults.md](curate-defaults.md).
"""

TRAIN_HEAD = """# Every key of the section `train` of `reelweave train`

Set a key in the YAML file (`--config FILE`) or on the command line (`--set train.section.key=value`). This page is made
by `python -m pipelines.configuration.config_docs train`. What the objectives compute: [train.md](train.md).
"""

VAE_HEAD = """# Every key of the section `train` of `reelweave train-vae`

Set a key in the YAML file (`--config FILE`) or on the command line (`--set train.section.key=value`). This page is made
by `python -m pipelines.configuration.config_docs vae`. How to use them: [finetune-vae.md](finetune-vae.md).
"""

LATENTS_HEAD = """# Every key of the section `latents` of `reelweave train`, which `reelweave latents` reads

Set a key in the YAML file (`--config FILE`) or on the command line (`--set latents.key=value`). This page is made by
`python -m pipelines.configuration.config_docs latents`. What the command does: [latents.md](latents.md).
"""


def page(model: type[BaseModel], head: str) -> str:
    """The page of a whole configuration, in Markdown; of a section with alternatives, one table each."""
    parts = [head]
    for name, field in model.model_fields.items():
        sections = _models(field.annotation)
        for section in sections:
            title = f"{name}, {_tag(section)}" if len(sections) > 1 else name
            unset = f" Unset by default: {field.description}." if field.default is None else ""
            parts += [f"\n## {title}\n\n{summary(section)}{unset}\n", _table(_rows(section, name)), ""]
    if single := [
        _row(name, field) for name, field in model.model_fields.items() if not _models(field.annotation)
    ]:
        parts += ["\n## Keys without a section\n", _table(single), ""]
    return "\n".join(parts)


def _table(rows: Iterable[str]) -> str:
    return "\n".join(["| key | default | what it does |", "|---|---|---|", *rows])


def _models(annotation: Any) -> list[type[BaseModel]]:
    """The models a value may be; none where it is no section."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for option in get_args(annotation) for model in _models(option)]


def _tag(model: type[BaseModel]) -> str:
    """The key and value that choose this model among its alternatives."""
    return next(f"`{name}: {field.default}`" for name, field in model.model_fields.items() if _is_tag(field))


def _is_tag(field: FieldInfo) -> bool:
    return get_origin(field.annotation) is Literal and len(get_args(field.annotation)) == 1


def yaml_file(model: type[BaseModel]) -> str:
    """The configuration with every default, as YAML with the descriptions for comments."""
    head = [
        "# Every key of `reelweave curate` with its default.",
        "# Copy what you change; --set section.key=value wins.",
    ]
    return "\n".join([*head, *_yaml_lines(model, ""), ""])


def _yaml_lines(model: type[BaseModel], indent: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            if not indent:
                yield ""
            yield f"{indent}{name}:  # {summary(inner)}"
            yield from _yaml_lines(inner, f"{indent}  ")
        else:
            value = field.get_default(call_default_factory=True)
            said = json.dumps(list(value) if isinstance(value, tuple) else value)
            yield f"{indent}{name}: {said}  # {' '.join((field.description or '').split())}".rstrip(" #")


def _rows(model: type[BaseModel], path: str, only: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        sections = _models(field.annotation)
        for section in sections:
            yield from _rows(section, f"{path}.{name}", f"{_tag(section)}: " if len(sections) > 1 else only)
        if not sections and not _is_tag(field):
            yield _row(f"{path}.{name}", field, only)


def _row(key: str, field: FieldInfo, only: str = "") -> str:
    what = ". ".join(text for text in (only + (field.description or ""), _choices(field)) if text)
    return f"| `{key}` | {_default(field)} | {_cell(what)} |"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "needed"
    value: Any = field.get_default(call_default_factory=True)
    if value is None:
        return "unset"
    if isinstance(value, tuple | list):
        return f"`[{', '.join(str(one) for one in value)}]`"
    return (
        f"`{_cell(str(value).lower() if isinstance(value, bool) else str(value))}`"
        if value != ""
        else "empty"
    )


def _choices(field: FieldInfo) -> str:
    alone = get_origin(field.annotation) is Literal
    options = (
        [field.annotation] if alone else [one for one in get_args(field.annotation) if one is not NoneType]
    )
    if not options or any(get_origin(option) is not Literal for option in options):
        return ""
    return "One of " + ", ".join(f"`{one}`" for option in options for one in get_args(option))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    from curate.config import CurateConfig
    from train.config.run import TrainConfig
    from train.config.vae import VaeTrainConfig
    from train.latents.config import LatentsConfig

    made = {
        "page": lambda: page(CurateConfig, CURATE_HEAD),
        "yaml": lambda: yaml_file(CurateConfig),
        "train": lambda: page(TrainConfig, TRAIN_HEAD),
        "vae": lambda: page(VaeTrainConfig, VAE_HEAD),
        "latents": lambda: page(LatentsConfig, LATENTS_HEAD),
    }
    print(made[sys.argv[1]](), end="")
