"""Trains the two small networks of the shot detector and writes `curate/shots/chances.npz`.

    python -m tests.bench.train_shots FOOTAGE [--made N] [--seed N] [--out FILE]

FOOTAGE is what `tests.bench.shot_corpus` takes; only sources of the part `tuning` are read. Learnt from are N videos
made of their shots (`shot_corpus.film`), and the films themselves. What the truth calls not required is left out, and
so are frames near the edges of gradual transitions that were read by eye. Every sample is learnt from forwards and
backwards in time. Takes about ten minutes on one core.
"""

import argparse
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from numpy.typing import NDArray

from curate.shots.chances import CUT_OFFSETS, GRADUAL_OFFSETS, GRADUAL_REACH, View, levels
from curate.shots.features import HEIGHT, WIDTH, Features, Floats, features
from curate.shots.likeness import CHANNELS, LONGEST, Likeness
from curate.shots.scale import Scaler
from tests.bench.shot_corpus import USUAL, film, part_of, shots_of, truth_of
from tests.bench.shot_footage import VIDEO_SUFFIXES, Frames, Shot, read_frames

SIZE = (128, 72)
HIDDEN = (64, 32)
EPOCHS = 16
BATCH = 512
LEFT_OUT = 3  # frames around the edges of a gradual transition that somebody read by eye
IGNORED = -1

Labels = NDArray[np.int8]


def labels(frames: int, transitions: Sequence[dict[str, Any]], by_eye: bool) -> tuple[Labels, Labels]:
    """What the networks should say of each frame: 1, 0 or IGNORED; cuts first, then gradual transitions."""
    cut, gradual = np.zeros((2, frames), np.int8)
    for each in transitions:
        start, end = each["start_frame"], each["end_frame"]
        if not each["required"]:
            cut[max(0, start - 4) : end + 5] = gradual[max(0, start - 4) : end + 5] = IGNORED
        elif end == start + 1:
            cut[end] = 1
        elif end == start + 2:
            cut[end - 1 : end + 1] = gradual[end - 1 : end + 1] = 1
        else:
            cut[start + 1 : end + 1] = IGNORED if end - start <= 4 else 0
            if by_eye:
                gradual[max(0, start + 1 - LEFT_OUT) : end + 1 + LEFT_OUT] = IGNORED
                start, end = start + LEFT_OUT, max(start + LEFT_OUT + 2, end - LEFT_OUT)
            gradual[start + 1 : end + 1] = 1
    return cut, gradual


def chosen(wanted: Labels, difference: Floats, rng: np.random.Generator, dense: float) -> NDArray[np.intp]:
    """Frames to learn from: all cuts, what is around them, what looks like them, and some of the rest."""
    near = np.convolve(wanted == 1, np.ones(7), "same") > 0
    share = np.where(near, 1, np.clip(dense + 1.5 * difference, 0, 1))
    return np.flatnonzero((wanted != IGNORED) & (rng.random(len(wanted)) < share))


def chosen_gradual(wanted: Labels, rng: np.random.Generator, dense: float) -> NDArray[np.intp]:
    """Frames to learn from: half of those in or near gradual transitions, and some of the rest."""
    near = np.convolve(wanted == 1, np.ones(25), "same") > 0
    return np.flatnonzero((wanted != IGNORED) & (rng.random(len(wanted)) < np.where(near, 0.5, dense)))


def around(small: NDArray[np.uint8]) -> tuple[Floats, Floats]:
    """Differences and levels of a whole video, with what is assumed before its start and after its end."""
    found: list[Features] = [each for n in range(0, len(small), 16) for each in features(small[n : n + 16])]
    found += [found[-1]] * GRADUAL_REACH
    likeness = Likeness()
    before = np.zeros((GRADUAL_REACH + 1, LONGEST + 1, CHANNELS), np.float32)
    differences = [likeness.push(found[n : n + 16]) for n in range(0, len(found), 16)]
    level = levels(found)
    return np.concatenate([before, *differences]), np.concatenate([level[:1].repeat(len(before), 0), level])


def shrunk(frames: Frames) -> NDArray[np.uint8]:
    """Frames of SIZE as the detector would get them."""
    halved = frames.reshape(-1, HEIGHT, 2, WIDTH, 2, 3).mean(axis=(2, 4))
    return np.asarray(halved.round(), np.uint8)


def encoded(frames: Sequence[Floats], crf: int) -> NDArray[np.uint8]:
    """The frames as a decoder would give them to the detector, [n, HEIGHT, WIDTH, 3]."""
    buffer = io.BytesIO()
    height, width = frames[0].shape[:2]
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=25, options={"crf": str(crf), "preset": "superfast"})
        stream.width, stream.height, stream.pix_fmt, stream.thread_count = width, height, "yuv420p", 1
        for frame in frames:
            picture = av.VideoFrame.from_ndarray(np.clip(frame, 0, 255).astype(np.uint8), format="rgb24")
            container.mux(stream.encode(picture))
        container.mux(stream.encode())
    buffer.seek(0)
    with av.open(buffer, "r") as source:
        scale = Scaler((WIDTH, HEIGHT))
        return np.stack([scale(each) for each in source.decode(video=0)])


def made(
    shots: list[Shot], count: int, seed: int
) -> Iterator[tuple[NDArray[np.uint8], list[dict[str, Any]]]]:
    """Made videos as the detector sees them, and their transitions."""
    for number in range(seed, seed + count):
        frames, transitions, _ = film(shots, number, USUAL)
        yield encoded(frames, crf=int(np.random.default_rng(number).integers(18, 34))), transitions


class Samples:
    """Collects what the networks look at and what they should say."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._views = View(CUT_OFFSETS), View(GRADUAL_OFFSETS)
        self.seen: tuple[list[Floats], list[Floats]] = ([], [])
        self.wanted: tuple[list[Labels], list[Labels]] = ([], [])

    def add(self, small: NDArray[np.uint8], transitions: Sequence[dict[str, Any]], real: bool) -> None:
        """Take some frames of a video."""
        differences, level = around(small)
        wanted = labels(len(small), transitions, by_eye=real)
        start = GRADUAL_REACH + 1
        steps = differences[start : start + len(small), 1, 0]
        frames = (
            chosen(wanted[0], steps, self._rng, 0.12 if real else 0.06),
            chosen_gradual(wanted[1], self._rng, 0.3 if real else 0.15),
        )
        for number in (0, 1):
            seen = self._views[number](differences, level, frames[number] + start)
            self.seen[number].append(seen.astype(np.float16))
            self.wanted[number].append(wanted[number][frames[number]])


def reversed_in_time(offsets: Sequence[int]) -> NDArray[np.intp]:
    """Where each input of a view is found when time runs backwards."""
    places = [-1 - offset for offset in reversed(offsets)] + list(offsets)
    pairs = [(a, b) for number, a in enumerate(places) for b in places[number + 1 :]]
    known = {pair: number for number, pair in enumerate(pairs)}
    turned = [known[-1 - b, -1 - a] * CHANNELS + channel for a, b in pairs for channel in range(CHANNELS)]
    count, sides = len(pairs) * CHANNELS, len(places)
    mirrored = [places.index(-1 - place) for place in places]
    return np.array(turned + [count + m for m in mirrored] + [count + sides + m for m in mirrored])


def fitted(seen: Floats, wanted: Labels, offsets: Sequence[int], seed: int) -> list[tuple[Floats, Floats]]:
    """Train one network; its layers, with the scaling of the inputs inside the first one."""
    torch.manual_seed(seed)
    inputs, answers = torch.tensor(seen), torch.tensor(wanted.astype(np.float32))
    mean, spread = inputs.mean(0), inputs.std(0) + 0.02
    turned = torch.tensor(reversed_in_time(offsets))
    model = torch.nn.Sequential(
        torch.nn.Linear(inputs.shape[1], HIDDEN[0]),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.2),
        torch.nn.Linear(*HIDDEN),
        torch.nn.ReLU(),
        torch.nn.Linear(HIDDEN[1], 1),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.02)
    steps = EPOCHS * (len(inputs) // BATCH + 1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    for _ in range(EPOCHS):
        for places in torch.randperm(len(inputs)).split(BATCH):  # type: ignore[no-untyped-call]
            batch = inputs[places]
            backwards = torch.rand(len(places)) < 0.5
            batch = torch.where(backwards[:, None], batch[:, turned], batch)
            batch = batch + 0.02 * torch.randn_like(batch)
            logits = model((batch - mean) / spread)[:, 0]
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, answers[places] * 0.98 + 0.01)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    layers = [
        (layer.weight.detach().numpy().T, layer.bias.detach().numpy())
        for layer in model
        if isinstance(layer, torch.nn.Linear)
    ]
    weights, biases = layers[0]
    scaled = weights / spread.numpy()[:, None]
    layers[0] = scaled, biases - mean.numpy() @ scaled
    return layers


def save(path: Path, networks: dict[str, list[tuple[Floats, Floats]]]) -> None:
    """Write the layers of each `KIND_SEED` as plain numbers, weights in half precision."""
    stored: dict[str, Any] = {}
    for name, layers in networks.items():
        for number, (weights, biases) in enumerate(layers):
            stored[f"{name}_weights_{number}"] = weights.astype(np.float16)
            stored[f"{name}_biases_{number}"] = biases.astype(np.float32)
    np.savez(path, **stored)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("footage", type=Path)
    parser.add_argument("--made", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--networks", type=int, default=2, help="of each kind; their mean counts")
    parser.add_argument("--corpus", type=Path, help="shared/videos: its originals/ are learnt from as well")
    default = Path(__file__).parents[2] / "curate" / "shots" / "chances.npz"
    parser.add_argument("--out", type=Path, default=default)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    samples = Samples(arguments.seed)
    shots: list[Shot] = []
    for path in sorted(arguments.footage.iterdir()):
        if path.suffix not in VIDEO_SUFFIXES or part_of(path.name) != "tuning":
            continue
        frames: Frames = read_frames(path, SIZE)
        shots += shots_of(path, frames)
        samples.add(shrunk(frames), truth_of(path)["transitions"], real=True)
    if arguments.corpus:
        for path in sorted((arguments.corpus / "originals").iterdir()):
            if path.suffix in VIDEO_SUFFIXES and path.stem != "nasa_telescope_two_tracks":
                truth = path.with_suffix(".cuts.json")
                known = json.loads(truth.read_text())["transitions"] if truth.exists() else []
                samples.add(shrunk(read_frames(path, SIZE)), known, real=True)
    for small, transitions in made(shots, arguments.made, arguments.seed):
        samples.add(small, transitions, real=False)
    networks = {
        f"{name}_{seed}": fitted(
            np.concatenate(seen).astype(np.float32), np.concatenate(wanted), offsets, seed
        )
        for name, seen, wanted, offsets in zip(
            ("cut", "gradual"), samples.seen, samples.wanted, (CUT_OFFSETS, GRADUAL_OFFSETS), strict=True
        )
        for seed in range(arguments.networks)
    }
    save(arguments.out, networks)


if __name__ == "__main__":
    main()
