"""Caption of a clip, and its origin."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Caption:
    """Caption with its origin.

    Attributes:
        text: Words with single blanks between them; "" without a caption.
        source: Origin: "input" (the list that named the source), "sidecar:NAME.txt", "container:title",
            "model:NAME", "unreadable:NAME.txt" (a sidecar that is no UTF-8, and no other text), or "none".
        provenance: Provenance of a model's caption, all as text: see `reelweave.curate.caption.provenance`.
    """

    text: str
    source: str
    provenance: Mapping[str, str] = field(default_factory=dict)


NO_CAPTION = Caption("", "none")
