"""Caption of a clip, and its origin."""

from collections.abc import Mapping
from dataclasses import dataclass, field


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
    """

    text: str
    source: str
    provenance: Mapping[str, str] = field(default_factory=dict)


NO_CAPTION = Caption("", "none")
