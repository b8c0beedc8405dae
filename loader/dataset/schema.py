"""Tables of the dataset contract: one row per sample, per span, per scored clip (DESIGN section 4)."""

from typing import Any

import pyarrow as pa

FORMAT_VERSION = 2

INDEX = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("shard", pa.string(), nullable=False),  # "shards/000000-0f343b093112.tar"
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
        ),  # "sidecar:NAME.txt", "container:title", "model:NAME", "none"
        # Of a model's caption: model, prompt_sha256, frame times, seed, tokens.
        pa.field("caption_provenance", pa.map_(pa.string(), pa.string()), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("source_sha256", pa.string(), nullable=False),
        # What the input list said of the source, by column: licence, source, ...
        pa.field("attributes", pa.map_(pa.string(), pa.string()), nullable=False),
        pa.field("start_s", pa.float64(), nullable=False),
        pa.field("end_s", pa.float64(), nullable=False),
        pa.field("scores", pa.map_(pa.string(), pa.float64()), nullable=False),
        pa.field("audio", pa.string(), nullable=False),  # codec of the sound track, or "none"
        pa.field("split", pa.string(), nullable=False),  # "train" or "val"; all clips of a source in one
        pa.field(
            "bin", pa.string(), nullable=False
        ),  # group of shapes that share shards, "all" without grouping
        pa.field("sha256", pa.string(), nullable=False),  # of the clip, KEY.mp4
        # sha256 by suffix ("video.npy", "text.npy", "context.npy", "latent.npy") of the arrays beside the clip.
        pa.field("embeddings", pa.map_(pa.string(), pa.string()), nullable=False),
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

SCORES = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("start_s", pa.float64(), nullable=False),
        pa.field("end_s", pa.float64(), nullable=False),
        pa.field("state", pa.string(), nullable=False),
        pa.field("scores", pa.map_(pa.string(), pa.float64()), nullable=False),
    ]
)
"""Every clip that was cut, kept or not, so that thresholds can be tried without decoding anything."""

TABLES = {"index": INDEX, "accounting": ACCOUNTING, "scores": SCORES}

OPTIONAL: dict[str, Any] = {
    "caption_provenance": {},
    "attributes": {},
    "audio": "none",
    "split": "train",
    "bin": "all",
    "embeddings": {},
}
"""Index columns a writer may leave out, and what then stands there."""

PLACEMENT = ("shard", "offset", "size", "members", "sample_sha256", "sample_crc32")
"""What is known only once a sample lies in a shard; all other index columns travel in KEY.json as well.

``sample_crc32`` is no column of the index but of the plan index; rows read back have it where their dataset does.
"""

MEMBER_ORDER = ("json", "txt", "text.npy", "video.npy", "context.npy", "latent.npy", "mp4")
"""Metadata before media, so that one range read of a sample's head describes it."""

Row = dict[str, Any]
"""One row of either table, by column name."""
