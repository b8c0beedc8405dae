"""What players show of strange films beside what their clips show: `python -m tests.fuzz.shown FOLDER FIRST LAST`.

A difference counts where FFmpeg's program and a plain reading by PyAV both contradict a clip, and its reason is silent.
"""

import argparse
import io
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from reelweave.curate.ledger.records import Record
from tests.cutting import curated
from tests.fuzz.strange_films import SOUND_HZ, StrangeFilm, films
from tests.media import read_number
from tests.player import PROGRAM, SIZE

NEAR, NEAR_CODED = 0.6, 3.0
"""Frames by which a picture may be early or late; AVI, and what is copied from it, has times of coding alone."""

APART_S, APART_CODED_S = 0.025, 0.11
LOST = 0.7  # of a frame, above which a picture that is shown may not be missing
SECONDS = 0.2  # by which the accounting may differ from a player, with a frame


@dataclass(frozen=True)
class Shown:
    """Pictures and clicks of a film, from its first picture on.

    Attributes:
        times_s: When each picture is shown, rising.
        numbers: The numbers in the pictures.
        clicks_s: When clicks begin.
        decoded: The numbers in the order of the decoder.
    """

    times_s: NDArray[np.float64]
    numbers: list[int]
    clicks_s: list[float]
    decoded: tuple[int, ...] = ()

    @property
    def frame_s(self) -> float:
        return float(np.median(np.diff(self.times_s))) if len(self.times_s) > 1 else 0.04

    def behind(self, lead_s: float) -> "Shown":
        """The same behind so many seconds."""
        return replace(
            self, times_s=self.times_s + lead_s, clicks_s=[click + lead_s for click in self.clicks_s]
        )

    def in_turn(self) -> "Shown":
        """The same by a player that shows pictures as its decoder gives them, whatever the stamps say."""
        return replace(self, numbers=list(self.decoded) or self.numbers)

    def near(self, at_s: float, within_s: float) -> set[int]:
        """Numbers of the pictures that are on screen near a time."""
        first, last = np.searchsorted(self.times_s, (at_s - within_s, at_s + within_s), "right") - 1
        return set(self.numbers[max(0, first) : last + 1])

    def offsets_s(self, rate: float) -> dict[int, float]:
        """How far each click lies behind the picture of its second."""
        first_s: dict[int, float] = {}
        for number, time_s in zip(self.numbers, self.times_s.tolist(), strict=True):
            first_s.setdefault(number, time_s)
        found = {}
        for second in range(1, 13):
            picture_s = first_s.get(round(second * rate))
            beside = [click - picture_s for click in self.clicks_s if picture_s is not None]
            if beside and abs(nearest := min(beside, key=abs)) < 0.45:
                found[second] = nearest
        return found


def shown(times_s: list[float], pictures: NDArray[np.uint8], begin_s: float, clicks_s: list[float]) -> Shown:
    order = np.argsort(times_s, kind="stable")
    decoded = tuple(read_number(picture) for picture in pictures)
    numbers = [decoded[at] for at in order]
    return Shown(np.array(times_s)[order] - begin_s, numbers, [at_s - begin_s for at_s in clicks_s], decoded)


def clicks_of(samples: NDArray[np.float32]) -> list[float]:
    """When sound becomes loud behind a silence, in seconds."""
    loud = np.abs(samples[: len(samples) // 48 * 48]).reshape(-1, 48).max(axis=1) > 0.1
    silent_ms = np.lib.stride_tricks.sliding_window_view(np.concatenate([np.zeros(100, bool), loud]), 100)
    return [at / 1000 for at in np.flatnonzero(loud & ~silent_ms[: len(loud)].any(axis=1)).tolist()]


def by_program(path: Path) -> Shown | None:
    """What FFmpeg's program shows."""
    width, height = SIZE
    words = (
        f"-map 0:v:0 -vf scale={width}:{height},showinfo -fps_mode passthrough -f rawvideo -pix_fmt rgb24 -"
    )
    program = [PROGRAM, "-nostdin", "-hide_banner", "-i", str(path)]
    done = subprocess.run([*program, *words.split()], capture_output=True, check=False)
    times_s = [float(found) for found in re.findall(rb"pts_time:\s*(-?[\d.]+)", done.stderr)]
    pictures = np.frombuffer(done.stdout, np.uint8)
    frames = min(len(times_s), len(pictures) // (width * height * 3))
    if not frames:
        return None
    pictures = pictures[: frames * width * height * 3].reshape(frames, height, width, 3)
    heard = f"-map 0:a:0 -af aresample=async=1:first_pts=0:min_hard_comp=0.01 -ac 1 -ar {SOUND_HZ} -f f32le -"
    sound = subprocess.run([*program, *heard.split()], capture_output=True, check=False).stdout
    samples = np.frombuffer(sound[: len(sound) // 4 * 4], np.float32)
    return shown(times_s[:frames], pictures, min(times_s[:frames]), clicks_of(samples))


def by_pyav(source: Path | bytes) -> Shown | None:
    """What a plain reading shows, by the stamps alone."""
    times_s, pictures, placed = (
        list[float](),
        list[NDArray[np.uint8]](),
        list[tuple[float, NDArray[Any], int]](),
    )
    try:
        container = av.open(io.BytesIO(source) if isinstance(source, bytes) else str(source))
    except av.error.FFmpegError:
        return None
    with container:
        try:
            streams = [*container.streams.video[:1], *container.streams.audio[:1]]
            for frame in container.decode(streams) if streams else ():
                if frame.time is None:
                    continue
                if isinstance(frame, av.VideoFrame):
                    times_s.append(frame.time)
                    pictures.append(frame.to_ndarray(width=SIZE[0], height=SIZE[1], format="rgb24"))
                else:
                    placed.append((frame.time, _mono(frame), frame.sample_rate))
        except av.error.FFmpegError:
            pass
    if not times_s:
        return None
    begin_s = min(times_s)
    since_s = min([begin_s, *(at_s for at_s, _, _ in placed)])
    samples = np.zeros(
        round((max([begin_s, *(at_s for at_s, _, _ in placed)]) - since_s + 1) * SOUND_HZ), np.float32
    )
    for at_s, sound, hertz in placed:
        at = round((at_s - since_s) * SOUND_HZ)
        moments = np.arange(round(len(sound) * SOUND_HZ / hertz)) * hertz / SOUND_HZ
        heard = np.interp(moments, np.arange(len(sound)), sound)
        samples[at : at + len(heard)] = heard[: len(samples) - at]
    return shown(times_s, np.stack(pictures), begin_s, [at + since_s for at in clicks_of(samples)])


def _mono(frame: av.AudioFrame) -> NDArray[Any]:
    samples = frame.to_ndarray()
    scale = np.iinfo(samples.dtype).max if samples.dtype.kind == "i" else 1
    one = samples.reshape(-1, frame.layout.nb_channels).T if not frame.format.is_planar else samples
    return one.mean(axis=0) / scale


def differences(film: StrangeFilm, out: Path) -> list[str]:
    """Differences between clips and what all players show of a film, of which no reason says a word."""
    return compare(film, curated(film.path, out, spans={"min_clip_s": 1.0}), judges_of(film.path))


def judges_of(path: Path) -> list[Shown]:
    """What FFmpeg's program and a plain reading show, of those that can read a film."""
    return [judge for judge in (by_program(path), by_pyav(path)) if judge is not None]


def compare(film: StrangeFilm, records: list[tuple[Record, bytes]], judges: Sequence[Shown]) -> list[str]:
    """The same, of records with their clips and what players show."""
    if not judges:
        return []
    judges = list(judges)
    judges += [judge.in_turn() for judge in judges]
    # Times of the accounting count from the first picture in the file, which players may leave out.
    if records[0][0].state == "failed" and (lead_s := records[0][0].end_s) is not None:
        judges += [judge.behind(lead_s) for judge in judges]
    found, is_coded = [], any(".avi" in step for step in (*film.steps, film.path.name))
    if not any(record.reason for record, _ in records):
        end_s = max(record.end_s or 0.0 for record, _ in records)
        lasts_s = [judge.times_s[-1] + judge.frame_s for judge in judges]
        if all(abs(end_s - seconds) > SECONDS + judges[0].frame_s for seconds in lasts_s):
            found.append(f"{end_s:.2f} s in the accounting, {lasts_s[0]:.2f} s in players")
    for record, data in records:
        if data and not record.reason and (clip := by_pyav(data)) is not None:
            for check in (_wrong, _lost, _mute, partial(_apart, rate=float(film.rate))):
                words = [check(record, clip, judge, is_coded) for judge in judges]
                found += words[:1] if all(words) else []
    return found


Check = Callable[[Record, Shown, Shown, bool], str]


def _wrong(record: Record, clip: Shown, judge: Shown, is_coded: bool) -> str:
    within_s = judge.frame_s * (NEAR_CODED if is_coded else NEAR) + 1e-3
    wrong = [
        (round(at_s, 3), number)
        for at_s, number in zip(clip.times_s.tolist(), clip.numbers, strict=True)
        if number not in judge.near(record.start_s + at_s, within_s)
    ]
    return (
        f"{len(wrong)} of {len(clip.numbers)} pictures at wrong times: {wrong[:3]}" if len(wrong) > 1 else ""
    )


def _lost(record: Record, clip: Shown, judge: Shown, is_coded: bool) -> str:
    ends_s = np.append(judge.times_s[1:], judge.times_s[-1] + judge.frame_s)
    is_inside = (judge.times_s >= record.start_s - 1e-3) & (ends_s <= record.end_s + 1e-3)
    visible = np.flatnonzero(is_inside & (ends_s - judge.times_s > LOST * judge.frame_s))
    lost = sorted({judge.numbers[at] for at in visible.tolist()} - set(clip.numbers))
    return f"{len(lost)} pictures are missing: {lost[:5]}" if len(lost) > 1 else ""


def _mute(record: Record, clip: Shown, judge: Shown, is_coded: bool) -> str:
    inside = [click for click in judge.clicks_s if record.start_s + 0.2 < click < record.end_s - 0.2]
    lost = [
        round(click, 2)
        for click in inside
        if all(abs(record.start_s + own - click) > 0.45 for own in clip.clicks_s)
    ]
    is_said = record.audio.startswith("none (")
    return f"no click in the clip ({record.audio}): {lost[:3]}" if lost and not is_said else ""


def _apart(record: Record, clip: Shown, judge: Shown, is_coded: bool, rate: float) -> str:
    own, theirs = clip.offsets_s(rate), judge.offsets_s(rate)
    moved = {second: round(1000 * (own[second] - theirs[second])) for second in own if second in theirs}
    most_ms = 1000 * max(APART_CODED_S if is_coded else APART_S, judge.frame_s / 4)
    return f"sound is off by ms: {moved}" if any(abs(off_ms) > most_ms for off_ms in moved.values()) else ""


def report(seeds: range, folder: Path, *, all_words: bool = False) -> Iterator[str]:
    """Yield a line for each film that differs, and one at the end for each program that wrote films again."""
    results: dict[str, Counter[str]] = {}
    skipped = Counter[str]()
    for seed, film in films(seeds, folder):
        if film is None:
            continue
        records = curated(film.path, folder / str(seed) / "out", spans={"min_clip_s": 1.0})
        judges = judges_of(film.path)
        found = compare(film, records, judges)
        words = sorted({record.reason for record, _ in records if record.reason})
        has_clips = any(data for _, data in records)
        result = "wrong" if found else "right" if not words else "said" if has_clips else "refused"
        results.setdefault(" + ".join(film.writers) or "FFmpeg", Counter())[result] += 1
        skipped.update(film.skipped)
        if found or (all_words and words):
            said = [f"says: {reason}" for reason in words]
            said += [f"players show {len(judge.numbers)} to {judge.times_s[-1]:.2f} s" for judge in judges]
            frames, end_s = sum(record.frames for record, _ in records), max(r.end_s or 0 for r, _ in records)
            said.append(f"clips show {frames}, the accounting ends at {end_s:.2f} s")
            yield "\n    ".join([f"{seed} ({film.path.suffix[1:]}) {result}", *film.steps, *found, *said])
    for why in sorted(skipped):
        yield f"{skipped[why]} steps left out: {why}"
    for writers in sorted(results):
        yield f"{writers}: {', '.join(f'{count} {result}' for result, count in sorted(results[writers].items()))}"
    made, differing = sum(c.total() for c in results.values()), sum(c["wrong"] for c in results.values())
    yield f"{made} films of {len(seeds)} seeds, {differing} differ without a word"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where films and clips are kept")
    parser.add_argument("first", type=int, help="first seed")
    parser.add_argument("last", type=int, help="one past the last seed")
    parser.add_argument(
        "--said", action="store_true", help="show films of which a reason says something, too"
    )
    options = parser.parse_args()
    for line in report(range(options.first, options.last), options.folder, all_words=options.said):
        print(line, flush=True)
