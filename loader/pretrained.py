"""Loading of published models with the code of installed libraries alone, never with code that a model brings.

transformers runs Python files of a model's publisher if told to, and asks on the terminal where it was told nothing. An
open_clip configuration may tell it to. So every model of transformers and open_clip is loaded here, where such files
cannot be fetched, and nobody is asked.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_ALONE = threading.RLock()
_SWITCH = "trust_remote_code"
_MAX_DESCRIPTION_BYTES = 1 << 20
_LISTS = "models/auto/*.py"
"""Files of transformers that list the types of models it knows."""


class OwnCodeError(ValueError):
    """A model that needs Python code of its publisher."""


def load_pretrained(kind: Any, name: str, **options: Any) -> Any:
    """Load a part of a model of transformers.

    Args:
        kind: class with a method ``from_pretrained``.
        name: folder, or name on the hub.
        options: further arguments of the method.

    Raises:
        OwnCodeError: the part needs code that the model brings.
        Exception: of transformers, for any other fault of the model.
    """
    with _installed_code(name):
        return kind.from_pretrained(name, **options, **{_SWITCH: False})


def load_open_clip(name: str, weights: str | None, device: str) -> tuple[Any, Any]:
    """Load a model of open_clip and its tokenizer.

    Args:
        name: name of ``open_clip.create_model``.
        weights: file or tag of the weights; None where the name says it.
        device: device of the model.

    Raises:
        OwnCodeError: its text tower or tokenizer needs code that the model brings.
        Exception: of open_clip, for any other fault of the model.
    """
    import open_clip

    with _installed_code(name):
        model = open_clip.create_model(
            name, weights, device=device, require_pretrained=True, pretrained_text=False, weights_only=True
        )
        return model, open_clip.get_tokenizer(name)


def check_model_type(folder: Path) -> None:
    """Check that the installed transformers knows a model's type, without importing it, which takes seconds.

    Args:
        folder: folder of the model, with its config.json.

    Raises:
        OwnCodeError: the type is known only to code that the model brings.
        ValueError: config.json is no JSON object, or its type is unknown.
    """
    with (folder / "config.json").open("rb") as file:
        data = file.read(_MAX_DESCRIPTION_BYTES + 1)
    if len(data) > _MAX_DESCRIPTION_BYTES:
        raise ValueError(f"its config.json is larger than {_MAX_DESCRIPTION_BYTES >> 20} MiB")
    try:
        described = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError("its config.json is no JSON") from error
    if not isinstance(described, dict):
        raise ValueError("its config.json is no JSON object")
    # A description without a type is left to the library, which has other ways to tell it.
    model_type = described.get("model_type")
    known_types = _known_types()
    if not isinstance(model_type, str) or not known_types or model_type in known_types:
        return
    if "auto_map" in described:
        raise _refusal(str(folder))
    raise ValueError(
        f"its config.json names the model type {model_type}, which transformers {version('transformers')} does not know"
    )


@cache
def _known_types() -> frozenset[str]:
    """Return the types of models that transformers lists, among other words; empty where it lists none as expected."""
    found = find_spec("transformers")
    if found is None or found.origin is None:
        return frozenset()
    texts = (path.read_text() for path in Path(found.origin).parent.glob(_LISTS))
    named = frozenset(word for text in texts for word in re.findall(r'"([\w.-]+)"', text))
    return named if {"bert", "clip", "t5"} <= named else frozenset()


@contextmanager
def _installed_code(name: str) -> Iterator[None]:
    """Let transformers neither fetch a model's Python files nor ask for leave, within the block."""
    try:
        from transformers import dynamic_module_utils as theirs
    except ImportError:  # nothing else looks at such files
        yield
        return

    def refuse(*_: Any, **__: Any) -> Any:
        raise _refusal(name)

    with _ALONE:  # all loads of a process share what is replaced here
        before = theirs.get_cached_module_file, theirs.TIME_OUT_REMOTE_CODE
        theirs.get_cached_module_file, theirs.TIME_OUT_REMOTE_CODE = refuse, 0
        try:
            yield
        except OwnCodeError:
            raise
        except Exception as error:
            if _SWITCH in str(error):  # the library's hint is an option that does not exist here
                raise _refusal(name) from None
            raise
        finally:
            theirs.get_cached_module_file, theirs.TIME_OUT_REMOTE_CODE = before


def _refusal(name: str) -> OwnCodeError:
    return OwnCodeError(
        f"{name} needs Python code that its publisher put beside the weights (auto_map), which is never run here"
    )
