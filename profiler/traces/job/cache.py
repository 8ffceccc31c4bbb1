"""Folder of traces' results between reports, so that a second report need not read them again.

An entry's name is a digest of all it depends on. These are the trace's address as the user names it, and its
identity (real path, size and time of change, or etag). Another is whether it is the only trace of its job.
The tables of kernel names and our own code count too. If one of these changes, so does the name: no entry is
invalidated, and those used least recently are pruned. An entry that cannot be read back is made anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from shardtoll.ledger.records.errors import TraceError
from shardtoll.profiler.traces.job import entry

if TYPE_CHECKING:
    from shardtoll.profiler.traces.file.sources import TraceFile

CACHE_SCHEMA: Final = 3
"""To be raised if a library changes the form of entries: changes of our own code are in the digest."""
REPORT_SUFFIX: Final = ".report.zip"
"""How entries end that hold what was found in a ledger; those of traces end with `entry.SUFFIX`."""
LIMIT_BYTES: Final = 2_000_000_000
"""Above this the entries used least recently are removed."""
_TEMPORARY: Final = "shardtoll-"
"""How folders begin that last as long as one report; one that was killed leaves its own."""
_STALE_S: Final = 86_400
"""A part of an entry that is older was left by a process that died."""
_CODE: Final = ("shardtoll.ledger", "shardtoll.profiler.traces")
"""Packages that results depend on, with all rooms below them."""


class ResultsFolder(Struct, frozen=True):
    """Place of the results."""

    folder: Path | None
    """None: nowhere, they stay in memory."""
    kept: bool
    """Whether it outlives the report."""


def root() -> Path | None:
    """Return the cache's folder, made or not; None if no home is known."""
    chosen = os.environ.get("SHARDTOLL_CACHE")
    if chosen:
        return Path(chosen).absolute()
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():  # the XDG specification: relative ones are to be ignored
        try:
            base = Path.home() / ".cache"
        except RuntimeError:
            return None
    return base / "shardtoll" / "traces"


@contextlib.contextmanager
def open_results(*, keep: bool, apart: bool = False, shared: bool = False) -> Iterator[ResultsFolder]:
    """Give a place for results: the cache, or memory, or for other processes a folder removed afterwards.

    `keep`: use the cache if it can be written. `apart`: other processes make the results. `shared`:
    workers of other hosts write there too, so a temporary folder is made next to the cache if possible.
    """
    folder = _writable(root()) if keep or shared else None
    if keep and folder is not None:
        yield ResultsFolder(folder, kept=True)
        prune(folder)
        return
    if not apart:
        yield ResultsFolder(None, kept=False)
        return
    if folder is not None:
        prune(folder)
    with tempfile.TemporaryDirectory(prefix=_TEMPORARY, dir=folder if shared else None) as made:
        yield ResultsFolder(Path(made), kept=False)


def _writable(folder: Path | None) -> Path | None:
    if folder is None:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:
        return None


def code_digest(packages: Iterable[str]) -> str:
    """Return the digest of the packages' modules and tables, with all rooms below them."""
    hashed = hashlib.sha256()
    for package in packages:
        folder = Path(str(resources.files(package)))
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".py", ".toml"):
                hashed.update(f"\0{package}/{path.relative_to(folder)}\0".encode())
                hashed.update(path.read_bytes())
    return hashed.hexdigest()


def digest(kernels: Path | None) -> str:
    """Return the digest of what every result depends on: our code and the tables of kernel names.

    Raises TraceError if `kernels` cannot be read.
    """
    hashed = hashlib.sha256(f"{CACHE_SCHEMA}{code_digest(_CODE)}".encode())
    if kernels is not None:
        try:
            hashed.update(b"\0user\0" + kernels.read_bytes())
        except OSError as error:
            raise TraceError(
                f"{kernels} cannot be read ({error.strerror or error})",
                "name a TOML file of kernel names with --kernels",
            ) from error
    return hashed.hexdigest()


def entry_path(folder: Path, file: TraceFile, digest: str) -> Path:
    """Return where the entry of a trace is, or would be; `digest` as in `Options`."""
    key = hashlib.sha256("\0".join((digest, file.address, file.identity)).encode("utf-8", "surrogatepass"))
    return folder / f"{key.hexdigest()}{entry.SUFFIX}"


def load(path: Path) -> entry.Entry | None:
    """Return the entry, which counts as used now; None if there is none, or a damaged one."""
    try:
        loaded = entry.read(path)
        use(path)
    except FileNotFoundError:
        return None
    except (ValueError, OSError):
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        return None
    return loaded


def use(path: Path) -> None:
    """Note that an entry was used now; OSError if it cannot be noted."""
    os.utime(path)


def write_whole(path: Path, data: bytes) -> None:
    """Write an entry so that a reader sees all of it or nothing; one that cannot be written is left out."""
    with contextlib.suppress(OSError):
        entry.write_whole(path, data)


def prune(folder: Path, limit_bytes: int = LIMIT_BYTES) -> None:
    """Remove the entries used least recently until the rest is within the limit, and dead parts."""
    entries: list[tuple[float, int, str]] = []
    with contextlib.suppress(OSError), os.scandir(folder) as items:
        for item in items:
            if item.name.startswith(_TEMPORARY) and item.is_dir(follow_symlinks=False):
                if item.stat(follow_symlinks=False).st_mtime < time.time() - _STALE_S:
                    shutil.rmtree(item.path, ignore_errors=True)
                continue
            if not item.name.endswith((entry.SUFFIX, REPORT_SUFFIX, ".part")):
                continue
            with contextlib.suppress(OSError):
                status = item.stat(follow_symlinks=False)
                if item.name.endswith(".part"):
                    if ".zip." in item.name and status.st_mtime < time.time() - _STALE_S:
                        os.unlink(item.path)
                else:
                    entries.append((status.st_mtime, status.st_size, item.path))
    total = sum(size for _, size, _ in entries)
    for _, size, path in sorted(entries):
        if total <= limit_bytes:
            return
        with contextlib.suppress(OSError):
            os.unlink(path)
            total -= size
