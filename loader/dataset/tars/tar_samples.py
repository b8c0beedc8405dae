"""Parsing of one sample from its bytes in a WebDataset tar."""

from reelweave.loader.dataset.tars.tar_format import (
    TAR_BLOCK,
    Extension,
    TarError,
    fields,
    is_extension,
    key_and_suffix,
    padded_size,
)
from reelweave.loader.errors import RunError


def read_sample(region: bytes | memoryview) -> tuple[str, dict[str, memoryview]]:
    """Return key and contents by suffix of the sample whose adjacent members fill a region of a tar.

    Contents are views of the region; only headers are copied. Header checksums are not compared, since
    ``sample_sha256`` covers them.

    Raises:
        RunError: the region is truncated or damaged, or contains members of another sample.
    """
    view = memoryview(region)
    key, members, extension = "", {}, None
    at, end = 0, len(view)
    try:
        while at < end and any(header := bytes(view[at : at + TAR_BLOCK])):
            name, size, kind = fields(header)
            at += TAR_BLOCK
            # Headers of pax and GNU give the member behind them another name or size.
            if is_extension(kind):
                extension = extension or Extension()
                extension.add(kind, bytes(view[at : at + size]))
                at += padded_size(size)
                continue
            if extension is not None:
                name, size = extension.name or name, size if extension.size is None else extension.size
                extension = None
            if at + size > end:
                raise TarError(f"a member {name} that is cut off")
            # Members of no sample, such as folders, are passed over.
            if (key_suffix := key_and_suffix(name, kind)) is not None:
                if key != key_suffix[0] and key:
                    raise TarError(f"members of {key} and of {key_suffix[0]}")
                key = key_suffix[0]
                members[key_suffix[1]] = view[at : at + size]
            at += padded_size(size)
        if not members:
            raise TarError("no member of a sample")
    except (TarError, IndexError) as error:
        raise RunError(f"the bytes of the sample {key or 'read'} hold {error}") from error
    return key, members
