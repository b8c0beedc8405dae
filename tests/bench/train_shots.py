"""Trains the small networks of the shot detector and writes `curate/shots/colour/probabilities.npz`.

    python -m tests.bench.train_shots FOOTAGE --corpus ../shared/videos [--kept FOLDER] [--seed N] [--only KIND]

FOOTAGE holds the films that `shot_truth.json` names; those of the part `tuning` are read. Learnt from are N videos
made of their shots and of drawn ones (`shot_corpus.film`, two recipes in turn), and the films themselves. With
`--only`, the networks of the other kind stay as they are in the file. What the truth calls not required is left out,
and so are frames near the edges of gradual transitions that were read by eye. Where the truth is what a detector
reported, frames of which the half-trained networks are sure of the contrary are left out too. Every sample is learnt
from forwards and backwards in time. The same footage, seed and machine give the same numbers.
"""

import argparse
import io
import json
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import av
import numpy as np
import torch
from numpy.typing import NDArray

from reelweave.curate.shots.colour.differences import CHANNELS, LONGEST, FrameDifferences
from reelweave.curate.shots.colour.features import HEIGHT, WIDTH, Features, Floats, features
from reelweave.curate.shots.colour.motion import FARTHEST, RANKS, BlockMotion
from reelweave.curate.shots.colour.probabilities import (
    CUT_OFFSETS,
    GRADUAL_OFFSETS,
    GRADUAL_REACH,
    NetworkInputs,
    levels,
    roots,
)
from reelweave.curate.shots.scale import Scaler
from tests.bench.shot_corpus import LEARNT_COMMON, LEARNT_FAST, Recipe, film, known_films, shots_of, truth_of
from tests.bench.shot_drawn import drawn_shots
from tests.bench.shot_footage import VIDEO_SUFFIXES, Frames, Shot, read_frames

SIZE = (128, 72)
VIEWS = NetworkInputs(CUT_OFFSETS, motion=True), NetworkInputs(GRADUAL_OFFSETS)
DRAWN = 8  # shots of footage for each drawn one
CONTRARY = 0.9  # how far from the truth a network must be to doubt what a detector reported
HIDDEN = (64, 32)
EPOCHS = 16
BATCH = 512
LEFT_OUT = 3  # frames around the edges of a gradual transition that somebody read by eye
IGNORED = -1

Labels = NDArray[np.int8]
Layers = list[tuple[Floats, Floats]]  # weights and biases
KINDS = "cut", "gradual"


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
            # Where the pictures change inside a whip pan or a dip, a cut is no mistake.
            sudden = end - start <= 4 or each["type"] in ("smear", "dip")
            cut[start + 1 : end + 1] = IGNORED if sudden else 0
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


class Around(NamedTuple):
    """Roots of differences and motion, and levels of a whole video, with what is assumed before and after it."""

    differences: Floats
    moved: Floats
    level: Floats

    def seen(self, view: NetworkInputs, frames: NDArray[np.intp]) -> Floats:
        """What is seen around frames of the video."""
        return view(self.differences, self.moved, self.level, frames + GRADUAL_REACH + 1)


def around(small: NDArray[np.uint8]) -> Around:
    """What the networks may look at in a video, [n, HEIGHT, WIDTH, 3]."""
    found: list[Features] = [each for n in range(0, len(small), 16) for each in features(small[n : n + 16])]
    found += [found[-1]] * GRADUAL_REACH
    compared, motion, start = FrameDifferences(), BlockMotion(), GRADUAL_REACH + 1
    parts = [found[n : n + 16] for n in range(0, len(found), 16)]
    differences = [
        np.zeros((start, LONGEST + 1, CHANNELS), np.float32),
        *(roots(compared.push(part)) for part in parts),
    ]
    moved = [
        np.zeros((start, FARTHEST + 1, len(RANKS)), np.float32),
        *(roots(motion.push(part)) for part in parts),
    ]
    level = levels(found)
    return Around(
        np.concatenate(differences),
        np.concatenate(moved),
        np.concatenate([level[:1].repeat(start, axis=0), level]),
    )


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


def made(shots: list[Shot], number: int, recipe: Recipe) -> tuple[NDArray[np.uint8], list[dict[str, Any]]]:
    """A made video as the detector sees it, and its transitions."""
    frames, transitions, _ = film(shots, number, recipe)
    return encoded(frames, crf=int(np.random.default_rng(number).integers(18, 34))), transitions


class Samples:
    """Collects what the networks look at and what they should say."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._views = VIEWS
        self.seen: tuple[list[Floats], list[Floats]] = ([], [])
        self.wanted: tuple[list[Labels], list[Labels]] = ([], [])
        self.trusted: tuple[list[NDArray[np.bool_]], list[NDArray[np.bool_]]] = ([], [])

    def add(
        self,
        small: NDArray[np.uint8],
        transitions: Sequence[dict[str, Any]],
        real: bool,
        trusted: bool = True,
    ) -> None:
        """Take some frames of a video; `real` if its edges were read by eye, not `trusted` if by a detector."""
        known = around(small)
        wanted = labels(len(small), transitions, by_eye=real)
        start = GRADUAL_REACH + 1
        steps = known.differences[start : start + len(small), 1, 0]
        frames = (
            chosen(wanted[0], steps, self._rng, 0.12 if real else 0.06),
            chosen_gradual(wanted[1], self._rng, 0.3 if real else 0.15),
        )
        for number, view in enumerate(self._views):
            self.seen[number].append(known.seen(view, frames[number]).astype(np.float16))
            self.wanted[number].append(wanted[number][frames[number]])
            self.trusted[number].append(np.full(len(frames[number]), trusted))


def reversed_in_time(offsets: Sequence[int], channels: Sequence[int]) -> NDArray[np.intp]:
    """Where each input of a view is found when time runs backwards, by the channels of its differences."""
    places = [-1 - offset for offset in reversed(offsets)] + list(offsets)
    pairs = [(a, b) for number, a in enumerate(places) for b in places[number + 1 :]]
    known = {pair: number for number, pair in enumerate(pairs)}
    turned: list[int] = []
    for count in channels:
        first = len(turned)
        turned += [
            first + known[-1 - b, -1 - a] * count + channel for a, b in pairs for channel in range(count)
        ]
    mirrored = [places.index(-1 - place) for place in places]
    for _ in ("energy", "contrast"):
        first = len(turned)
        turned += [first + place for place in mirrored]
    return np.array(turned)


def fitted(
    seen: Floats, wanted: Labels, trusted: NDArray[np.bool_], turned: NDArray[np.intp], seed: int
) -> Layers:
    """Train one network; its layers, with the scaling of the inputs inside the first one."""
    torch.manual_seed(seed)
    inputs, answers = torch.tensor(seen), torch.tensor(wanted.astype(np.float32))
    sure, backwards = torch.tensor(trusted), torch.tensor(turned)
    mean, spread = inputs.mean(0), inputs.std(0) + 0.02
    model = torch.nn.Sequential(
        torch.nn.Linear(inputs.shape[1], HIDDEN[0]),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.2),
        torch.nn.Linear(*HIDDEN),
        torch.nn.ReLU(),
        torch.nn.Linear(HIDDEN[1], 1),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.02)
    steps = EPOCHS * -(-len(inputs) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    for epoch in range(EPOCHS):
        for places in torch.randperm(len(inputs)).split(BATCH):  # type: ignore[no-untyped-call]
            batch, answer = inputs[places], answers[places]
            batch = torch.where((torch.rand(len(places)) < 0.5)[:, None], batch[:, backwards], batch)
            batch = batch + 0.02 * torch.randn_like(batch)
            logits = model((batch - mean) / spread)[:, 0]
            losses = torch.nn.functional.binary_cross_entropy_with_logits(
                logits, answer * 0.98 + 0.01, reduction="none"
            )
            if epoch >= EPOCHS // 2:
                contrary = (torch.sigmoid(logits.detach()) - answer).abs() > CONTRARY
                losses = losses * (sure[places] | ~contrary)
            optimizer.zero_grad()
            losses.mean().backward()  # type: ignore[no-untyped-call]
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


def fit(samples: Samples, networks: int, kinds: Collection[str] = KINDS) -> dict[str, Layers]:
    """The layers of each `KIND_SEED`."""
    turned = (
        reversed_in_time(CUT_OFFSETS, (CHANNELS, len(RANKS))),
        reversed_in_time(GRADUAL_OFFSETS, (CHANNELS,)),
    )
    found = {}
    for number, name in enumerate(KINDS):
        if name not in kinds:
            continue
        seen = np.concatenate(samples.seen[number]).astype(np.float32)
        wanted, trusted = np.concatenate(samples.wanted[number]), np.concatenate(samples.trusted[number])
        for seed in range(networks):
            found[f"{name}_{seed}"] = fitted(seen, wanted, trusted, turned[number], seed)
    return found


def save(path: Path, networks: dict[str, Layers], kinds: Collection[str] = KINDS) -> None:
    """Write the layers of each `KIND_SEED` as plain numbers, weights in half precision; other kinds stay."""
    stored: dict[str, Any] = {}
    if set(kinds) != set(KINDS):
        with np.load(path, allow_pickle=False) as known:
            stored = {name: known[name] for name in known.files if name.split("_")[0] not in kinds}
    for name, layers in networks.items():
        for number, (weights, biases) in enumerate(layers):
            stored[f"{name}_weights_{number}"] = weights.astype(np.float16)
            stored[f"{name}_biases_{number}"] = biases.astype(np.float32)
    np.savez(path, **stored)


class Kept:
    """Decoded films and made videos that another run may have left in a folder.

    Args:
        folder: Where they are kept; None keeps nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The arrays of that name, made if they are not there."""
        if self._folder is None:
            return make()
        path = self._folder / f"{name}.npz"
        if not path.exists():
            np.savez(path, **make())
        with np.load(path, allow_pickle=False) as stored:
            return {key: stored[key] for key in stored.files}


def footage(folder: Path, part: str, kept: Kept) -> Iterator[tuple[Path, Frames]]:
    """The films of a part and their frames in SIZE."""
    for name in known_films(part):
        path = folder / name
        if not path.exists():
            print(f"{name} is not in {folder}; nothing is learnt from it")
            continue
        yield path, kept(name, lambda path=path: {"frames": read_frames(path, SIZE)})["frames"]  # type: ignore[misc]


def corpus(folder: Path) -> Iterator[tuple[NDArray[np.uint8], list[dict[str, Any]]]]:
    """The films of shared/videos/originals and their transitions."""
    for path in sorted((folder / "originals").iterdir()):
        if path.suffix in VIDEO_SUFFIXES and path.stem != "nasa_telescope_two_tracks":
            truth = path.with_suffix(".cuts.json")
            known = json.loads(truth.read_text())["transitions"] if truth.exists() else []
            yield shrunk(read_frames(path, SIZE)), known


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("footage", type=Path)
    parser.add_argument("--made", type=int, default=240)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--networks", type=int, default=3, help="of each kind; their mean counts")
    parser.add_argument("--corpus", type=Path, help="shared/videos: its originals/ are learnt from as well")
    parser.add_argument("--kept", type=Path, help="keep decoded films and made videos here, for the next run")
    parser.add_argument("--only", choices=KINDS, help="train the networks of this kind alone")
    default = Path(__file__).parents[2] / "curate" / "shots" / "colour" / "probabilities.npz"
    parser.add_argument("--out", type=Path, default=default)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    kept, samples, shots = Kept(arguments.kept), Samples(arguments.seed), list[Shot]()
    for path, frames in footage(arguments.footage, "tuning", kept):
        shots += shots_of(path, frames)
        truth = truth_of(path)
        samples.add(shrunk(frames), truth["transitions"], real=True, trusted=truth["read_by"] == "eye")
    shots += drawn_shots(len(shots) // DRAWN, arguments.seed, SIZE)
    if arguments.corpus:
        for small, transitions in corpus(arguments.corpus):
            samples.add(small, transitions, real=True)
    for number in range(arguments.seed, arguments.seed + arguments.made):

        def make(number: int = number) -> dict[str, Any]:
            small, transitions = made(shots, number, (LEARNT_COMMON, LEARNT_FAST)[number % 2])
            return {"small": small, "transitions": json.dumps(transitions)}

        video = kept(f"made_{number}", make)
        samples.add(video["small"], json.loads(str(video["transitions"])), real=False)
    kinds = [arguments.only] if arguments.only else KINDS
    save(arguments.out, fit(samples, arguments.networks, kinds), kinds)


if __name__ == "__main__":
    main()
