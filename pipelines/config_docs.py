"""Every configuration key as a page and as a YAML file, made from the models' own fields so that none can disagree.

python -m pipelines.config_docs page > docs/curate-config.md
python -m pipelines.config_docs yaml > pipelines/configs/curate.yaml
"""

import json
import sys
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

HEAD = """# Every key of `reelweave curate`

Set a key in a YAML file (`--config FILE`) or on the command line (`--set section.key=value`). This page is made by
`python -m pipelines.config_docs page`. Where the defaults come from: [curate-defaults.md](curate-defaults.md).
"""


def page(model: type[BaseModel]) -> str:
    """The page of a whole configuration, in Markdown."""
    parts = [HEAD]
    for name, field in model.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, BaseModel):
            parts.append(f"\n## {name}\n\n{_intro(section)}\n")
            parts.append(
                "\n".join(["| key | default | what it does |", "|---|---|---|", *_rows(section, name)])
            )
            parts.append("")
    return "\n".join(parts)


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
            yield f"{indent}{name}:  # {_intro(inner)}"
            yield from _yaml_lines(inner, f"{indent}  ")
        else:
            value = field.get_default(call_default_factory=True)
            said = json.dumps(list(value) if isinstance(value, tuple) else value)
            yield f"{indent}{name}: {said}  # {' '.join((field.description or '').split())}".rstrip(" #")


def _rows(model: type[BaseModel], path: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _rows(inner, f"{path}.{name}")
        else:
            what = ". ".join(text for text in (field.description or "", _choices(field)) if text)
            yield f"| `{path}.{name}` | {_default(field)} | {_cell(what)} |"


def _default(field: FieldInfo) -> str:
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
    options = [field.annotation, *get_args(field.annotation)]
    for option in options:
        if get_origin(option) is Literal:
            return "One of " + ", ".join(f"`{one}`" for one in get_args(option))
    return ""


def _intro(model: type[BaseModel]) -> str:
    return " ".join((model.__doc__ or "").split())


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    from curate.config import CurateConfig

    print(yaml_file(CurateConfig) if sys.argv[1:] == ["yaml"] else page(CurateConfig), end="")
