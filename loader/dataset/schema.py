"""Tables of the dataset contract: one row per sample, one row per span (DESIGN section 4)."""

from typing import Any

import pyarrow as pa

FORMAT_VERSION = 1

INDEX = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("shard", pa.string(), nullable=False),  # "shards/000000.tar"
        pa.field("offset", pa.int64(), nullable=False),  # of the sample's first member header
        pa.field("size", pa.int64(), nullable=False),  # bytes of all its members, headers and padding too
        # Where each member's content lies in the shard, so that one range read gets it.
        pa.field(
            "members",
            pa.list_(
                pa.struct(
                    [
                        pa.field("suffix", pa.string(), nullable=False),  # "json", "txt", "mp4", ...
                        pa.field("offset", pa.int64(), nullable=False),
                        pa.field("size", pa.int64(), nullable=False),
                    ]
                )
            ),
            nullable=False,
        ),
        pa.field("frames", pa.int32(), nullable=False),
        pa.field("fps", pa.float64(), nullable=False),
        pa.field("height", pa.int32(), nullable=False),
        pa.field("width", pa.int32(), nullable=False),
        pa.field("duration_s", pa.float64(), nullable=False),
        pa.field("text_tokens", pa.int32(), nullable=False),
        pa.field("caption", pa.string(), nullable=False),
        pa.field(
            "caption_source", pa.string(), nullable=False
        ),  # "sidecar:NAME.txt", "container:title", "none"
        pa.field("source", pa.string(), nullable=False),
        pa.field("source_sha256", pa.string(), nullable=False),
        pa.field("start_s", pa.float64(), nullable=False),
        pa.field("end_s", pa.float64(), nullable=False),
        pa.field("scores", pa.map_(pa.string(), pa.float64()), nullable=False),
        pa.field("sha256", pa.string(), nullable=False),  # of the clip, KEY.mp4
        # Of all the sample's bytes in its shard, headers and padding too: names the key of any flipped byte.
        pa.field("sample_sha256", pa.string(), nullable=False),
    ]
)

STATES = ("kept", "filtered", "duplicate", "failed")

ACCOUNTING = pa.schema(
    [
        pa.field("source", pa.string(), nullable=False),
        pa.field("start_s", pa.float64()),  # null when the source gave no span
        pa.field("end_s", pa.float64()),
        pa.field("key", pa.string()),  # null when no clip was written
        pa.field("state", pa.string(), nullable=False),
        pa.field("stage", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("score", pa.float64()),
        pa.field("threshold", pa.float64()),
        pa.field("duplicate_of", pa.string()),
    ]
)

PLACEMENT = ("shard", "offset", "size", "members", "sample_sha256")
"""Index columns known only once a sample lies in a shard; all others travel in KEY.json as well."""

MEMBER_ORDER = ("json", "txt", "text.npy", "video.npy", "mp4")
"""Metadata before media, so that one range read of a sample's head describes it."""

Row = dict[str, Any]
"""One row of either table, by column name."""
