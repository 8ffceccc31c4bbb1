"""From what a user names to trace files: paths, folders, globs and addresses that fsspec knows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

from msgspec import Struct

from shardtoll.ledger.records.errors import ShardtollError, TraceError, first_line

_TRACE_NAME: Final = re.compile(r"\.((json|trace)(\.(gz|gzip|zst|zstd))?|sqlite)$", re.IGNORECASE)
_GLOB: Final = re.compile(r"[*?\[]")
_ADDRESS: Final = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*(://|::)")
_RANK_FOLDER: Final = re.compile(r"(?:^|[/\\_.-])(?:rank|worker|trainer|gpu)[-_ .]?\d{1,7}$", re.IGNORECASE)
"""A folder that a rank has to itself."""
_ENDINGS: Final = "traces end in .json, .json.gz, .json.zst or .sqlite"
_DATABASE: Final = b"SQLite format 3\0"
_HINT: Final = "name a trace file, a folder or a glob of traces, or an address such as s3://bucket/traces"


class TraceFile(Struct, frozen=True):
    """A trace file that was found, not opened yet."""

    address: str
    """As the user would name it."""
    size_bytes: int | None
    identity: str
    """Changes when the file does: its address with size and time of change, or its etag."""
    path: str | None = None
    """The path to open, if the name is no text and `address` only shows it."""


def is_trace_input(path: str) -> bool:
    """Whether a path means traces: an address, a glob, a file, or a folder with traces in it."""
    if _ADDRESS.match(path) or _GLOB.search(path):
        return True
    local = Path(path)
    if local.is_dir():
        return any(True for _ in _in_folder(local))
    return local.is_file()


def find(paths: Sequence[str]) -> list[TraceFile]:
    """Return the trace files that paths, folders, globs and addresses name, each once, in order.

    In a folder (and the folders in it) files count whose name ends as traces' names do. Raises TraceError if
    a path names nothing.
    """
    by_address: dict[str, TraceFile] = {}
    for path in paths:
        files = _remote(path) if _ADDRESS.match(path) else _local(path)
        for file in files:
            by_address.setdefault(file.address, file)
    return list(by_address.values())


def readable(path: str) -> str:
    """Return a path as text that can be printed and stored: bytes that are no UTF-8 become `\\xe9`."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def by_folder(path: str, files: Sequence[TraceFile]) -> dict[str, list[TraceFile]]:
    """Return the traces found in `path` by the folder that holds them: each folder may be a job.

    One entry where `path` is a glob or a file, and where each rank has a folder of its own (`rank0/`,
    `rank1/`). Traces right in `path` come first, under its own name.
    """
    if _GLOB.search(path) and not Path(path).is_dir():
        return {path: list(files)}
    folders: dict[str, list[TraceFile]] = {}
    for file in files:
        folders.setdefault(file.address.rpartition("/")[0], []).append(file)
    if len(folders) < 2:
        return {path: list(files)}
    for name, held in folders.items():
        if all(other == name or other.startswith(f"{name}/") for other in folders):
            rest = {other: inside for other, inside in folders.items() if other != name}
            return {path: held, **rest}
    if all(_RANK_FOLDER.search(name) for name in folders):
        return {path: list(files)}
    return folders


def _local(path: str) -> list[TraceFile]:
    place = Path(path)
    try:
        if place.is_dir():
            files = sorted(_in_folder(place), key=_natural)
            if not files:
                raise TraceError(f"{path} holds no trace files", _ENDINGS)
            return [_local_file(file) for file in files]
        if place.exists():
            return [_local_file(place)]
    except OSError as error:
        raise TraceError(f"{path} cannot be read ({error.strerror})", "check its permissions") from error
    if _GLOB.search(path):
        return _matching(path)
    raise TraceError(f"{path} does not exist", _HINT)


def _matching(path: str) -> list[TraceFile]:
    import fsspec

    system = fsspec.filesystem("file")
    files = [Path(match) for match in system.glob(path)]
    traces: list[Path] = []
    base = Path.cwd()
    for file in files:
        shown = file if Path(path).is_absolute() or not file.is_relative_to(base) else file.relative_to(base)
        traces += _in_folder(shown) if shown.is_dir() else [shown]
    if not traces:
        raise TraceError(f"{path} matches no trace file", _HINT)
    return [_local_file(file) for file in sorted(set(traces), key=_natural)]


def _in_folder(folder: Path) -> Iterator[Path]:
    """Yield the traces in a folder and in the folders right below it."""
    for pattern in ("*", "*/*"):
        for file in folder.glob(pattern):
            if _TRACE_NAME.search(file.name) and not file.name.startswith(".") and file.is_file():
                yield file


def _local_file(path: Path) -> TraceFile:
    state = path.stat()
    identity = f"{path.resolve()}|{state.st_size}|{state.st_mtime_ns}"
    shown = readable(str(path))
    return TraceFile(shown, state.st_size, identity, None if shown == str(path) else str(path))


def _natural(path: Path | str) -> list[tuple[int, int, str]]:
    """Sort rank2 before rank10."""
    return [
        (0, int(part), "") if part.isdigit() and part.isascii() else (1, 0, part)
        for part in re.split(r"(\d+)", str(path))
    ]


def _remote(path: str) -> list[TraceFile]:
    system, root = _system(path)
    with _reported(path):
        if _GLOB.search(root):
            entries = list(system.glob(root, detail=True).values())
        elif system.isdir(root):
            entries = list(system.find(root, maxdepth=2, detail=True).values())
        else:
            entries = [system.info(root)]
    whole = _GLOB.search(root) or len(entries) != 1 or system.isdir(root)
    files = [
        _remote_file(system, entry)
        for entry in entries
        if entry.get("type") == "file" and (not whole or _TRACE_NAME.search(str(entry["name"])))
    ]
    if not files:
        raise TraceError(f"{path} names no trace files", _HINT)
    return sorted(files, key=lambda file: _natural(file.address))


def _remote_file(system: Any, entry: Mapping[str, Any]) -> TraceFile:
    address = str(system.unstrip_protocol(entry["name"]))
    size = entry.get("size")
    mark = entry.get("ETag") or entry.get("etag") or entry.get("md5Hash") or entry.get("generation")
    if mark is None:
        mark = entry.get("LastModified") or entry.get("mtime") or entry.get("created") or entry.get("updated")
    return TraceFile(address, size if isinstance(size, int) else None, f"{address}|{size}|{mark}")


def _system(path: str) -> tuple[Any, str]:
    # A tenth of a second that local files need not pay.
    import fsspec

    with _reported(path):
        system, root = fsspec.core.url_to_fs(path)
    return system, str(root)


@contextmanager
def opened(file: TraceFile) -> Iterator[BinaryIO]:
    """Open a trace file for reading bytes. Raises TraceError if that fails, also while it is read."""
    with _reported(file.address):
        if _ADDRESS.match(file.address):
            system, root = _system(file.address)
            with system.open(root, "rb") as source:
                yield cast(BinaryIO, source)
        else:
            with open(file.path or file.address, "rb", buffering=0) as plain:
                yield cast(BinaryIO, plain)


def is_database(file: TraceFile) -> bool:
    """Whether a file begins as SQLite databases do. Raises TraceError if it cannot be read."""
    with opened(file) as source:
        return source.read(len(_DATABASE)) == _DATABASE


@contextmanager
def _reported(path: str) -> Iterator[None]:
    """Turn failures of a file system into one line."""
    try:
        yield
    except (ShardtollError, MemoryError):
        raise
    except FileNotFoundError as error:
        raise TraceError(f"{path} does not exist", _HINT) from error
    except OSError as error:
        reason = error.strerror or first_line(error)
        raise TraceError(f"{path} cannot be read ({reason})", "check its permissions") from error
    except Exception as error:
        # Each of fsspec's systems raises errors of its own library: no credentials, refused, not a zip.
        if not _ADDRESS.match(path):
            raise
        raise TraceError(
            f"{path} cannot be reached ({first_line(error)})",
            "check the address, your credentials and the network",
        ) from error
