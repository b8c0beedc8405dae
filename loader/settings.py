"""Base class of the sections of a configuration."""

import inspect
from typing import Any

from pydantic import BaseModel


class Settings(BaseModel, frozen=True, extra="forbid"):
    """Frozen section of a configuration without unknown keys; ``help()`` of a section describes every key."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        summary = inspect.cleandoc(cls.__doc__ or "")
        keys = "\n".join(
            f"    {name}: {' '.join(field.description.split())}{_default(field.is_required(), field.default)}"
            for name, field in cls.model_fields.items()
            if field.description
        )
        if keys:
            cls.__doc__ = f"{summary}\n\nKeys:\n{keys}"
            # A JSON schema has the keys below the section already.
            cls.model_config["json_schema_extra"] = {"description": summary}


def summary(section: type[BaseModel]) -> str:
    """Return what a section is for, without its keys, in one line."""
    return " ".join((section.__doc__ or "").partition("\n\nKeys:\n")[0].split())


def _default(is_required: bool, default: object) -> str:
    if is_required:
        return " (required)"
    return f" (default: {default})" if isinstance(default, bool | int | float | str) else ""
