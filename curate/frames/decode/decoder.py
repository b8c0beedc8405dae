"""Decoder of a source in display order, which goes on after errors and accounts for them."""

import time
from collections.abc import Iterator
from typing import BinaryIO

import av
from av.container import InputContainer
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from reelweave.curate.frames.budget import check_pixels
from reelweave.curate.frames.clocks.clock import JUMP_S
from reelweave.curate.frames.clocks.coding_times import is_timed, use_coding_times
from reelweave.curate.frames.container.cluster_checks import ClusterChecks
from reelweave.curate.frames.container.dolby_vision import without_base
from reelweave.curate.frames.container.encryption import EncryptedError, is_encrypted
from reelweave.curate.frames.container.side_data import Cropper
from reelweave.curate.frames.container.ts_file import TransportChecks
from reelweave.curate.frames.decode.codecs import bounded_packets, codec_with_alpha
from reelweave.curate.frames.decode.dv_blocks import DvBlocks
from reelweave.curate.frames.decode.key_checks import KeyChecks
from reelweave.curate.frames.decode.lost_frames import LostFrames
from reelweave.curate.frames.decode.lost_references import LostReferences
from reelweave.curate.frames.decode.missing_pictures import MissingPictures
from reelweave.curate.frames.decode.slice_checks import SliceChecks
from reelweave.curate.frames.frame_times import Damage, Undecoded
from reelweave.curate.frames.interlace import FieldOrder, deinterlace, fields_fault
from reelweave.curate.frames.picture import Shape, ShapeMeter
from reelweave.curate.frames.probe import ProbeConfig, check_frame, check_size, too_long
from reelweave.curate.frames.source import SourceError
from reelweave.loader.base.operations import charged
from reelweave.loader.dataset.colour.chain import Chain
from reelweave.loader.dataset.colour.transparency import OverBlack
from reelweave.loader.dataset.samples.frames.lasting_turn import LastingTurn
from reelweave.loader.dataset.samples.frames.reorder import FrameOrder
from reelweave.loader.dataset.samples.frames.vp9_sizes import is_left_out
from reelweave.loader.errors import refuse_shortage

_CUT_OFF = "the file is cut off within its last frame"
_UNDERSTATED = "its header understates how far frames are moved in coding, and frames are lost"
_REPEATS = ("theora",)
"""Codecs of which an empty packet shows the frame before once more: Theora specification, 7."""
_WRONG_CLUSTER = "a checksum of its Matroska is wrong; which frames are damaged is not known"
_WRONG_KEY = "key frames are not read to their end: damaged, or joined with parameter sets of another part"
_WRONG_TRANSPORT = (
    "packets of its transport stream are lost or damaged; frames up to the next key frame are unsafe"
)
_WITHOUT_REFERENCE = "packets are lost that later ones refer to; frames up to the next key frame are unsafe"


class Decoder:
    """Decoder of one stream in display order that continues after errors and records the damage.

    A frame that depends on a lost one looks wrong although it decodes. So damage extends from the first frame
    not yet shown at the time of the error to the next key frame.

    Args:
        container: Opened container.
        stream: Video stream of the container.
        limits: Limits that every frame is checked against, whatever the header said; None for a source
            checked before.
        deinterlace: True to deinterlace, one picture per frame.
        pulldown: Order of fields of a telecined film, whose fields are matched.
        unmarked: Order of fields of frames that are interlaced without a mark.
        file: File of the container, whose own checksums are then looked at.
        is_begin: False where decoding begins at a key frame within the film.
    """

    def __init__(
        self,
        container: InputContainer,
        stream: VideoStream,
        limits: ProbeConfig | None = None,
        *,
        deinterlace: bool = False,
        pulldown: FieldOrder | None = None,
        unmarked: FieldOrder | None = None,
        file: BinaryIO | None = None,
        is_begin: bool = True,
    ) -> None:
        self._container = container
        self._stream = stream
        self._limits = limits
        self._deinterlace, self._pulldown, self._unmarked = deinterlace, pulldown, unmarked
        self._shown = 0
        self._last_packet = -1, 0
        self._interlaced = 0
        self._ended_by: str | None = None
        self._errors = 0
        self._broken_since: int | None = None
        self._reason = ""  # of the damage in work, where it is another than its errors
        self._damage: list[Damage] = []
        # Packets of TS count as corrupt for other reasons, too.
        self._tells_cut = "mpegts" not in stream.container.format.name
        self._cut_pts: int | None = None  # of the last packet, if its bytes are not all there
        self._lost, self._checks = LostFrames(stream, is_begin=is_begin), SliceChecks(stream)
        self._missing = MissingPictures(stream)
        # Packets passed before those without a picture in damage in work.
        self._unshown_since: int | None = None
        self._silent: dict[int, tuple[int, int]] = {}  # packets passed in damage that nothing else tells
        self._blocks, self._keys = DvBlocks(stream), KeyChecks(stream)
        self._clusters = None if file is None else ClusterChecks(file, stream)
        self._references, self._transport = LostReferences(stream), TransportChecks(stream)
        self._unreferenced: set[int | None] = set()  # stamps of packets behind lost ones
        self._doubted: set[int | None] = set()  # stamps of packets in clusters with wrong checksums
        self._is_timed = is_timed(stream.container)
        self._repeats = stream.codec_context.codec.canonical_name in _REPEATS
        self._last_frame: VideoFrame | None = None
        self._over_black = OverBlack()
        # Raw pictures of 32 bits in AVI and elsewhere mostly leave the last eight unused.
        self._shows_alpha = stream.codec_context.name != "rawvideo"
        self._codec = codec_with_alpha(stream)
        self._bounded = bounded_packets(stream, self._codec)
        self._turn = LastingTurn(stream)
        self._crop, self._order = Cropper(stream), FrameOrder(stream)
        self._meter = None if limits is None else ShapeMeter(stream, self._codec, limits, self._crop)

    def frames(self) -> Iterator[VideoFrame]:
        """Yield every frame that decodes, damaged ones too, so that frame numbers agree between passes.

        Raises:
            SourceError: A limit is broken.
            EncryptedError: A packet is encrypted; `open_video` puts it into words.
        """
        decoded = self._decode_frames() if self._limits is None else self._limit_frames(self._limits)
        return deinterlace(decoded, self._pulldown, self._unmarked) if self._deinterlace else decoded

    @property
    def interlaced(self) -> bool:
        """True when one of the frames so far was interlaced."""
        return self._interlaced > 0

    @property
    def transparent(self) -> bool:
        """True when one of the frames so far had transparent pixels; they are shown over black."""
        return self._over_black.seen

    @property
    def turned(self) -> bool:
        """True when a message of the codec itself turned pictures so far."""
        return self._turn.seen

    @property
    def last_packet(self) -> tuple[int, int]:
        """Offset and size in bytes of the packet that was read last; -1 and 0 where they are not known."""
        return self._last_packet

    @property
    def ended_by(self) -> str | None:
        """Words on the error of the container at which reading ended, or None where it came to its end."""
        return self._ended_by

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Shapes of the frames so far, where limits were given."""
        return () if self._meter is None else tuple(self._meter.shapes)

    def _decode_frames(self) -> Iterator[VideoFrame]:
        for frames in self._packets():
            yield from frames

    def _limit_frames(self, limits: ProbeConfig) -> Iterator[VideoFrame]:
        spent_s, began_s = 0.0, time.thread_time()
        lasting, shown = 0.0, None
        tick_s = float(self._stream.time_base or 0)
        last_kind: tuple[object, ...] = ()
        pixels, source_bytes = 0, self._container.size
        for frames in self._packets():
            spent_s += time.thread_time() - began_s
            if spent_s > limits.max_decode_s:
                raise SourceError(
                    f"takes more than probe.max_decode_s = {limits.max_decode_s:g} s to decode;"
                    f" {self._shown} frames came in that time"
                )
            for frame in frames:
                kind = (frame.width, frame.height, frame.color_trc, frame.interlaced_frame)
                if kind != last_kind:
                    check_frame(frame, limits)
                    if fault := fields_fault(frame, self._stream.codec_context.codec.canonical_name):
                        raise SourceError(fault)
                    last_kind = kind
                pixels += frame.width * frame.height
                check_pixels(pixels, source_bytes, limits)
                if self._shown > limits.max_frames:
                    raise SourceError(f"has more than probe.max_frames = {limits.max_frames} frames")
                if frame.pts is not None:
                    gap_s = 0.0 if shown is None else (frame.pts - shown) * tick_s
                    # Jumps of the clock may be repaired later; the caller checks the repaired duration.
                    lasting += gap_s if 0 < gap_s <= JUMP_S else 0.0
                    shown = frame.pts
                    if lasting > limits.max_duration_s:
                        raise too_long(limits)
                yield frame
            began_s = time.thread_time()

    @charged("decode")
    def _packets(self) -> Iterator[list[VideoFrame]]:
        """Yield the frames that each packet releases."""
        try:
            for packet in self._container.demux(self._stream):
                if is_encrypted(packet):  # some codecs decode it, to noise
                    raise EncryptedError
                if not self._shown and self._limits is not None and (fault := without_base(packet)):
                    raise SourceError(fault)
                if packet.size and packet.pos is not None:
                    self._last_packet = packet.pos, packet.size
                    is_cut = (packet.is_corrupt and self._tells_cut) or self._blocks.is_cut_off(packet)
                    self._cut_pts = packet.pts if is_cut else None
                self._lost.expect(packet)
                if packet.pts is None or packet.pts != self._cut_pts:
                    self._missing.expect(packet)
                if self._limits is not None:
                    self._keys.expect(packet)
                is_damaged = self._limits is not None and (
                    self._checks.is_damaged(packet) or self._blocks.is_damaged(packet)
                )
                if self._clusters is not None and self._clusters.is_damaged(packet):
                    self._doubted.add(packet.pts)
                if self._limits is not None and self._references.take(packet):
                    self._unreferenced.add(packet.pts)
                if self._limits is not None and self._transport.is_damaged(packet):
                    self._break()  # pictures that are shown before it may refer to it
                    self._reason = _WRONG_TRANSPORT
                try:
                    coded = self._turn(self._bounded(packet))
                    if self._repeats and not packet.size and packet.pts is not None:
                        decoded: list[VideoFrame] = self._repeat_last(packet)
                    elif is_left_out(packet, coded):
                        self._codec.decode(coded)
                        decoded = []
                    elif self._meter is not None:
                        decoded = self._meter.decode(coded)
                    else:
                        decoded = [self._crop(frame) for frame in self._codec.decode(coded)]
                    if self._repeats and decoded:
                        self._last_frame = decoded[-1]
                    if self._shows_alpha:
                        decoded = [self._over_black(frame) for frame in decoded]
                    decoded = self._order.sort(decoded, packet)
                    if self._is_timed:
                        use_coding_times(decoded)
                except av.error.FFmpegError as error:
                    refuse_shortage(error, "decode a picture")
                    if self._limits is not None:
                        # A picture too large for memory raises the same error as damage.
                        context = self._stream.codec_context
                        check_size(context.width, context.height, self._limits)
                    self._break()
                    self._lost.fail()
                    continue
                if decoded and not self._shown:
                    if self._lost.lacks_reference(decoded[0]):
                        self._break()
                        self._reason = "it begins between key frames; frames up to the first one are unsafe"
                    elif lost := self._lost_at_begin(decoded[0]):
                        yield lost
                        if self._lost.withholds:
                            self._mend()
                for frame in decoded:
                    missing = self._missing.count_before(frame)
                    if (self._lost.before(frame) or missing) and self._shown:
                        self._break_before(missing)
                    is_cut = self._cut_pts is not None and frame.pts == self._cut_pts
                    is_doubted = frame.pts in self._doubted
                    wrong_since = self._keys.wrong_since(frame, self._shown)
                    is_wrong, is_hurt = wrong_since is not None, self._transport.is_hurt(frame)
                    is_corrupt = is_damaged or is_cut or is_doubted or is_wrong or is_hurt or frame.is_corrupt
                    if (frame.key_frame or self._begins_anew(packet)) and not is_corrupt:
                        if self._keys.may_mend(frame) and self._transport.may_mend(frame):
                            self._mend()
                    elif is_corrupt:
                        self._break(wrong_since)
                        fault = _WRONG_KEY if is_wrong else _WRONG_CLUSTER if is_doubted else ""
                        self._reason = self._reason or fault
                    elif frame.pts in self._unreferenced and self._broken_since is None:
                        self._break(max(0, self._shown - 1))  # that frame is shown in the time of lost ones
                        self._reason = _WITHOUT_REFERENCE
                    self._interlaced += frame.interlaced_frame
                    self._shown += 1
                yield decoded
        except (av.error.FFmpegError, OSError) as error:
            refuse_shortage(error)
            self._break()
            self._ended_by = (
                f"{getattr(error, 'strerror', None) or error} (behind byte {sum(self._last_packet)})"
            )
        if self._shown and self._lost.at_end():
            self._break_before()
        if self._cut_pts is not None:
            self._end_cut()

    def _repeat_last(self, packet: "Packet[VideoStream]") -> list[VideoFrame]:
        """Return the last frame again for an empty packet, which FFmpeg's decoder refuses."""
        if self._last_frame is None:
            return []
        frame = Chain()(self._last_frame, ("null",))  # another frame over the same memory
        frame.pts = packet.pts
        if self._meter is not None:
            self._meter.repeat()
        return [frame]

    def _begins_anew(self, packet: "Packet[VideoStream]") -> bool:
        """Return whether the frames of a packet need no others, by the packet, where a decoder does not say so."""
        return self._codec is not self._stream.codec_context and packet.is_keyframe

    def _lost_at_begin(self, first: VideoFrame) -> list[VideoFrame]:
        """Return a picture for each frame that is lost before the first one, so that times and numbers stay."""
        (stamps, fault), chain = self._lost.before_first(first), Chain()
        lost = [chain(first, ("null",)) for _ in stamps]  # another frame over the same memory
        for frame, pts in zip(lost, stamps, strict=True):
            frame.pts = pts
        if lost:
            self._break()
            self._shown += len(lost)
            if self._meter is not None:
                self._meter.shift(len(lost))
            much = "frame" if len(lost) == 1 else f"{len(lost)} frames"
            if first.pts is not None and stamps[0] is not None:
                much = f"{float((first.pts - stamps[0]) * (self._stream.time_base or 0)):.2f} s"
            self._reason = f"{fault}, and nothing of its first {much} can be decoded"
        return lost

    def undecoded(self, end_pts: float) -> Undecoded | None:
        """Return the packets that gave no picture behind the last frame, by the stamp of its end, or None."""
        return self._missing.at_end(end_pts)

    def damage(self) -> tuple[Damage, ...]:
        """Return the damage so far; complete after ``frames`` is exhausted."""
        self._mend()
        return self._missing.told(self._damage, self._silent)

    def _break(self, since: int | None = None) -> None:
        """Note damage from the next frame on, or from one before it."""
        self._errors += 1
        since = self._shown if since is None else since
        self._broken_since = since if self._broken_since is None else min(self._broken_since, since)

    def _break_before(self, missing: int = 0) -> None:
        """Note lost frames, in whose time the frame before them would be shown on.

        Args:
            missing: Packets that gave none, where these are counted.
        """
        if missing and self._unshown_since is None:
            self._unshown_since = self._missing.passed - missing
        self._errors += self._broken_since is None and not missing
        before = self._shown - 1
        self._broken_since = before if self._broken_since is None else min(before, self._broken_since)
        if self._lost.is_understated:
            self._reason = _UNDERSTATED

    def _end_cut(self) -> None:
        """Note that the last packet is not whole, whether it gave a frame or not."""
        if self._broken_since is not None and self._broken_since < self._shown:
            self._reason = _CUT_OFF
        elif self._ended_by is None:
            self._ended_by = f"{_CUT_OFF} (behind byte {self._last_packet[0]})"

    def _mend(self) -> None:
        if self._broken_since is not None:
            if self._unshown_since is not None and not self._errors and not self._reason:
                self._silent[len(self._damage)] = self._unshown_since, self._missing.passed
            what = "packet" if self._errors == 1 else "packets"
            reason = f"{self._errors} damaged {what}; frames that depend on them are unsafe"
            self._damage.append(Damage(self._broken_since, self._shown, self._reason or reason))
            self._broken_since, self._errors, self._unshown_since, self._reason = None, 0, None, ""
