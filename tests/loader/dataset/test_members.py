"""Members as columns: the places that the rows of an index give, one by one."""

import numpy as np
import pyarrow as pa

from reelweave.loader.dataset.schema import INDEX
from reelweave.loader.dataset.tars.members import members


def test_columns_hold_the_places_of_the_rows() -> None:
    generator = np.random.default_rng(0)
    rows = []
    for number in range(50):
        suffixes = ["json", "txt", *(["video.npy"] if number % 3 else []), "mp4"]
        listed = [
            {
                "suffix": suffix,
                "offset": int(generator.integers(1, 10**12)),
                "size": int(generator.integers(0, 10**6)),
            }
            for suffix in suffixes
        ]
        rows.append({"shard": f"shards/{number // 7:06}.tar", "members": listed})
    schema = pa.schema([INDEX.field("shard"), INDEX.field("members")])
    # In chunks, as tables that were joined come.
    index = pa.concat_tables([pa.Table.from_pylist(part, schema) for part in (rows[:20], rows[20:])])
    for suffix in ("mp4", "video.npy", "gone"):
        found = members(index, suffix)
        expected = {
            number: (row["shard"], member["offset"], member["size"])
            for number, row in enumerate(rows)
            for member in row["members"]
            if member["suffix"] == suffix
        }
        assert {number: found.place(number) for number in range(50) if found.place(number)} == expected
        assert found.rows().tolist() == sorted(expected)
