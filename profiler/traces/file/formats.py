"""Which other format a file has that is no trace we read, and what to export instead."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

from msgspec import Struct

HINT: Final = "name a trace that torch.profiler exported"
KINETO: Final = "record the run with torch.profiler and name what prof.export_chrome_trace() wrote"
_EXPORTED: Final = "export it first and name what that wrote: nsys export --type sqlite REPORT.nsys-rep"
_UNPACKED: Final = "unpack it and name the .sqlite file, without --hta"
_INSIDE: Final = "unpack it and name the traces in it"
_HEAD_BYTES: Final = 4096
"""So much is enough to recognize a binary format."""


class Format(Struct, frozen=True):
    """Kind of a file."""

    what: str
    """After the file's name: `is a zip archive`."""
    instead: str = HINT
    """Advice to the user about it."""


_MAGIC: Final = (
    (b"PK\x03\x04", Format("is a zip archive", f"{_INSIDE}; a torch.save file holds none")),
    (b"7z\xbc\xaf\x27\x1c", Format("is a 7z archive", _INSIDE)),
    (b"BZh", Format("is packed with bzip2", "unpack it, or pack it with gzip or zstd")),
    (b"\xfd7zXZ\0", Format("is packed with xz", "unpack it, or pack it with gzip or zstd")),
    (b"\x04\x22\x4d\x18", Format("is packed with lz4", "unpack it, or pack it with gzip or zstd")),
    (b"PAR1", Format("is a Parquet file", KINETO)),
    (b"ARROW1", Format("is an Arrow file", KINETO)),
    (b"\x89HDF\r\n", Format("is an HDF5 file", KINETO)),
    (b"\x93NUMPY", Format("is a NumPy array", KINETO)),
    (b"\x7fELF", Format("is a program or library (ELF)", HINT)),
    (b"%PDF", Format("is a PDF document", HINT)),
    (b"\x89PNG", Format("is a picture (PNG)", HINT)),
    (b"NVR\0", Format("is an Nsight Compute report", KINETO)),
    (b"QDREP", Format("is an Nsight Systems report", _EXPORTED)),
)
_SQLITE: Final = b"SQLite format 3\0"
_TAR_AT: Final = 257

_PLANE: Final = re.compile(rb"/(host|device):|Task Environment|/host")
_VERSION: Final = re.compile(rb"^v?\d+\.\d+(\.\d+)?")
_HTML: Final = re.compile(rb"^\s*(<!DOCTYPE|<html|<\?xml|<svg|<head)", re.I)
_GLOG: Final = re.compile(rb"^[VIWEF]\d{4} \d\d:\d\d:\d\d")
_ROW: Final = re.compile(rb'^"?[A-Za-z_][^\n,]*"?(,[^\n,]*){2,}\r?\n')


def of_bytes(head: bytes) -> Format:
    """Return what a file is that does not begin as JSON does, from its first bytes."""
    if head[:1] == b"\x80" and head[1:2] <= b"\x05":
        return Format(
            "is a Python pickle (a memory snapshot of torch.cuda.memory?), which is never opened", KINETO
        )
    if head.startswith(_SQLITE):
        return _of_tables(head)
    for magic, named in _MAGIC:
        if head.startswith(magic):
            return named
    if head[_TAR_AT : _TAR_AT + 5] == b"ustar":
        return Format("is a tar archive", _INSIDE)
    if not head.strip(b"\0"):
        return Format("is not JSON: it begins with zero bytes")
    return (
        _of_protobuf(head) or _of_text(head) or Format(f"is not JSON: it begins with {head.lstrip()[:12]!r}")
    )


def _of_tables(head: bytes) -> Format:
    """Return whose SQLite database it is; its first page names tables."""
    if b"CUPTI_ACTIVITY" in head or b"TARGET_INFO_" in head or b"NVTX_EVENTS" in head:
        return Format("is an export of Nsight Systems (SQLite)", _UNPACKED)
    if b"rocpd" in head:
        return Format("is a database of rocprof (rocpd, SQLite)", KINETO)
    return Format("is an SQLite database", KINETO)


def _of_protobuf(head: bytes) -> Format | None:
    """Return XPlane, Perfetto or Chakra if the head is one of their messages."""
    if head[:1] == b"\x0a":
        size, at = _varint(head, 1)
        first = head[at : at + 1]
        # XSpace.planes is field 1; of XPlane field 1 is a number and field 2 its name.
        if size and (first in b"\x08\x12") and first and _PLANE.search(head[at : at + 64]):
            return Format(
                "is an XPlane profile (XSpace of JAX, TensorFlow or PyTorch/XLA)",
                "shardtoll reads traces of torch.profiler: record a PyTorch run with it",
            )
    size, at = _varint(head, 0)
    if size and head[at : at + 1] == b"\x0a":
        length, at = _varint(head, at + 1)
        if 0 < length <= min(size, 32) and _VERSION.match(head[at : at + length]):
            return Format("is a Chakra execution trace (protobuf): it has no measured timeline", KINETO)
    if head[:1] == b"\x0a" and b"\0" in head[:_HEAD_BYTES]:
        return Format("is a binary file (a protobuf trace of Perfetto?)", KINETO)
    return None


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a protobuf number and the place behind it; 0 if there is none."""
    value = 0
    for nth in range(10):
        if at + nth >= len(data):
            break
        byte = data[at + nth]
        value |= (byte & 127) << 7 * nth
        if byte < 128:
            return value, at + nth + 1
    return 0, at


def _of_text(head: bytes) -> Format | None:
    if _HTML.match(head):
        return Format("is an HTML or XML page (a memory timeline, TensorBoard or a saved web page?)", KINETO)
    if _GLOG.match(head):
        return Format("is a log of torch (TORCH_TRACE or TORCH_LOGS)", KINETO)
    if _ROW.match(head):
        return Format("is a table of comma-separated values (rocprof or nsys stats?)", KINETO)
    return None


_KEYS: Final = (
    ({"nodes", "schema"}, "is a PyTorch execution trace (ExecutionTraceObserver): it has no device timeline"),
    (
        {"nodes", "start_ts"},
        "is a PyTorch execution trace (ExecutionTraceObserver): it has no device timeline",
    ),
    ({"workload_graph"}, "is a Chakra execution trace (JSON): it has no measured timeline"),
    ({"segments", "device_traces"}, "is a memory snapshot of torch.cuda.memory"),
    ({"rocprofiler-sdk-tool"}, "is the JSON of rocprofv3"),
    ({"pg_config", "entries"}, "is a dump of NCCL's flight recorder"),
    ({"profiles", "shared"}, "is a speedscope profile"),
    ({"cells", "nbformat"}, "is a Jupyter notebook"),
    ({"weight_map"}, "is an index of model weights"),
    ({"model_type"}, "is the configuration of a model"),
)
"""Top-level names of JSON objects of other formats."""


def of_object(names: Collection[str]) -> Format:
    """Return what a JSON object without traceEvents is, from its top-level names."""
    for needed, what in _KEYS:
        if needed.issubset(names):
            return Format(what, KINETO)
    return Format("is JSON without traceEvents, so no trace")


_LEGACY: Final = re.compile(rb'"pid"\s*:\s*"(CPU|CUDA) functions"')
_DYNAMO: Final = re.compile(rb'"cat"\s*:\s*"dynamo_timed"')
_ROCPROF: Final = re.compile(
    rb'"(CPU HIP API|HIP API|HSA API|GPU0|roctx|COPY)"|"BeginNs"\s*:|HSASystemAttributes'
)
_XLA: Final = re.compile(rb'"/(host|device):(CPU|GPU|TPU)|"hlo_(op|module)"')
_SCHEDULE: Final = re.compile(rb'"cat"\s*:\s*"(computation|communication)"')
_LISTS: Final = re.compile(rb"^\s*\[\s*\[")


_ASCEND: Final = re.compile(rb'"(CANN|Ascend Hardware|Overlap Analysis)"|"cat"\s*:\s*"async_npu"')
_VIZTRACER: Final = "viztracer_metadata"
_OURS: Final = frozenset(("schemaVersion", "deviceProperties", "traceName", "baseTimeNanoseconds"))
"""Top-level names that torch.profiler writes."""


def of_events(head: bytes, names: Collection[str], categories: Collection[str | None], events: int) -> Format:
    """Return what a file with events is if none of them is of a kind that torch.profiler writes.

    `head` is how the file begins, `names` its top-level names, `categories` those of its events.
    """
    if not _OURS.isdisjoint(names):
        return Format(
            "is an empty trace of torch.profiler",
            "record at least one active step: call prof.step() until the schedule's wait and warmup are over",
        )
    named = sorted(each for each in categories if each)
    if _LEGACY.search(head):
        what = "is an event list of the old torch.autograd.profiler: it has no categories and no launches"
        return Format(what, "record with torch.profiler.profile instead of torch.autograd.profiler.profile")
    if _DYNAMO.search(head):
        return Format(
            "is a trace of torch.compile's own phases (chromium events), not of a training step", KINETO
        )
    if _SCHEDULE.search(head) and set(named) <= {"computation", "communication"}:
        return Format("is a pipeline schedule, planned and not measured", KINETO)
    if _ROCPROF.search(head):
        return Format("is a trace of rocprof, whose events have no categories of torch.profiler", KINETO)
    if _ASCEND.search(head):
        return Format("is a trace of Ascend (torch_npu), which shardtoll does not read", KINETO)
    if _VIZTRACER in names:
        return Format("is a trace of VizTracer: it has no device work", KINETO)
    if _XLA.search(head):
        return Format("is a trace of XLA (JAX or TensorFlow)", KINETO)
    kinds = f"categories {', '.join(named[:4])}" if named else "no category"
    count = f"{events} {'event' if events == 1 else 'events'}"
    return Format(
        f"is an event list of another program: {count} with {kinds}, none of torch.profiler", KINETO
    )


def of_damage(head: bytes, bad: int) -> Format:
    """Return the kind of a file whose list holds no event."""
    if _LISTS.match(head):
        return Format("is a list of lists and holds no event (a memory timeline?)", KINETO)
    return Format(f"holds no readable event ({bad} are damaged)")
