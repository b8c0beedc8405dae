"""Caption of a clip, and its origin."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

CAPTIONS = "captions"
"""Name of the stage of captions."""
VARIANTS = f"{CAPTIONS}."
"""Start of the names of stages that write further captions; a clip that such a stage fails is kept without one."""
CONTRADICTED = "camera_contradicted"
"""Key of the provenance of a caption that contradicts the measured movement of the camera after all attempts."""


@dataclass(frozen=True)
class Caption:
    """Caption with its origin.

    Attributes:
        text: Words with single blanks between them; "" without a caption.
        source: Origin: "input" (the list that named the source), "sidecar:NAME.txt", "container:title",
            "model:NAME", or "none". Where nothing else has a text, "unreadable:NAME.txt" tells of a sidecar that is no
            UTF-8, and "unused:NAME.json (REASON)" of one without a caption.
        provenance: Provenance of a model's caption, all as text: see `reelweave.curate.caption.provenance`; and of any
            caption, "unused_sidecar", the sidecar that gave none; "other_sidecar", the one with another caption; and
            "unused_keys", a JSON sidecar and its keys beside the caption, which are not used.
        written: All captions of a written list of several, this one first.
    """

    text: str
    source: str
    provenance: Mapping[str, str] = field(default_factory=dict)
    written: Annotated[tuple[str, ...], Field(exclude_if=lambda texts: not texts)] = ()


NO_CAPTION = Caption("", "none")
