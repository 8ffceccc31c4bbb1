"""The bytes of a trace in pieces of bounded size: plain, gzip or zstd, recognized by their first bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO, Final

from isal import isal_zlib
from msgspec import Struct

from shardtoll.ledger.records.errors import TraceError

PIECE_BYTES: Final = 256 << 10
"""No piece is larger. Larger pieces are slower: their events no longer fit the processor's caches."""

INPUT_BYTES: Final = 256 << 10
"""Compressed bytes taken at a time."""

RATIO_LIMIT: Final = 200
"""Traces shrink 10- to 30-fold. A file that grows more than this is a bomb, or no trace."""

RATIO_FROM_BYTES: Final = 128 << 20
"""Below this size the ratio does not matter."""

GZIP_MAGIC: Final = b"\x1f\x8b"
_GZIP_ERROR: Final[Any] = isal_zlib.error
ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_EMPTY_BYTES: Final = 32
"""A frame without content is no longer than this; the longest header takes 18 bytes."""
ZSTD_WINDOW_BYTES: Final = 128 << 20
"""The most memory a zstd frame may ask for."""


class Flow(Struct):
    """How a stream ended."""

    cut: str | None = None
    """Why the rest of the file cannot be read; None if it was read to its end."""


def pieces(
    source: BinaryIO, flow: Flow, where: str, *, ratio_from_bytes: int = RATIO_FROM_BYTES
) -> Iterator[bytes]:
    """Yield the content of an open file, decompressed, in pieces of at most `PIECE_BYTES`.

    A compressed file that ends too early or is damaged ends the pieces and sets `flow.cut`.
    Raises TraceError for a file that grows beyond all measure when decompressed.
    """
    head = source.read(INPUT_BYTES)
    if head.startswith(GZIP_MAGIC):
        unpacked = _gzip(source, head, flow)
    elif head.startswith(ZSTD_MAGIC):
        unpacked = _zstd(source, head, flow)
    else:
        yield from _plain(source, head)
        return
    grown = 0
    for read, piece in unpacked:
        grown += len(piece)
        if grown > ratio_from_bytes and grown > RATIO_LIMIT * read:
            raise TraceError(
                f"{where} is no usable trace: {read} compressed bytes grow to more than {grown} "
                f"(over {RATIO_LIMIT}-fold, as only decompression bombs do)",
                "leave the file out, or decompress it yourself if you trust it",
            )
        yield piece


def _plain(source: BinaryIO, head: bytes) -> Iterator[bytes]:
    piece = head + source.read(PIECE_BYTES - len(head))
    while piece:
        yield piece
        piece = source.read(PIECE_BYTES)


def _gzip(source: BinaryIO, data: bytes, flow: Flow) -> Iterator[tuple[int, bytes]]:
    """Yield (compressed bytes read, piece); members that follow each other are one content."""
    read = len(data)
    member = isal_zlib.decompressobj(wbits=31)
    parts: list[bytes] = []
    size = 0
    try:
        while True:
            if not data:
                data = source.read(INPUT_BYTES)
                read += len(data)
                if not data:
                    if not member.eof:
                        flow.cut = "ends in the middle of its gzip stream"
                    break
            part = member.decompress(data, PIECE_BYTES - size)
            parts.append(part)
            size += len(part)
            data = member.unconsumed_tail
            if size >= PIECE_BYTES:
                yield read, b"".join(parts)
                parts, size = [], 0
            if member.eof:
                data = member.unused_data or source.read(INPUT_BYTES)
                if not data.startswith(GZIP_MAGIC[:1]):
                    break  # Zeros or a signature after the last member are no content.
                member = isal_zlib.decompressobj(wbits=31)
    except _GZIP_ERROR:
        flow.cut = "has a damaged gzip stream"
    if parts:
        yield read, b"".join(parts)


def _zstd(source: BinaryIO, head: bytes, flow: Flow) -> Iterator[tuple[int, bytes]]:
    import zstandard  # takes longer to import than a small trace to read, and few traces are packed so

    counted: Any = _Counted(source, head)
    decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES)
    grown = False
    with decompressor.stream_reader(counted, read_size=INPUT_BYTES, read_across_frames=True) as reader:
        while True:
            try:
                piece = reader.read(PIECE_BYTES)
            except zstandard.ZstdError:
                flow.cut = "has a damaged zstd stream"
                return
            if not piece:
                # The reader ends in silence if a frame breaks off in its first block.
                if not grown and counted.read_bytes > _ZSTD_EMPTY_BYTES:
                    flow.cut = "ends in the middle of its zstd stream"
                return
            grown = True
            yield counted.read_bytes, piece


class _Counted:
    """A file whose first bytes were read already, and which counts what is taken from it."""

    def __init__(self, source: BinaryIO, head: bytes) -> None:
        self._source = source
        self._head = head
        self.read_bytes = 0

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes."""
        if self._head:
            size = len(self._head) if size < 0 else size
            data, self._head = self._head[:size], self._head[size:]
        else:
            data = self._source.read(size)
        self.read_bytes += len(data)
        return data
