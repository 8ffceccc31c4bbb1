"""Bytes come back in bounded pieces, whatever holds them."""

from __future__ import annotations

import gzip
import io
import os

import pytest
import zstandard

from shardtoll.ledger.records.errors import TraceError
from shardtoll.profiler.traces.file.stream import PIECE_BYTES, Flow, pieces

CONTENT = os.urandom(1 << 16) * 40


def packed(kind: str) -> bytes:
    if kind == "gzip":
        return gzip.compress(CONTENT, 1)
    if kind == "gzip members":
        return b"".join(gzip.compress(CONTENT[i : i + 500_000], 1) for i in range(0, len(CONTENT), 500_000))
    if kind == "gzip, zeros after":
        return gzip.compress(CONTENT, 1) + bytes(600)
    if kind == "zstd":
        return zstandard.compress(CONTENT)
    if kind == "zstd frames":
        return zstandard.compress(CONTENT[:1_000_000]) + zstandard.compress(CONTENT[1_000_000:])
    return CONTENT


@pytest.mark.parametrize(
    "kind", ["plain", "gzip", "gzip members", "gzip, zeros after", "zstd", "zstd frames"]
)
def test_content_is_whole_and_in_bounded_pieces(kind: str) -> None:
    flow = Flow()
    found = list(pieces(io.BytesIO(packed(kind)), flow, "x"))
    assert b"".join(found) == CONTENT
    assert max(map(len, found)) <= PIECE_BYTES
    assert flow.cut is None


@pytest.mark.parametrize("kind", ["gzip", "gzip members", "zstd"])
def test_a_stream_that_ends_early_gives_what_came_before(kind: str) -> None:
    whole = packed(kind)
    flow = Flow()
    found = b"".join(pieces(io.BytesIO(whole[: len(whole) * 2 // 3]), flow, "x"))
    assert CONTENT.startswith(found)
    assert kind == "zstd" or len(found) > len(CONTENT) // 2
    assert kind == "zstd" or flow.cut == "ends in the middle of its gzip stream"


@pytest.mark.parametrize(
    ("kind", "cut"), [("gzip", "has a damaged gzip stream"), ("zstd", "has a damaged zstd stream")]
)
def test_a_damaged_stream_gives_what_came_before(kind: str, cut: str) -> None:
    whole = bytearray(packed(kind))
    for place in range(len(whole) // 2, len(whole)):
        whole[place] ^= 0x5A
    flow = Flow()
    found = b"".join(pieces(io.BytesIO(bytes(whole)), flow, "x"))
    assert len(found) <= len(CONTENT) + PIECE_BYTES
    assert flow.cut == f"has a damaged {kind} stream"


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress])
def test_a_bomb_is_refused_at_its_limit(compress: object) -> None:
    bomb = compress(b'{"traceEvents": [' + b"{}," * 2_000_000)  # type: ignore[operator]
    sizes: list[int] = []
    with pytest.raises(TraceError, match=r"^x is no usable trace: \d+ compressed bytes grow to more than "):
        sizes.extend(map(len, pieces(io.BytesIO(bomb), Flow(), "x", ratio_from_bytes=1 << 20)))
    assert sum(sizes) <= (1 << 20) + PIECE_BYTES
