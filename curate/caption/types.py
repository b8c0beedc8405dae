"""What a caption is."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Caption:
    """A caption and where it comes from.

    Attributes:
        text: words with single blanks between them; "" when there is none.
        source: "input" (the list that named the source), "sidecar:NAME.txt", "container:title",
            "model:NAME", or "none".
        provenance: of a model's caption, all as text: see `curate.caption.provenance`.
    """

    text: str
    source: str
    provenance: Mapping[str, str] = field(default_factory=dict)


NO_CAPTION = Caption("", "none")
