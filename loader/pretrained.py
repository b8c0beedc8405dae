"""Loading of published models with the code of installed libraries alone, never with code that a model brings.

transformers runs Python files of a model's publisher if told to, and asks on the terminal where it was told nothing. An
open_clip configuration may tell it to. So every model of transformers and open_clip is loaded here, where such files
cannot be fetched, and nobody is asked.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_ALONE = threading.RLock()
_SWITCH = "trust_remote_code"


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
