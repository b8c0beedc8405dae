"""Films as cameras, editors and downloads leave them: how FFmpeg renders each, and what must come out of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction


@dataclass(frozen=True)
class Case:
    """One film.

    Attributes:
        name: What is unusual in it.
        suffix: Of the file; decides the container.
        options: Of FFmpeg, between the frames and the file.
        size: (width, height) of the rendered pictures.
        frames: How many are rendered.
        rate: Of the rendered frames, per second.
        shown: Numbers of the frames that the clips must show; None: all of them.
        clip_rate: Frames per second of the clips; None: the same.
        clip_size: (width, height) of the clips; None: the same.
        kept: False where the film must fail, with a reason.
        seconds: Of the clips; None: as many as were rendered.
        colour: Levels by which pictures may differ in the mean; None: colours are not compared.
        loose: Some frames may repeat or be missing, as long as the order is right.
        after: Names a change of the finished file.
    """

    name: str
    suffix: str
    options: str
    size: tuple[int, int] = (176, 144)
    frames: int = 50
    rate: Fraction = Fraction(25)
    shown: Sequence[int] | None = None
    clip_rate: Fraction | None = None
    clip_size: tuple[int, int] | None = None
    kept: bool = True
    seconds: float | None = None
    colour: float | None = 5.0
    loose: bool = False
    after: str = ""
    inputs: tuple[str, ...] = field(default=())


def _codecs() -> list[Case]:
    """Every encoder in a container that usually holds it."""
    x264 = "-c:v libx264 -crf 12 -pix_fmt yuv420p"
    film = {
        "mp4": {
            "H.264": x264,
            "H.264 without B-frames": f"{x264} -bf 0",
            "H.264 open GOP, B-pyramid": f"{x264} -bf 5 -b_strategy 2 -x264-params open-gop=1:keyint=12",
            "H.264 intra refresh": f"{x264} -x264-params intra-refresh=1:keyint=20",
            "H.264 4:2:2 10 bits": "-c:v libx264 -crf 12 -pix_fmt yuv422p10le",
            "H.264 4:4:4": "-c:v libx264 -crf 12 -pix_fmt yuv444p",
            "H.264 lossless RGB": "-c:v libx264rgb -qp 0 -pix_fmt rgb24",
            "H.264 grey": "-c:v libx264 -crf 12 -pix_fmt gray",
            "H.264 full range": "-vf scale=out_range=full -c:v libx264 -crf 12 -pix_fmt yuvj420p",
            "HEVC": "-c:v libx265 -crf 12 -pix_fmt yuv420p -x265-params log-level=none",
            "HEVC 10 bits": "-c:v libx265 -crf 12 -pix_fmt yuv420p10le -x265-params log-level=none",
            "HEVC 12 bits 4:4:4": "-c:v libx265 -crf 12 -pix_fmt yuv444p12le -x265-params log-level=none",
            "MPEG-4 with B-frames": "-c:v mpeg4 -q:v 2 -bf 2",
            "VP9": "-c:v libvpx-vp9 -pix_fmt yuv420p -crf 15 -b:v 0 -deadline realtime -cpu-used 8",
            "AV1": "-c:v libsvtav1 -crf 20 -preset 12 -pix_fmt yuv420p10le",
            "Motion JPEG": "-c:v mjpeg -q:v 2 -pix_fmt yuvj420p",
            "MPEG-2": "-c:v mpeg2video -q:v 2",
        },
        "mov": {
            "ProRes 422": "-c:v prores_ks -profile:v 2",
            "ProRes 4444 with alpha": "-c:v prores_ks -profile:v 4 -pix_fmt yuva444p10le",
            "QuickTime RLE with alpha": "-c:v qtrle -pix_fmt argb",
            "PNG with alpha": "-c:v png -pix_fmt rgba",
            "raw 4:2:2 10 bits (v210)": "-c:v v210",
            "raw RGB": "-c:v rawvideo -pix_fmt rgb24",
            "CineForm": "-c:v cfhd",
            "Sorenson 1": "-c:v svq1 -q:v 2",
            "Apple Video (rpza)": "-c:v rpza",
            "JPEG 2000": "-c:v jpeg2000 -q:v 2",
        },
        "mkv": {
            "FFV1": "-c:v ffv1 -level 3 -pix_fmt yuv420p",
            "FFV1 16 bits": "-c:v ffv1 -level 3 -pix_fmt yuv444p16le",
            "FFV1 RGB with alpha": "-c:v ffv1 -level 3 -pix_fmt bgra",
            "Huffyuv": "-c:v huffyuv -pix_fmt yuv422p",
            "UT Video": "-c:v utvideo -pix_fmt gbrp",
            "VP8": "-c:v libvpx -crf 8 -b:v 2M",
            "Theora": "-c:v libtheora -pix_fmt yuv420p -q:v 9",
            "Dirac (vc2)": "-c:v vc2 -b:v 20M -pix_fmt yuv420p",
            "Snow": "-c:v snow -q:v 2 -strict experimental",
            "MPEG-4 3 of Microsoft": "-c:v msmpeg4 -q:v 2",
        },
        "avi": {
            "MPEG-4 with B-frames": "-c:v mpeg4 -q:v 2 -bf 2",
            "H.264 with B-frames": x264,
            "Microsoft MPEG-4 2": "-c:v msmpeg4v2 -q:v 2",
            "Motion JPEG": "-c:v mjpeg -q:v 2 -pix_fmt yuvj422p",
            "raw BGR": "-c:v rawvideo -pix_fmt bgr24",
            "raw 8-bit palette of grey": "-c:v rawvideo -pix_fmt gray",
            "Cinepak": "-c:v cinepak -q:v 1",
            "ASUS 2": "-c:v asv2 -q:v 2",
            "ZMBV": "-c:v zmbv -pix_fmt bgr0",
            "MagicYUV": "-c:v magicyuv -pix_fmt gbrp",
            "FFVHUFF 4:1:1": "-c:v ffvhuff -pix_fmt yuv411p",
        },
        "ts": {
            "MPEG-2": "-c:v mpeg2video -q:v 2 -bf 2",
            "H.264": x264,
            "HEVC": "-c:v libx265 -x265-params log-level=none",
        },
        "m2ts": {"H.264": x264},
        "mpg": {"MPEG-1": "-c:v mpeg1video -q:v 2 -bf 2", "MPEG-2": "-c:v mpeg2video -q:v 2 -bf 2"},
        "vob": {"MPEG-2": "-c:v mpeg2video -q:v 2 -bf 2"},
        "wmv": {"WMV 2": "-c:v wmv2 -q:v 2", "WMV 1": "-c:v wmv1 -q:v 2"},
        "flv": {
            "Sorenson Spark": "-c:v flv -q:v 2",
            "H.264": x264,
            "Flash Screen Video": "-c:v flashsv -pix_fmt bgr24",
        },
        "webm": {"VP8": "-c:v libvpx -crf 8 -b:v 2M", "AV1": "-c:v libsvtav1 -crf 20 -preset 12"},
        "ogv": {"Theora": "-c:v libtheora -pix_fmt yuv420p -q:v 9"},
        "3gp": {"MPEG-4": "-c:v mpeg4 -q:v 2"},
        "mxf": {"MPEG-2": "-c:v mpeg2video -q:v 2", "JPEG 2000": "-c:v jpeg2000 -q:v 2"},
        "ivf": {"VP9": "-c:v libvpx-vp9 -pix_fmt yuv420p -crf 15 -b:v 0 -deadline realtime -cpu-used 8"},
        "y4m": {"raw 4:2:0": "-pix_fmt yuv420p", "raw 4:2:2 12 bits": "-pix_fmt yuv422p12le -strict -1"},
        "rm": {"RealVideo 2": "-c:v rv20 -q:v 2"},
        "h264": {"raw stream": x264},
        "hevc": {"raw stream": "-c:v libx265 -x265-params log-level=none"},
        "gif": {"GIF": "-vf split[a][b];[a]palettegen[p];[b][p]paletteuse"},
        "apng": {"APNG": "-c:v apng -pix_fmt rgb24"},
    }
    rough = {"Apple Video (rpza)": 12.0, "Cinepak": 12.0, "GIF": 12.0, "Sorenson 1": 12.0, "ASUS 2": 8.0}
    grey = ("H.264 grey", "raw 8-bit palette of grey")
    return [
        Case(name, suffix, options, colour=None if name in grey else rough.get(name, 5.0))
        for suffix, films in film.items()
        for name, options in films.items()
    ]


X264 = "-c:v libx264 -crf 12 -pix_fmt yuv420p"
NTSC, FILM = Fraction(30000, 1001), Fraction(24000, 1001)


def _times() -> list[Case]:
    """Rates and clocks."""
    setts = "-fps_mode passthrough"
    vfr = "select='not(between(n\\,20\\,24))'"
    held = [*range(20), *[19] * 5, *range(25, 50)]
    return [
        Case("23.976 fps", "mp4", X264, rate=FILM),
        Case("29.97 fps", "mkv", X264, rate=NTSC),
        Case("59.94 fps", "ts", X264, rate=Fraction(60000, 1001), frames=120),
        Case("120 fps", "mp4", X264, rate=Fraction(120), frames=240),
        Case("1 fps", "mp4", X264, rate=Fraction(1), frames=8),
        Case("12.5 fps", "avi", "-c:v mpeg4 -q:v 2", rate=Fraction(25, 2)),
        Case("dropped still frames", "mp4", f"-vf {vfr} {setts} {X264}", shown=held),
        Case("dropped still frames", "mkv", f"-vf {vfr} {setts} {X264}", shown=held),
        Case("dropped still frames", "webm", f"-vf {vfr} {setts} -c:v libvpx -b:v 2M", shown=held),
        Case("jitter of 8 ms", "mkv", f"-vf setpts='PTS+mod(N\\,3)*0.004/TB' {setts} {X264}"),
        Case("starts at 3 s", "mp4", f"{X264} -output_ts_offset 3"),
        Case("starts at 3 s", "ts", f"{X264} -output_ts_offset 3"),
        Case("the 33-bit clock wraps in it", "ts", f"{X264} -output_ts_offset 95442.7"),
        Case("edit list: begins at frame 10", "mp4", X264, after="trim", shown=range(10, 50), seconds=1.6),
        Case("fragmented", "mp4", f"{X264} -g 10 -movflags frag_keyframe+empty_moov+default_base_moof"),
        Case(
            "fragmented, the last fragment still to come",
            "mp4",
            f"{X264} -g 10 -movflags frag_keyframe+empty_moov",
            after="cut off",
            loose=True,
            seconds=-1,
        ),
        Case("index first", "mp4", f"{X264} -movflags +faststart"),
        Case("still growing", "mp4", X264, after="cut off", kept=False),
        Case("still growing", "mkv", f"{X264} -g 10", after="cut off", loose=True, seconds=-1),
        Case("still growing", "ts", f"{X264} -g 10", after="cut off", loose=True, seconds=-1),
        Case("live, without index or length", "mkv", f"{X264} -live 1"),
        Case("two recordings joined", "ts", X264, after="twice", shown=[*range(50), *range(50)], seconds=4.0),
        Case(
            "two recordings joined", "h264", X264, after="twice", shown=[*range(50), *range(50)], seconds=4.0
        ),
        Case(
            "two recordings joined",
            "mpg",
            "-c:v mpeg2video -q:v 2",
            after="twice",
            shown=[*range(50), *range(50)],
            seconds=4.0,
        ),
        Case(
            "interlaced, top field first",
            "mp4",
            f"-vf tinterlace=4 {X264} -flags +ildct+ilme -x264-params tff=1",
            frames=100,
            rate=Fraction(50),
            clip_rate=Fraction(25),
            shown=range(0, 100, 2),
        ),
        Case(
            "interlaced, bottom field first",
            "ts",
            "-vf tinterlace=5 -c:v mpeg2video -q:v 2 -flags +ildct+ilme -field_order bb -top 0",
            frames=100,
            rate=Fraction(50),
            clip_rate=Fraction(25),
            shown=range(0, 100, 2),
            loose=True,
        ),
        Case(
            "interlaced, field order only in the header",
            "mxf",
            "-vf tinterlace=4 -c:v mpeg2video -q:v 2 -flags +ildct+ilme -top 1",
            frames=100,
            rate=Fraction(50),
            clip_rate=Fraction(25),
            shown=range(0, 100, 2),
        ),
        Case(
            "telecined (3:2 pulldown)",
            "mpg",
            "-vf telecine=first_field=top -r 30000/1001 -c:v mpeg2video -q:v 2 -flags +ildct+ilme -top 1",
            frames=96,
            rate=FILM,
        ),
        Case(
            "telecined, marked as progressive",
            "mkv",
            f"-vf telecine=first_field=bottom -r 30000/1001 {X264}",
            frames=96,
            rate=FILM,
        ),
        Case(
            "interlaced ProRes",
            "mov",
            "-vf tinterlace=4 -c:v prores_ks -flags +ildct+ilme -top 1",
            frames=100,
            rate=Fraction(50),
            clip_rate=Fraction(25),
            shown=range(0, 100, 2),
        ),
        Case(
            "interlaced, MBAFF",
            "ts",
            "-vf tinterlace=4 -c:v libx264 -crf 12 -pix_fmt yuv420p -x264-params interlaced=1:tff=1",
            frames=100,
            rate=Fraction(50),
            clip_rate=Fraction(25),
            shown=range(0, 100, 2),
        ),
        Case(
            "one stamp steps back",
            "mkv",
            f"-vf setpts='if(eq(N\\,20)\\,PTS-0.12/TB\\,PTS)' {setts} {X264} -bf 0",
        ),
        Case("a jump of two hours", "ts", f"{X264} -bsf:v setts=ts='TS+gte(N\\,25)*648000000' -bf 0"),
        Case("packed B-frames", "avi", "-c:v mpeg4 -q:v 2 -bf 2 -bsf:v mpeg4_unpack_bframes"),
        Case("key frames only", "mp4", f"{X264} -g 1"),
        Case("one key frame", "mp4", f"{X264} -g 1000"),
        Case(
            "periods of 250 ms in a GIF",
            "gif",
            "-vf fps=4",
            shown=None,
            clip_rate=Fraction(4),
            loose=True,
            colour=None,
        ),
        Case("PAL DV", "dv", "-target pal-dv", size=(720, 576), clip_size=None, loose=True, colour=8.0),
    ]


def _shapes() -> list[Case]:
    """Sizes, orientation, colours and tracks."""
    turned = (144, 176)
    sound = ("-f lavfi -i sine=440:duration=2", "-f lavfi -i sine=880:duration=2")
    maps = "-map 0:v -map 1:a -map 2:a"
    return [
        Case(
            "odd size 4:2:0",
            "webm",
            "-c:v libvpx-vp9 -pix_fmt yuv420p -crf 15 -b:v 0 -deadline realtime -cpu-used 8",
            size=(175, 143),
            clip_size=(174, 142),
        ),
        Case("odd size 4:4:4", "mkv", "-c:v ffv1 -pix_fmt yuv444p", size=(175, 143), clip_size=(174, 142)),
        # The pixels of H.263's own sizes are not square.
        Case("H.263", "3gp", "-c:v h263 -q:v 2", clip_size=(192, 144)),
        Case("very wide", "mp4", X264, size=(640, 96)),
        Case("very high", "mp4", X264, size=(128, 640)),
        Case("pixels of 2:1", "mp4", f"-vf setsar=2/1 {X264}", clip_size=(352, 144)),
        Case("pixels of 8:9", "mkv", f"-vf setsar=8/9 {X264}", clip_size=(156, 144)),
        Case("turned by 90", "mp4", X264, after="rotate 90", clip_size=turned),
        Case("turned by 180", "mp4", X264, after="rotate 180"),
        Case("turned by 270", "mov", X264, after="rotate 270", clip_size=turned),
        Case("mirrored by its matrix", "mp4", X264, after="mirror"),
        Case(
            "BT.601 matrix, tagged",
            "mp4",
            f"-vf scale=out_color_matrix=bt601 {X264} -colorspace smpte170m -color_primaries "
            "smpte170m -color_trc smpte170m",
        ),
        Case(
            "BT.709 matrix, tagged",
            "mp4",
            f"-vf scale=out_color_matrix=bt709 {X264} -colorspace bt709 -color_primaries bt709"
            " -color_trc bt709",
        ),
        Case(
            "BT.709 matrix, HD, not tagged",
            "mp4",
            f"-vf scale=out_color_matrix=bt709 {X264}",
            size=(1280, 720),
            frames=30,
        ),
        Case(
            "BT.2020 matrix, tagged, SDR",
            "mkv",
            "-vf scale=out_color_matrix=bt2020 -c:v libx264 -crf 12 -pix_fmt yuv420p10le"
            " -colorspace bt2020nc -color_primaries bt709 -color_trc bt709",
        ),
        Case(
            "full range, tagged in the container alone",
            "mkv",
            "-vf scale=out_range=full -c:v ffv1 -pix_fmt yuv420p -color_range pc",
        ),
        Case("two sounds", "mp4", f"{maps} {X264} -c:a aac", inputs=sound),
        Case(
            "two sounds, Vorbis and FLAC", "mkv", f"{maps} {X264} -c:a:0 libvorbis -c:a:1 flac", inputs=sound
        ),
        Case("two sounds, MP2 and AC-3", "ts", f"{maps} {X264} -c:a:0 mp2 -c:a:1 ac3", inputs=sound),
        Case("PCM sound", "mov", f"-map 0:v -map 1:a {X264} -c:a pcm_s24le", inputs=sound[:1]),
        Case(
            "a second, larger picture of 1 fps",
            "mkv",
            f"-map 0:v -map 1:v {X264} -r:v:1 1",
            inputs=("-f lavfi -i color=red:size=320x240:rate=1:duration=2",),
        ),
        Case(
            "a second, larger still",
            "mp4",
            f"-map 1:v -map 0:v {X264}",
            inputs=("-f lavfi -i color=red:size=320x240:rate=25:duration=0.04",),
        ),
        Case(
            "cover art",
            "mp4",
            "-map 0:v -map 1:v -c:v:0 libx264 -crf 12 -pix_fmt:v:0 yuv420p -c:v:1 mjpeg -frames:v:1 1"
            " -disposition:v:1 attached_pic",
            inputs=("-f lavfi -i color=red:size=320x240:rate=25:duration=0.04",),
        ),
        Case(
            "sound longer than its film",
            "mp4",
            f"-map 0:v -map 1:a {X264} -c:a aac",
            inputs=("-f lavfi -i sine=440:duration=4",),
        ),
        Case(
            "sound that starts late",
            "mkv",
            f"-map 0:v -map 1:a {X264} -c:a aac",
            inputs=("-itsoffset 0.5 -f lavfi -i sine=440:duration=1",),
        ),
        Case(
            "two programmes",
            "ts",
            f"-map 0:v -map 1:v -program program_num=1:st=0 -program program_num=2:st=1 {X264}",
            inputs=("-f lavfi -i color=red:size=96x64:rate=25:duration=2",),
        ),
        Case(
            "HDR10 (PQ)",
            "mkv",
            "-c:v libx265 -pix_fmt yuv420p10le -x265-params log-level=none:colorprim=bt2020:"
            "transfer=smpte2084:colormatrix=bt2020nc",
            colour=None,
        ),
        Case(
            "HLG",
            "mp4",
            "-c:v libx265 -pix_fmt yuv420p10le -x265-params log-level=none:colorprim=bt2020:"
            "transfer=arib-std-b67:colormatrix=bt2020nc",
            colour=None,
        ),
        Case(
            "VP9 4:4:0",
            "webm",
            "-c:v libvpx-vp9 -pix_fmt yuv440p -crf 15 -b:v 0 -deadline realtime -cpu-used 8",
        ),
        Case(
            "VP9 with alpha",
            "webm",
            "-c:v libvpx-vp9 -pix_fmt yuva420p -crf 15 -b:v 0",
        ),
        Case("8-bit palette", "mov", "-vf split[a][b];[a]palettegen[p];[b][p]paletteuse -c:v qtrle "),
        Case("grey, 12 bits", "mkv", "-c:v ffv1 -pix_fmt gray12le", colour=None),
        Case("RGB, 16 bits", "mov", "-c:v png -pix_fmt rgb48be"),
        Case("1 bit", "mov", "-vf format=monow -c:v rawvideo", colour=None, kept=True, loose=True),
        Case("timecode track", "mov", f"{X264} -timecode 01:00:00:00"),
        Case(
            "chapters and subtitles",
            "mkv",
            f"-map 0:v -map 1:s -map_chapters 2 {X264} -c:s srt",
            inputs=("-i $SRT", "-i $CHAPTERS"),
        ),
        Case(
            "changes its size",
            "h264",
            X264,
            after="then larger",
            loose=True,
            frames=50,
            colour=None,
            seconds=4.0,
        ),
    ]


CASES = [*_codecs(), *_times(), *_shapes()]
