"""Films that random commands of FFmpeg's program make: encoded, cut, joined, moved in time and robbed of packets.

Other programs write some of them again. Each picture holds its number, and a click sounds at each whole second.
A seed always makes the same commands.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np

from tests.fuzz.other_writers import Source, rewrite
from tests.media import numbered_frame
from tests.player import SIZE, ffmpeg

CLICK_HZ, SOUND_HZ = 1000, 48000
RATES = ("24", "25", "30", "50", "30000/1001", "15")
QUIET = "log-level=none"

# By encoder: its options, the containers that hold it, and how often it is drawn.
CODECS: dict[str, tuple[Sequence[str], str, int]] = {
    "libx264": (
        ("-bf 0", "-bf 3", "-bf 2 -x264-params open-gop=1", "-bf 0 -x264-params intra-refresh=1"),
        "mp4 mov mkv ts flv avi wmv",
        8,
    ),
    "libx265": ((f"-x265-params {QUIET}", f"-x265-params {QUIET}:bframes=0"), "mp4 mov mkv ts", 3),
    "mpeg2video": (("-q:v 4", "-q:v 4 -bf 2"), "ts mpg mkv", 3),
    "mpeg4": (("", "-bf 2"), "avi mp4 mov mkv", 2),
    "libvpx-vp9": (("-deadline realtime -cpu-used 8",), "webm mkv mp4", 2),
    "libsvtav1": (("-preset 12 -crf 20",), "mp4 mkv", 1),
    "mjpeg": (("-q:v 4 -pix_fmt yuvj420p",), "avi mov mkv", 1),
    "wmv2": (("-q:v 3",), "wmv avi", 1),
    "flv": (("-q:v 3",), "flv", 1),
}
SOUNDS = {
    "mp4": "aac libmp3lame ac3",
    "mov": "aac pcm_s16le",
    "mkv": "aac flac libopus pcm_s16le",
    "webm": "libopus libvorbis",
    "ts": "aac libmp3lame ac3",
    "mpg": "mp2",
    "flv": "aac",
    "avi": "pcm_s16le libmp3lame",
    "wmv": "wmav2",
}
MUXERS = {
    "mp4": ("", "-movflags +faststart", "-movflags +frag_keyframe+empty_moov", "-video_track_timescale 1000"),
    "mov": ("", "-use_editlist 0"),
    "ts": ("", "-muxdelay 0", "-output_ts_offset 95440"),
}
LATER = "pts=PTS+gte(N\\,50)*0.5/TB:dts=DTS+gte(N\\,50)*0.5/TB"
FILTERS = (
    "null",
    "null",
    "null",
    "select='not(eq(mod(n,5),2))'",
    "select='lt(n,40)+gt(n,90)'",
    "setpts='PTS+0.4/TB'",
)


@dataclass(frozen=True)
class StrangeFilm:
    """Film and how it came to be.

    Attributes:
        path: The film.
        rate: Frames per second of its numbers: frame n * rate stands beside click n.
        steps: Words of the commands, in turn.
        writers: Programs other than FFmpeg's that wrote it again, in turn.
        skipped: Why others did not, in words.
    """

    path: Path
    rate: Fraction
    steps: tuple[str, ...]
    writers: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()


def raw_film(folder: Path, rate: str, seconds: int) -> tuple[Path, Path]:
    """Pictures and sound without a container, written once."""
    pictures, sound = folder / f"{rate.replace('/', '_')}.rgb", folder / "sound.raw"
    if not pictures.exists():
        frames = round(Fraction(rate) * seconds)
        pictures.write_bytes(b"".join(numbered_frame(number, *SIZE).tobytes() for number in range(frames)))
    if not sound.exists():
        at_s = np.arange(seconds * SOUND_HZ) / SOUND_HZ
        clicks = np.where((at_s % 1 < 0.05) & (at_s > 0.5), np.sin(2 * np.pi * CLICK_HZ * at_s), 0.0)
        sound.write_bytes((20000 * clicks).astype("<i2").tobytes())
    return pictures, sound


def make_film(
    seed: int, folder: Path, raw: Path | None = None, *, by_others: bool = False
) -> StrangeFilm | None:
    """Make the film of a seed, or None where the program refuses one of its commands.

    Args:
        seed: Number of the film.
        folder: Folder of the film, and of those that it is made of.
        raw: Folder of pictures and sound without a container, which all films share; ``folder`` by default.
        by_others: True to let other programs write three of four films again. Those that are not installed, or
            refuse, leave a film as it is: see ``StrangeFilm.skipped``.
    """
    raw = folder if raw is None else raw
    for needed in (folder, raw):
        needed.mkdir(parents=True, exist_ok=True)
    rng, rate = random.Random(seed), RATES[seed % len(RATES)]
    (codec,) = rng.choices(list(CODECS), [often for _, _, often in CODECS.values()])
    options, containers, _ = CODECS[codec]
    kind = rng.choice(containers.split())
    sound = rng.choice([*SOUNDS[kind].split(), ""])
    coded = f"{rng.choice(options)} -g {rng.choice((12, 50, 250))}"
    maker = _Maker(rng, folder, raw, rate, codec, sound)
    path = folder / f"{seed}-0.{kind}"
    if not maker.encode(path, coded, rng.choice(FILTERS), 0, rng.choice((5, 6))):
        return None
    allowed = [other for other in containers.split() if not sound or sound in SOUNDS[other].split()]
    for number in range(1, rng.choice((1, 2, 2, 3))):
        other = folder / f"{seed}-{number}.{rng.choice(allowed)}"
        if not maker.change(path, other, coded):
            return None
        path = other
    # A random order of its own: what FFmpeg's program does before does not depend on it.
    after = random.Random(f"{seed} by other programs")
    writers, skipped = list[str](), list[str]()
    for number in range(after.choice((0, 1, 1, 2)) if by_others else 0):
        source = Source(path, codec, sound, lambda second: maker.encode(second, coded, "null", 7, 3))
        name, written = rewrite(after, source, folder / f"{seed}-by{number}")
        if written.path is None:
            skipped.append(written.words)
            continue
        path = written.path
        maker.steps.append(written.words)
        writers.append(name)
    return StrangeFilm(path, Fraction(rate), tuple(maker.steps), tuple(writers), tuple(skipped))


@dataclass
class _Maker:
    rng: random.Random
    folder: Path
    raw: Path
    rate: str
    codec: str
    sound: str

    def __post_init__(self) -> None:
        self.steps: list[str] = []

    def encode(self, path: Path, options: str, filters: str, first_s: int, seconds: int) -> bool:
        """Encode some seconds of the raw film."""
        pictures, sound = raw_film(self.raw, self.rate, 12)
        size, since = "x".join(map(str, SIZE)), f"-ss {first_s} -t {seconds}"
        words = f"-f rawvideo -pix_fmt rgb24 -s {size} -r {self.rate} {since} -i {pictures}"
        if self.sound:
            words += f" -f s16le -ar {SOUND_HZ} -ac 1 {since} -i {sound} -c:a {self.sound} -strict -2"
        muxer = self.rng.choice(MUXERS.get(path.suffix[1:], ("",)))
        coded = f"-pix_fmt yuv420p -fps_mode vfr -c:v {self.codec} {options} {muxer}"
        return self._run([*words.split(), "-vf", filters, *coded.split()], path)

    def change(self, path: Path, out: Path, options: str) -> bool:
        """Make another film of one by copying its packets."""
        begin_s, seconds = self.rng.uniform(0.1, 2.0), self.rng.uniform(2.5, 4.0)
        match self.rng.choice(
            ("cut", "cut behind", "join", "join behind", "drop", "later", "offset", "copy")
        ):
            case "cut":
                return self._copy(["-ss", f"{begin_s:.3f}", "-i", str(path), "-t", f"{seconds:.3f}"], out)
            case "cut behind":
                return self._copy(["-i", str(path), "-ss", f"{begin_s:.3f}"], out)
            case "join":
                return self._join(path, out, options, "")
            case "join behind":
                return self._join(path, out, options, f"outpoint {seconds:.3f}\n")
            case "drop":
                which = self.rng.choice(("eq(mod(n,41),40)", "between(n,50,62)", "lt(n,7)"))
                return self._copy(["-i", str(path), "-bsf:v", f"noise=drop='{which}'"], out)
            case "later":
                return self._copy(["-i", str(path), f"-bsf:{self.rng.choice('va')}", f"setts={LATER}"], out)
            case "offset":
                return self._copy(
                    ["-i", str(path), "-output_ts_offset", self.rng.choice(("1.7", "-0.3"))], out
                )
        return self._copy(["-i", str(path)], out)

    def _join(self, path: Path, out: Path, options: str, ends: str) -> bool:
        second = out.with_name(f"{out.stem}-second{path.suffix}")
        names = out.with_suffix(".txt")
        names.write_text(f"file '{path}'\n{ends}file '{second}'\n")
        joined = self.encode(second, options, "null", 7, self.rng.choice((3, 4)))
        return joined and self._copy(["-f", "concat", "-safe", "0", "-i", str(names)], out)

    def _copy(self, words: Sequence[str], out: Path) -> bool:
        muxer = self.rng.choice(MUXERS.get(out.suffix[1:], ("",)))
        return self._run([*words, "-map", "0", "-c", "copy", *muxer.split()], out)

    def _run(self, words: Sequence[str], out: Path) -> bool:
        self.steps.append(" ".join(words).replace(f"{self.folder}/", "").replace(f"{self.raw}/", ""))
        return ffmpeg([*words, "-y", str(out)], may_fail=True) and out.stat().st_size > 0


def films(seeds: range, folder: Path) -> Iterator[tuple[int, StrangeFilm | None]]:
    """The films of seeds, with a None for each that the program refuses."""
    for seed in seeds:
        yield seed, make_film(seed, folder / str(seed), folder / "raw", by_others=True)
