"""Writes the files of mosaic_files with Mosaic's own writer: python -m tests.curate.foreign.write_mosaic OUT

It needs mosaicml-streaming, which tests do not have; the files in the repository are of version 0.13.
"""

import hashlib
import json
import sys
import tempfile
from pathlib import Path

from tests.media import write_video

COLUMNS = {
    "video": "bytes",
    "caption": "str",
    "aesthetic": "float64",
    "label": "int",
    "licence": "str",
    "extra": "json",
}
SHAPES = ((7, (80, 64)), (9, (160, 128)), (6, (128, 160)), (14, (64, 80)))


def main(out: Path) -> None:
    import streaming

    with (
        tempfile.TemporaryDirectory() as folder,
        streaming.MDSWriter(out=str(out), columns=COLUMNS, size_limit=14000, hashes=["sha256"]) as writer,
    ):
        for number in range(5):
            frames, size = SHAPES[number % 4]
            clip = write_video(Path(folder) / f"{number}.mp4", (frames,), size=size, first_scene=number)
            writer.write(
                {
                    "video": clip.read_bytes(),
                    "caption": f"the caption of clip {number}",
                    "aesthetic": number / 2,
                    "label": number,
                    "licence": "cc0" if number % 2 else "cc-by",
                    "extra": {"camera": f"no {number}"},
                }
            )
    dataset = streaming.StreamingDataset(local=str(out), shuffle=False, batch_size=1)
    read = [
        {
            "video": hashlib.sha256(sample["video"]).hexdigest(),
            "caption": sample["caption"],
            "aesthetic": float(sample["aesthetic"]),
            "label": int(sample["label"]),
        }
        for sample in (dataset[number] for number in range(len(dataset)))
    ]
    told = {"mosaicml-streaming": streaming.__version__, "samples": read}
    (out / "read_by_mosaic.json").write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
