"""One whole decode of a source: frame times, damage, shot transitions, picture size."""

from array import array
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import BinaryIO, cast

from av.audio.stream import AudioStream
from av.container import InputContainer
from av.video.stream import VideoStream

from reelweave.curate.config import SourceStageConfig
from reelweave.curate.cut.crop import BarMeter
from reelweave.curate.cut.smart.ahead import SmartAhead
from reelweave.curate.cut.smart.packets import SmartPackets
from reelweave.curate.cut.trim import NotedPackets
from reelweave.curate.frames.clocks.sound_stamps import SoundStamps, other_rates
from reelweave.curate.frames.container.avi_index import held_slots
from reelweave.curate.frames.container.cut_off import fragments_end
from reelweave.curate.frames.container.edit_list import count_edits, edit_faults, kept_lead, misread_step
from reelweave.curate.frames.container.encryption import encryption
from reelweave.curate.frames.container.further_film import (
    begins_behind,
    further_film,
    unlisted_media,
    unread_sound,
)
from reelweave.curate.frames.container.immersive import immersive
from reelweave.curate.frames.container.stream_choice import (
    SoundChoice,
    choose_sound,
    left_out,
    other_pictures,
)
from reelweave.curate.frames.decode.decoder import Decoder
from reelweave.curate.frames.frame_times import FrameTimes
from reelweave.curate.frames.interlace import CombMeter
from reelweave.curate.frames.perceptual import PICTURE
from reelweave.curate.frames.picture import Geometry, geometry, marks_of, oblique, size_at
from reelweave.curate.frames.probe import Probe, probe
from reelweave.curate.frames.sound_clock import (
    NotingDemuxer,
    SoundClock,
)
from reelweave.curate.frames.source import SourceError, open_video, without_frames
from reelweave.curate.frames.telecine import FieldDifferences
from reelweave.curate.shots import ShotDetector, Transition, make_detector
from reelweave.curate.shots.boundaries import candidates_of
from reelweave.curate.shots.fixed import FixedStrideConfig, FixedStrideDetector
from reelweave.curate.shots.scale import Scaler
from reelweave.curate.shots.stitch import SampleEmbeddings, StitchConfig, stitch
from reelweave.curate.shots.types import Candidate, with_cuts
from reelweave.curate.source_pass.decoded import Decoded
from reelweave.curate.source_pass.lookahead import lookahead_of
from reelweave.curate.source_pass.lookahead_encode import LookaheadEncoder, encode_ahead
from reelweave.curate.source_pass.remarks import WHOLE_STEPS, describe_changes, describe_grid, describe_turn
from reelweave.curate.source_pass.sampling import FrameStats
from reelweave.curate.sources.segments import Segment
from reelweave.loader.dataset.samples.frames.reorder import is_delayed
from reelweave.loader.text import pluralize

_NEVER_S = 1e9


@dataclass(frozen=True)
class Scan:
    """Result of one whole decode of a source, with the clips encoded in that decode."""

    probe: Probe
    timeline: FrameTimes
    transitions: list[Transition]
    candidates: list[Candidate]
    size: Geometry
    stats: FrameStats
    source_bytes: int
    ahead: LookaheadEncoder | None = None
    sound_clock: SoundClock | None = None
    packets: NotedPackets | None = None
    smart: SmartPackets | None = None
    begin_pts: int | None = None
    remark: str = ""
    further: int | None = None  # byte at which another film begins behind this one, or 0
    ended_by: str | None = None  # error of the container at which reading ended
    bars: BarMeter | None = None
    unshown: str | None = None  # words for pictures behind the last one that FFmpeg leaves out


def shots(
    detector: ShotDetector, samples: SampleEmbeddings, line: FrameTimes, config: SourceStageConfig
) -> list[Transition]:
    """End a detector, and return the transitions of its source that clips may not cross."""
    return with_cuts(stitch(detector.finish(), samples, line.frames, config.stitch), line.borders)


def detector_for(config: SourceStageConfig, fps: float, segments: Sequence[Segment]) -> ShotDetector:
    """Return the detector of a source; listed segments that stay whole need no shots."""
    if segments and config.spans.listed == "whole":
        return FixedStrideDetector(FixedStrideConfig(stride_s=_NEVER_S), fps)
    return make_detector(config.shots, fps)


def stitch_for(config: SourceStageConfig, segments: Sequence[Segment]) -> StitchConfig:
    """Return how shots of a source are stitched; those of a list and of a fixed stride are not merged."""
    if config.shots.detector == "fixed" or (segments and config.spans.listed == "whole"):
        return config.stitch.model_copy(update={"enabled": False})
    return config.stitch


@contextmanager
def scan(file: BinaryIO, config: SourceStageConfig, segments: Sequence[Segment] = ()) -> Iterator[Scan]:
    """Decode a source once, whole; clips encoded in that decode are available until the context ends.

    Memory is bounded by ``cut.ahead_mb`` of frames, the detector's window, the stitching samples, 24 bytes per
    frame and 24 per sound packet.

    Args:
        file: File of the source.
        config: Configuration of the pass.
        segments: Segments that a list names.

    Raises:
        SourceError: nothing can be decoded, or a limit is exceeded.
    """
    with ExitStack() as stack:
        yield _scan(file, config, segments, stack)


def _scan(file: BinaryIO, config: SourceStageConfig, segments: Sequence[Segment], stack: ExitStack) -> Scan:
    check_order(file)
    file.seek(0)
    limits = config.probe
    max_pixels = limits.max_width * limits.max_height
    with open_video(file, max_pixels=max_pixels, motion_vectors=True) as (container, stream):
        header = probe(container, stream, limits, file)
        check_edits(container, stream, file)
        fps = header.fps
        detector = detector_for(config, fps, segments)
        scale = Scaler(PICTURE)
        # Stitching and the scores need one size; a network may need another.
        own_scale = scale if detector.analysis_size == PICTURE else Scaler(detector.analysis_size)
        samples = SampleEmbeddings(stitch_for(config, segments), fps)
        stats = FrameStats()
        lookahead = lookahead_of(detector, samples, header, config, segments)
        ahead: LookaheadEncoder | None = None
        trims = config.cut.trim_s > 0 and config.cut.mode in ("copy", "auto") and header.container != "avi"
        noted = NotedPackets(stream) if trims else None
        smart = smart_packets(container, stream, header, config, keeps=lookahead is not None)
        notes = noted if smart is None else smart
        choice = choose_sound(container, stream, file) if config.cut.audio == "keep" else SoundChoice()
        packets = NotingDemuxer(container, choice.stream, None if notes is None else notes.take)
        decoder = Decoder(cast(InputContainer, packets), stream, limits, file=file)
        inverts = limits.interlaced == "deinterlace" and config.cut.mode != "copy"
        fields = FieldDifferences(header.rate if inverts else None)
        comb = CombMeter() if limits.interlaced != "keep" else None
        pts: list[int | None] = []
        durations = array("q")
        size: Geometry | None = None
        stored = ""  # how the pictures are stored that players show otherwise
        time_base = stream.time_base or Fraction(1, 1000)
        bars = BarMeter(time_base, fps) if config.cut.crop_bars else None
        for frame in decoder.frames():
            if size is None:
                size = geometry(frame, None, config.cut.max_bits)
                size = size_at(decoder.shapes, 0, size, config.cut.max_bits)
                stored = "; ".join(filter(None, (immersive(frame), oblique(frame))))
                if noted is not None:
                    noted.begin(frame)
                if lookahead is not None:
                    cuts = None if smart is None else SmartAhead(stream, smart, size, config.cut)
                    ahead = stack.enter_context(
                        encode_ahead(
                            lookahead, size, header, time_base, container.size, config, smart=cuts, bars=bars
                        )
                    )
            pts.append(frame.pts)
            durations.append(frame.duration or 0)
            if smart is not None:
                smart.show(frame, marks_of(frame))
            small = scale(frame)
            detector.push(small if own_scale is scale else own_scale(frame))
            samples.push(len(pts) - 1, small)
            stats.push(small)
            fields.push(frame)
            if bars is not None:
                bars.push(frame)
            if comb is not None:
                comb.push(frame)
            if ahead is not None and len(decoder.shapes) > 1:
                ahead.close()  # it knows one size
                ahead = None
            elif ahead is not None:
                ahead.push(frame)
        if durations and header.container == "avi":
            durations[-1] += held_slots(file, stream.index)
        damage = decoder.damage()
        if (size is None or damage) and (words := encryption(file)):
            raise SourceError(words)
        if size is None:
            raise SourceError(without_frames(file))
        unmarked = None if comb is None or decoder.interlaced else comb.order(header.interlaced)
        if unmarked is not None and limits.interlaced == "reject":
            raise SourceError("is interlaced without a mark; probe.interlaced is set to reject it")
        decoded = Decoded(
            header,
            pts,
            durations,
            time_base,
            stream.start_time,
            damage,
            decoder.interlaced,
            unmarked,
            fields.pulldown(),
            packets.heard(),
            decoder.shapes,
            packets.coded,
            decoder.undecoded,
            packets.repeated.stamps,
        )
        line = decoded.timeline(config)
        if (sound_clock := decoded.sound_clock(line)) is not None:
            line = replace(line, sound_steps=sound_clock.steps)
        transitions = shots(detector, samples, line, config)
        if ahead is not None:
            ahead.finish(line)
        goes_on = other_pictures(container, decoder.last_packet) if packets.turn.byte is None else None
        step = misread_step(container, file, stream.id)
        unshown = packets.hidden.count(stream.frames) if step else 0
        lacking = "" if choice.stream is None else unread_sound(file, choice.stream.id)
        uneven = decoded.uneven_sound(line) if packets.turn.byte is None else ""
        rates = (
            "" if choice.stream is None else _other_rates(packets.heard(), choice.stream, header.container)
        )
        return Scan(
            replace(header, promised_s=decoded.promised_s(line)),
            line,
            transitions,
            candidates_of(detector),
            size,
            stats,
            container.size,
            ahead,
            sound_clock,
            noted,
            smart,
            pts[0],
            describe_changes(
                line,
                combed=comb is not None and not decoder.interlaced and comb.some(),
                transparent=decoder.transparent,
                others=(
                    describe_turn(stream) if decoder.turned else "",
                    describe_grid(pts, line),
                    stored,
                    kept_lead(header.container, float((pts[0] or 0) * time_base)),
                    left_out(container, choice, goes_on=goes_on is not None),
                    packets.hidden.describe(stream.frames, count_edits(container, file, stream.id)),
                    lacking or uneven,
                    rates,
                    unlisted_media(file) if "mp4" in header.container else "",
                    "" if sound_clock is None else sound_clock.remark,
                    WHOLE_STEPS if line.sound_steps and segments and config.spans.listed == "whole" else "",
                ),
            ),
            begins_behind(file, header.container, decoder.last_packet),
            ended_by(file, header.container) or decoder.ended_by or goes_on,
            bars,
            _behind(packets.turn.byte, unshown, step),
        )


def _other_rates(stamps: SoundStamps, sound: AudioStream, container: str) -> str:
    """Return `other_rates` of AAC, where no packet states its own (ADTS), "" for other sound."""
    codec = sound.codec_context
    if codec.codec.canonical_name != "aac" or not codec.extradata or container in ("mpegts", "mpeg"):
        return ""
    # Of HE-AAC the decoder doubles the rate, and the samples of a packet.
    samples = 2048 if "HE" in (codec.profile or "") else 1024
    return other_rates(stamps, codec.sample_rate, samples)


def _behind(turned: int | None, unshown: int, step: str) -> str | None:
    """Return words for what is left out behind the last picture, or None.

    Args:
        turned: See `TurnToSound.byte`.
        unshown: Number of pictures behind a step of the clock.
        step: Words for that step.
    """
    if turned is not None:
        return (
            f"from byte {turned} on its stream of pictures holds sound, as where PIDs change; split the file there, as"
            f" by `tail -c +{turned + 1} FILE`"
        )
    return f"{pluralize(unshown, 'picture')} {step}, are left out" if unshown else None


def smart_packets(
    container: InputContainer,
    stream: VideoStream,
    header: Probe,
    config: SourceStageConfig,
    *,
    keeps: bool,
    is_begin: bool = True,
) -> SmartPackets | None:
    """Return what notes the packets of a source, or None where none are copied smart; see `SmartPackets`."""
    if config.cut.mode != "smart":
        return None
    mbps = 8e-6 * container.size / header.promised_s if header.promised_s else 0.0
    fault = (
        f"bit rate above {config.cut.max_copied_mbps:g} Mbit/s" if mbps > config.cut.max_copied_mbps else None
    )
    # Readers of clips believe such a header.
    if is_delayed(stream) and stream.codec_context.codec.canonical_name == "hevc":
        fault = "a header that understates how far frames are moved"
    bits = config.cut.max_bits
    return SmartPackets(stream, keeps=keeps, max_bits=bits, fault=fault, is_begin=is_begin)


def ended_by(file: BinaryIO, container: str) -> str | None:
    """Return words for the place at which fragmented MP4 breaks off before its file ends, or None."""
    end = fragments_end(file) if container.startswith("mov,") else None
    return end.words or None if end is not None else None


def check_edits(container: InputContainer, stream: VideoStream, file: BinaryIO) -> None:
    """Raise `SourceError` for pictures with an edit list that FFmpeg does not play as it is meant."""
    if fault := edit_faults(container, file).get(stream.id):
        raise SourceError(f"has an edit list that {fault}; export it again as one piece")


def check_order(file: BinaryIO) -> None:
    """Raise `SourceError` for fragmented films of MP4 that were joined, whose frames come mixed."""
    if (further := further_film(file)) is not None and further.state == "tangled":
        raise SourceError(
            "is several fragmented films joined, whose frames are not told apart; split the file"
        )
