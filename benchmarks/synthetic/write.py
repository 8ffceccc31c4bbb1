"""One rank's trace file, written as it comes: bounded memory, any layout, any compression."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from synthetic.spec import Spec

BASE_NS: Final = 1_767_189_312_000_000_000
_EVENT: Final = {
    "kineto": '  {{\n    "ph": "X", "cat": "{}", "name": {}, "pid": {}, "tid": {},\n'
    '    "ts": {}, "dur": {}{}\n  }}',
    "compact": '{{"ph":"X","cat":"{}","name":{},"pid":{},"tid":{},"ts":{},"dur":{}{}}}',
    "lines": '{{"ph": "X", "cat": "{}", "name": {}, "pid": {}, "tid": {}, "ts": {}, "dur": {}{}}}',
    "torch213": '  {{\n    "ph": "X",\n    "cat": "{}",\n    "name": {},\n    "pid": {},\n    "tid": {},\n'
    '    "ts": {},\n    "dur": {}\n    {}\n  }}',
}
_EVENT["metadata-first"] = _EVENT["kineto"]
_EVENT["indent"] = _EVENT["compact"]


class Sink:
    """Writes events of one rank; `metadata` goes before or after them, as the layout says."""

    def __init__(self, spec: Spec, rank: int, path: Path | None, flush_bytes: int = 4 << 20) -> None:
        self.spec = spec
        self.rank = rank
        self.path = path
        self.pid = 4000 + rank
        self.window: tuple[int, int] | None = None
        """True ns outside which nothing is kept."""
        self.events = 0
        self._flush_bytes = flush_bytes
        self._pieces: list[str] = []
        self._held = 0
        self._form = _EVENT[spec.layout]
        self._whole = spec.schema == "old"
        self._packer = _packer(spec.format)
        offset, drift = spec.clock(rank)
        self._offset, self._drift = offset, drift * 1e-6
        if path is not None:
            path.unlink(missing_ok=True)

    def begin(self, metadata: dict[str, Any]) -> None:
        """Write what stands before the events."""
        self._metadata = metadata
        before = dict(metadata)
        if self.spec.layout in ("kineto", "lines", "indent"):
            before = {"schemaVersion": 1, "deviceProperties": metadata["deviceProperties"]}
        shown = json.dumps(before, indent=_INDENT.get(self.spec.layout))
        colon = ":" if self.spec.layout == "compact" else ": "
        self._put(shown.rstrip().removesuffix("}").rstrip() + f',\n"traceEvents"{colon}[\n')

    def end(self) -> None:
        """Write what stands after the events, and all that is still held."""
        before = self.spec.layout not in ("kineto", "lines", "indent")
        first = {"traceName": f"/tmp/{self.spec.prefix}{self.rank}.json"}
        last = {} if self.spec.schema == "old" else {"displayTimeUnit": "ms", "baseTimeNanoseconds": BASE_NS}
        rest = first if before else self._metadata | first | last
        tail = json.dumps(rest, indent=_INDENT.get(self.spec.layout)).lstrip("{").lstrip()
        self._put(f"\n  ],{tail}" if before else f"\n  ],\n  {tail}\n")
        self._flush(last=True)

    def host(self, cat: str, name: str, tid: int, start: int, end: int, args: dict[str, Any]) -> None:
        """Write an event of a host thread."""
        self._event(cat, name, self.pid, tid, start, end, args)

    def device(
        self,
        cat: str,
        name: str,
        stream: int,
        start: int,
        end: int,
        correlation: int,
        external: int | None,
        more: Any,
    ) -> None:
        """Write device work and the arrow to it."""
        args: dict[str, Any] = {} if external is None else {"External id": external}
        args |= {"device": self.rank % 8, "context": 1, "stream": stream, "correlation": correlation}
        if cat == "kernel":
            args |= {"queued": 0, "registers per thread": 96, "grid": [16, 1, 1], "block": [512, 1, 1]}
        if self._event(cat, name, self.rank % 8, stream, start, end, args | more):
            self.arrow("f", correlation, self.rank % 8, stream, start)

    def arrow(self, end: str, correlation: int, pid: int, tid: int, at: int) -> None:
        """Write one end (`s` or `f`) of the arrow from a launch to what it launched."""
        if self.window is None or self.window[0] <= at < self.window[1]:
            event = {"ph": end, "id": correlation, "pid": pid, "tid": tid, "ts": float(self._stamp(at))}
            event |= {"cat": "ac2g", "name": "ac2g"} | ({"bp": "e"} if end == "f" else {})
            self._add(json.dumps(event))

    def instant(self, name: str, at: int) -> None:
        """Write an instant event, as the profiler's own marks."""
        event = {"ph": "i", "s": "g", "name": name, "pid": "Traces", "tid": "Trace PyTorch Profiler"}
        self._add(json.dumps(event | {"ts": float(self._stamp(at))}))

    def meta(self, name: str, pid: int | str, args: dict[str, Any]) -> None:
        """Write a metadata event, as a process's name."""
        event = {"name": name, "ph": "M", "ts": float(self._stamp(self.spec.epoch_ns)), "pid": pid, "tid": 0}
        self._add(json.dumps(event | {"args": args}))

    def _event(
        self, cat: str, name: str, pid: int, tid: int, start: int, end: int, args: dict[str, Any]
    ) -> bool:
        if self.path is None or (self.window and not self.window[0] <= start < self.window[1]):
            return False
        begun, ended = self._local(start), self._local(end)
        if self._whole:
            begun, ended = round(begun, -3), round(ended, -3)
        comma = "," if self.spec.layout in ("compact", "indent") else ", "
        colon = '"args":' if comma == "," else '"args": '
        given = f"{comma}{colon}{json.dumps(args, separators=_SEPARATORS.get(comma))}" if args else ""
        self._add(
            self._form.format(
                cat, json.dumps(name), pid, tid, self._micro(begun, BASE_NS), self._micro(ended, begun), given
            )
        )
        return True

    def _add(self, text: str) -> None:
        if self.path is None:
            return
        if self.spec.layout == "indent":
            text = json.dumps(json.loads(text), indent=4)
        self._put(f",\n{text}" if self.events else text)
        self.events += 1

    def _local(self, true_ns: int) -> int:
        return true_ns + self._offset + round(self._drift * (true_ns - self.spec.epoch_ns))

    def _micro(self, ns: int, since_ns: int) -> str:
        if self._whole and since_ns == BASE_NS:
            return str(ns // 1000)
        whole, rest = divmod(ns - since_ns, 1000)
        return str(whole) if self._whole else f"{whole}.{rest:03d}"

    def _stamp(self, true_ns: int) -> str:
        return self._micro(self._local(true_ns), BASE_NS)

    def _put(self, text: str) -> None:
        if self.path is None:
            return
        self._pieces.append(text)
        self._held += len(text)
        if self._held > self._flush_bytes:
            self._flush(last=False)

    def _flush(self, last: bool) -> None:
        """Append what is held; a file is only open for that long, so a job may have any number of ranks."""
        if self.path is None:
            return
        data = "".join(self._pieces).encode()
        self._pieces, self._held = [], 0
        with self.path.open("ab") as out:
            out.write(self._packer.compress(data) + (self._packer.flush() if last else b""))


class _Plain:
    def compress(self, data: bytes) -> bytes:
        return data

    def flush(self) -> bytes:
        return b""


def _packer(form: str) -> Any:
    if form == "json":
        return _Plain()
    if form == "json.zst":
        import zstandard

        return zstandard.ZstdCompressor(level=3).compressobj()
    import zlib

    return zlib.compressobj(1, zlib.DEFLATED, 16 + zlib.MAX_WBITS)


_INDENT: Final = {
    "compact": None,
    "indent": 4,
    "kineto": 2,
    "torch213": 4,
    "metadata-first": 2,
    "lines": None,
}
_SEPARATORS: Final[dict[str, Any]] = {",": (",", ":")}
