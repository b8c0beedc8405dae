"""Candidates of perceptual duplicates among many clips: time per clip, and the copies of pictures that are found.

    python -m tests.bench.dedup_scale [--clips 20000 100000 1000000] [--exhaustive-up-to 100000] [--share 1.0] FILM...

Pictures are those of films, one a second. A clip is a blend of two of them with some noise, as descriptors of the clips
of one dump lie near to each other. Some clips are copies: a picture scaled, cropped, turned in hue, darkened or in few
colours, at a random place of the order. It reports processor seconds per clip of all pairs and of near cells (one
thread each), the share of pairs that cells find by their cosine, and the share of copies whose original is found.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import av
import numpy as np
from PIL import Image, ImageEnhance

from reelweave.curate.dedup import neighbours
from reelweave.curate.dedup.cells import PROBES, CellCentres, InvertedFile
from reelweave.curate.dedup.neighbours import near_pairs
from reelweave.curate.dedup.products import Floats, slices
from reelweave.curate.dedup.vector_file import VectorFile
from reelweave.curate.frames.perceptual import PICTURE, describe
from tests.bench.curate_scale import peak_bytes

LEAST, MOST = 0.5, 32  # as `reelweave.curate.dedup` asks
COPIES = 2000
AT_ONCE = 100_000

CHANGES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "scaled": lambda picture: picture.resize((160, 90), Image.Resampling.BOX),
    "cropped": lambda picture: picture.crop((8, 4, 304, 170)),
    "hue": lambda picture: Image.merge("RGB", (*picture.split()[1:], picture.split()[0])),
    "darker": lambda picture: ImageEnhance.Brightness(picture).enhance(0.8),
    "coarse": lambda picture: picture.quantize(24).convert("RGB"),
}


def pictures(film: Path) -> list[Image.Image]:
    """Return a picture for each second of a film, 320 x 180."""
    found: list[Image.Image] = []
    with av.open(str(film)) as container:
        container.streams.video[0].codec_context.skip_frame = "NONREF"
        for frame in container.decode(video=0):
            if frame.time is not None and frame.time >= len(found):
                found.append(frame.to_image(width=320, height=180))
    return found


def described(found: Sequence[Image.Image]) -> Floats:
    small = [np.asarray(one.convert("RGB").resize(PICTURE, Image.Resampling.BOX)) for one in found]
    return np.concatenate([describe(np.stack(small[rows])) for rows in slices(0, len(small), 256)])


def unit(vectors: Floats) -> Floats:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


def clips(scenes: Floats, count: int, random: np.random.Generator) -> Floats:
    """Return blends of scenes, float32 [count, D]."""
    found = np.empty((count, scenes.shape[1]), np.float32)
    for rows in slices(0, count, AT_ONCE):
        size = rows.stop - rows.start
        share = random.uniform(0.5, 1, (size, 1)).astype(np.float32)
        one, other = (scenes[random.integers(len(scenes), size=size)] for _ in range(2))
        noise = random.normal(scale=0.02, size=(size, scenes.shape[1]))
        found[rows] = unit(share * one + (1 - share) * other + noise)
    return found


def on_disk(scenes: Floats, count: int, random: np.random.Generator) -> VectorFile:
    """Return clips as vectors of 16 bits."""
    vectors = VectorFile()
    for rows in slices(0, count, AT_ONCE):
        vectors.append(clips(scenes, rows.stop - rows.start, random).astype(np.float16))
    return vectors


def measure(scenes: Floats, copies: dict[str, Floats], count: int, exhaustive: bool, share: float) -> None:
    """Print the rows of one number of clips."""
    random = np.random.default_rng(count)
    vectors = on_disk(scenes, count, random)
    # Originals stand in the first half of the order, each with one copy in the second.
    number = min(COPIES, count // 4)
    originals = np.sort(random.permutation(count // 2)[:number])
    places = count // 2 + np.sort(random.permutation(count - count // 2)[:number])
    chosen = random.integers(len(scenes), size=number)
    kinds = np.array(list(copies))[random.integers(len(copies), size=number)]
    vectors.put(originals, scenes[chosen].astype(np.float16))
    vectors.put(
        places,
        np.stack([copies[kind][at] for kind, at in zip(kinds, chosen, strict=True)]).astype(np.float16),
    )

    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = peak_bytes()
    start = time.process_time()
    file = InvertedFile.of(vectors, CellCentres.of(vectors))
    built = time.process_time()
    blocks = list(slices(0, count, neighbours._ROWS_OF_CELLS))
    # Of a part of the blocks, spaced evenly: the mean of their costs is that of all.
    some = [
        blocks[at] for at in np.linspace(0, len(blocks) - 1, max(1, round(share * len(blocks)))).astype(int)
    ]
    rows = sum(block.stop - block.start for block in some)
    began = time.process_time()
    sum(1 for _ in neighbours._pairs_in_cells(file, None, some, LEAST, MOST))
    ended = time.process_time()
    grown = peak_bytes() - before
    owner = np.empty(count, np.int32)
    owner[file.members] = np.repeat(np.arange(len(file.starts) - 1), np.diff(file.starts))
    probed = file.cells.nearest(vectors[places], PROBES)
    hit = (probed == owner[originals][:, None]).any(axis=1)
    cosine = np.einsum("nd,nd->n", vectors[places].astype(float), vectors[originals])
    print(
        f"| {count:,} | {len(file.cells.fine):,} | {(built - start) / count * 1e6:.0f} |"
        f" {(ended - began) / rows * 1e6:.0f} | {hit[cosine >= LEAST].mean():.4f} of {(cosine >= LEAST).sum()} |"
        f" {before / 1e6:.0f} | {grown / count:.0f} |",
        flush=True,
    )
    for kind in copies:
        of_kind = (kinds == kind) & (cosine >= LEAST)
        print(
            f"    {kind}: cosine {cosine[of_kind].mean():.3f}, found {hit[of_kind].mean():.4f} of {of_kind.sum()}"
        )
    if exhaustive:
        began = time.process_time()
        neighbours.CELLS_FROM = count + 1
        every = {(one, other): near for one, other, near in near_pairs(vectors, LEAST, MOST)}
        print(f"    all pairs: {(time.process_time() - began) / count * 1e6:.0f} us a clip")
        earlier, later = np.array(list(every)).T
        near, seen = np.array(list(every.values())), np.zeros(len(every), bool)
        for rows in slices(0, len(later), AT_ONCE):
            probed = file.cells.nearest(vectors[later[rows]], PROBES)
            seen[rows] = (probed == owner[earlier[rows], None]).any(axis=1)
        for least, most in ((0.5, 0.6), (0.6, 0.7), (0.7, 0.8), (0.8, 0.9), (0.9, 1.1)):
            inside = seen[(least <= near) & (near < most)]
            print(f"    cosine {least} to {most}: {inside.mean():.4f} of {len(inside):,} pairs")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("films", nargs="+", type=Path)
    parser.add_argument("--clips", nargs="+", type=int, default=[20_000, 100_000, 1_000_000])
    parser.add_argument("--exhaustive-up-to", type=int, default=100_000)
    parser.add_argument(
        "--share", type=float, default=1.0, help="share of the blocks of clips that are searched"
    )
    options = parser.parse_args()
    found = [picture for film in options.films for picture in pictures(film)]
    scenes = described(found)
    copies = {kind: described([change(picture) for picture in found]) for kind, change in CHANGES.items()}
    print(f"{len(scenes)} scenes\n")
    print(
        "| clips | cells | us a clip: cells | search | copies found | MB before | peak of bytes a clip |\n"
        "|---|---|---|---|---|---|---|"
    )
    for count in options.clips:
        measure(scenes, copies, count, count <= options.exhaustive_up_to, options.share)


if __name__ == "__main__":
    main()
