"""Web objects: metadata from the server, and bytes of one version."""

import io
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import BinaryIO, TypeVar

from urllib3.exceptions import NameResolutionError
from urllib3.exceptions import TimeoutError as TimeoutOfHttp

from reelweave.loader.storage.config import StorageConfig
from reelweave.loader.storage.remote.blocks import BlockReader
from reelweave.loader.storage.remote.retry import FAULTS, StatusError, is_transient, patience, retry
from reelweave.loader.storage.web.web import SilentError, UnansweredError, WebError, WebName, WebResponse, get

T = TypeVar("T")

_MIB = 1 << 20
_RANGE = re.compile(r"bytes (?:(\d{1,18})-\d{1,18}|\*)/(\d{1,18}|\*)")


@dataclass(frozen=True)
class WebObjectInfo:
    """Metadata of a web object from a response.

    Attributes:
        size: size in bytes, or None if the server does not send it.
        version: ETag, else the time of last modification, else "".
        ranges: True if the server supports byte ranges.
    """

    size: int | None
    version: str
    ranges: bool


class WebObject:
    """Object at a web address; all reads of an instance return one version.

    Args:
        address: address, with user, password and query if needed.
        name: name for messages.
        config: timeouts and limits.
        listed_in: see `reelweave.loader.storage.reach.permissions.refusal`.
    """

    def __init__(self, address: str, name: str, config: StorageConfig, listed_in: str = "") -> None:
        self._address = self._current = address
        self._name = name
        self._config = config
        self._listed_in = listed_in
        self._facts: WebObjectInfo | None = None

    def look(self) -> WebObjectInfo:
        """Request the first byte for its metadata, because signed links allow GET but not HEAD.

        Raises:
            FileNotFoundError: the object does not exist.
            WebError: the object cannot be read.
        """
        return self._call(self._look)

    def read(self, start: int, length: int | None) -> bytes:
        """Return bytes ``[start, start + length)``, or to the end; fewer if it ends before; for errors see `look`."""
        sink = io.BytesIO()
        self._fetch(sink, start, length, None)
        return sink.getvalue()

    def open(self) -> BinaryIO:
        """Open a seekable reader of blocks, or of a temporary file without range support; for errors see `look`."""
        facts = self.look()
        cache_bytes = self._config.cache_mib * _MIB
        if facts.ranges and facts.size is not None:
            return io.BufferedReader(
                BlockReader(self.read, facts.size, self._config.block_mib * _MIB, cache_bytes)
            )
        if (facts.size or 0) > cache_bytes or not cache_bytes:
            raise self._too_large()
        spool = tempfile.TemporaryFile(prefix="reelweave-spool-")  # noqa: SIM115 - the caller closes it
        try:
            self._fetch(spool, 0, None, cache_bytes)
            spool.seek(0)
        except BaseException:
            spool.close()
            raise
        return spool

    def _get(self, url: str, headers: dict[str, str]) -> AbstractContextManager[WebResponse]:
        return get(url, headers, self._config, WebName(self._name, self._address, self._listed_in))

    def _look(self) -> WebObjectInfo:
        with self._get(self._address, {"Range": "bytes=0-0"}) as answer:
            self._facts = _facts(answer)
            self._current = answer.url
            if answer.response.status == 206:
                next(answer.chunks(), None)
            return self._facts

    def _fetch(self, sink: BinaryIO, start: int, length: int | None, limit: int | None) -> None:
        """Append bytes to ``sink``, at most ``limit``, resumed after broken connections."""
        written = 0
        end = None if length is None else start + length

        def fetch() -> None:
            nonlocal written
            begin = start + written
            if end is not None and begin >= end:
                return
            with self._get(self._current, self._headers(begin, end)) as answer:
                self._keep_version(answer)
                for chunk in _wanted_pieces(answer, begin, end, self._name):
                    if limit is not None and written + len(chunk) > limit:
                        raise self._too_large()
                    try:
                        sink.write(chunk)
                    except OSError as error:
                        raise WebError(
                            f"{self._name} cannot be kept in the temporary folder: {error.strerror}"
                        ) from error
                    written += len(chunk)

        def fetch_where_it_is() -> None:
            try:
                fetch()
            except (StatusError, FileNotFoundError) as error:
                if self._current == self._address or is_transient(error):
                    raise
                # The redirect's link has expired; the original address redirects to a new one.
                self._current = self._address
                fetch()

        was_read = self._facts is not None
        try:
            self._call(fetch_where_it_is, lambda: written)
        except FileNotFoundError:
            if not was_read:
                raise
            # Callers of read() take an OSError for the end of the file.
            raise WebError(f"{self._name} disappeared while it was read") from None

    def _headers(self, begin: int, end: int | None) -> dict[str, str]:
        if begin == 0 and end is None:
            return {}
        headers = {"Range": f"bytes={begin}-{'' if end is None else end - 1}"}
        # If-Range forbids weak ETags; the version of the response is compared in any case.
        if self._facts and self._facts.version and not self._facts.version.startswith("W/"):
            headers["If-Range"] = self._facts.version
        return headers

    def _keep_version(self, answer: WebResponse) -> None:
        now, before = _facts(answer), self._facts
        if before is not None:
            # Many servers omit the version when they refuse a range behind the end.
            other = now.version != before.version and answer.response.status != 416
            if other or (None not in (now.size, before.size) and now.size != before.size):
                raise WebError(f"{self._name} changed while it was read; read it again from its start")
        self._facts = before or now
        self._current = answer.url

    def _too_large(self) -> WebError:
        return WebError(
            f"{self._name}: its server gives no byte ranges, and all of it does not fit into"
            f" storage.cache_mib = {self._config.cache_mib}"
        )

    def _call(self, operation: Callable[[], T], progress: Callable[[], int] = lambda: 0) -> T:
        try:
            return retry(operation, self._config, self._name, progress)
        except FAULTS as error:
            raise _explain_error(error, self._name, self._config) from None


def _facts(answer: WebResponse) -> WebObjectInfo:
    version = answer.header("ETag") or answer.header("Last-Modified")
    if answer.response.status == 200:
        length = answer.header("Content-Length")
        return WebObjectInfo(int(length) if re.fullmatch(r"\d{1,18}", length) else None, version, False)
    content_range = _RANGE.fullmatch(answer.header("Content-Range"))
    total = content_range[2] if content_range else "*"
    return WebObjectInfo(None if total == "*" else int(total), version, True)


def _wanted_pieces(answer: WebResponse, begin: int, end: int | None, name: str) -> Iterator[bytes]:
    """Yield the pieces of a body that lie in ``[begin, end)`` of the object."""
    status = answer.response.status
    if status == 416:  # the range starts at or behind the end
        return
    position = 0
    if status == 206:
        content_range = _RANGE.fullmatch(answer.header("Content-Range"))
        if not content_range or content_range[1] is None or int(content_range[1]) != begin:
            raise WebError(f"{name}: the server answers with another byte range than it was asked for")
        position = begin
    for chunk in answer.chunks():
        piece = chunk[max(0, begin - position) : None if end is None else max(0, end - position)]
        position += len(chunk)
        if piece:
            yield piece
        if end is not None and position >= end:
            return


def _explain_error(error: Exception, name: str, config: StorageConfig) -> Exception:
    """Return an error for users, without the original text, which may contain the whole address."""
    if isinstance(error, StatusError):
        what = f"the server answered {error.status}"
        if error.status in (401, 403):
            return WebError(
                f"{name}: access was denied ({what}); check user and password or sign the link anew"
            )
    elif isinstance(error, NameResolutionError):
        what = "no such host"
    else:
        what = type(error).__name__
    if is_transient(error):
        kind = SilentError if isinstance(error, TimeoutError | TimeoutOfHttp) else UnansweredError
        return kind(f"{name}: gave up after {patience(config)}, the last ended in {what}")
    return WebError(f"{name}: the request failed for good ({what})")
