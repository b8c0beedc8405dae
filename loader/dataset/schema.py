"""Table schemas of the dataset contract: one row per sample, per span and per scored clip."""

from typing import Any

import pyarrow as pa

FORMAT_VERSION = 2

INDEX = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("shard", pa.string(), nullable=False),  # "shards/000000-0f343b093112.tar"
        pa.field("offset", pa.int64(), nullable=False),  # offset of the sample's first member header
        pa.field("size", pa.int64(), nullable=False),  # bytes of all members with headers and padding
        # Location of each member's content in the shard, for a single range read.
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
        # For captions by a model: model, prompt_sha256, frame times, seed, tokens.
        pa.field("caption_provenance", pa.map_(pa.string(), pa.string()), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("source_sha256", pa.string(), nullable=False),
        # Columns of the input list for the source: licence, source, ...
        pa.field("attributes", pa.map_(pa.string(), pa.string()), nullable=False),
        pa.field("start_s", pa.float64(), nullable=False),
        pa.field("end_s", pa.float64(), nullable=False),
        pa.field("scores", pa.map_(pa.string(), pa.float64()), nullable=False),
        pa.field("audio", pa.string(), nullable=False),  # codec of the audio track, or "none"
        pa.field("split", pa.string(), nullable=False),  # "train" or "val"; equal for all clips of a source
        pa.field(
            "bin", pa.string(), nullable=False
        ),  # group of shapes that share shards, "all" without grouping
        pa.field("sha256", pa.string(), nullable=False),  # checksum of the clip, KEY.mp4
        # Checksums by suffix ("video.npy", "text.npy", "context.npy", "latent.npy") of the arrays beside the clip.
        pa.field("embeddings", pa.map_(pa.string(), pa.string()), nullable=False),
        # Checksum of all the sample's bytes in its shard, with headers and padding, to name the key of any damage.
        pa.field("sample_sha256", pa.string(), nullable=False),
    ]
)

STATES = ("kept", "filtered", "duplicate", "failed")

ACCOUNTING = pa.schema(
    [
        pa.field("source", pa.string(), nullable=False),
        pa.field("start_s", pa.float64()),  # null for a source without spans
        pa.field("end_s", pa.float64()),
        pa.field("key", pa.string()),  # null if no clip was written
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
"""Scores of every clip that was cut, kept or not, so that thresholds can be changed without decoding."""

TRANSITIONS = pa.schema(
    [
        pa.field("source", pa.string(), nullable=False),
        pa.field("start_s", pa.float64(), nullable=False),  # end of the last unblended frame before it
        pa.field("end_s", pa.float64(), nullable=False),  # begin of the first one behind it
        pa.field("kind", pa.string(), nullable=False),
        pa.field("probability", pa.float64()),  # null where nothing tells
        pa.field("decision", pa.string(), nullable=False),  # "boundary" or "inside"
        pa.field("key", pa.string()),  # of the clip that ends there, or holds it
    ]
)
"""Changes at which spans end, and the likeliest one inside each clip; at most two rows for a row of the accounting."""

CAPTIONS = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("name", pa.string(), nullable=False),  # "short", "structured", "written", ...
        pa.field("number", pa.int32(), nullable=False),  # from 0, of captions of one key and name
        pa.field("caption", pa.string()),  # null where there is none, for a reason
        pa.field("text_tokens", pa.int32(), nullable=False),
        pa.field("caption_source", pa.string(), nullable=False),
        pa.field("caption_provenance", pa.map_(pa.string(), pa.string()), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
    ]
)
"""Further captions of samples, sorted by key, name and number."""

WRITTEN = "written"
"""Name of captions that people wrote in a list, the first of which is the sample's caption, too."""

TABLES = {"index": INDEX, "accounting": ACCOUNTING, "scores": SCORES}

FURTHER_TABLES = {"transitions": TRANSITIONS, "captions": CAPTIONS}
"""Tables that a dataset may lack."""

FURTHER_ORDER = {"captions": ("key", "name", "number")}
"""Columns by which further tables are sorted when they are published; others keep the order in which they came."""

OPTIONAL: dict[str, Any] = {
    "caption_provenance": {},
    "attributes": {},
    "audio": "none",
    "split": "train",
    "bin": "all",
    "embeddings": {},
}
"""Index columns that writers may omit, with their defaults."""

PLACEMENT = ("shard", "offset", "size", "members", "sample_sha256", "sample_crc32")
"""Columns known only after a sample is written to a shard; KEY.json contains all other index columns.

``sample_crc32`` belongs to the plan index, not to the index; rows read back have it if their dataset does.
"""

MEMBER_ORDER = ("json", "txt", "text.npy", "video.npy", "context.npy", "latent.npy", "mp4")
"""Order of members: metadata before media, so that one range read of a sample's head describes it."""

Row = dict[str, Any]
"""One row of a table, by column name."""
