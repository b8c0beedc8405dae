"""Films whose last picture is shown for longer than the others."""

from pathlib import Path

from tests.player import ffmpeg

HELD = {
    "a.gif": "-r 10 -frames:v 20 -final_delay 300",
    "a.apng": "-r 10 -frames:v 20 -f apng -final_delay 3",
    "a.mp4": "-c:v libx264 -bf 0 -pix_fmt yuv420p",
    "b-frames.mp4": "-c:v libx264 -bf 3 -pix_fmt yuv420p",
    "a.mov": "-c:v libx264 -pix_fmt yuv420p",
    "a.mkv": "-c:v libx264 -pix_fmt yuv420p",
    "a.webm": "-c:v libvpx -deadline realtime -cpu-used 8",
}


def held_film(folder: Path, name: str, held: int = 30) -> Path:
    """20 frames of 0.1 s, the last of which is shown for so many; GIF and APNG for 30."""
    path = folder / name
    drawn = f"-f lavfi -i testsrc2=s=160x96:r=10:d=2 -vf hflip {HELD[name]}"
    if path.suffix in (".gif", ".apng"):
        ffmpeg([*drawn.split(), "-y", str(path)])
        return path
    even = folder / f"even-{name}"
    ffmpeg([*drawn.split(), "-y", str(even)])
    longer = f"setts=pts=PTS:dts=DTS:duration='if(eq(N,19),DURATION*{held},DURATION)'"
    ffmpeg(["-i", str(even), "-c", "copy", "-bsf:v", longer, "-y", str(path)])
    return path
