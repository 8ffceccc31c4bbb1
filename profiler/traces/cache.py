"""Where the results of traces lie between reports, so that a second report need not read them again.

An entry's name is a digest of all it depends on: the trace file's identity, the table of kernel
names, and our own code. An entry that cannot be read back is made anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Final

from shardtoll.ledger.errors import TraceError
from shardtoll.profiler.traces import entry

if TYPE_CHECKING:
    from shardtoll.profiler.traces.sources import TraceFile

CACHE_SCHEMA: Final = 2
"""Raised when entries change their form."""
LIMIT_BYTES: Final = 2_000_000_000
"""Above this the entries used least recently are removed."""
_TEMPORARY: Final = "shardtoll-"
"""How folders begin that last as long as one report; one that was killed leaves its own."""
_STALE_S: Final = 86_400
"""A part of an entry that is older was left by a process that died."""
_CODE: Final = (
    ("shardtoll.ledger", (".py",)),
    ("shardtoll.profiler", (".py",)),
    ("shardtoll.profiler.traces", (".py", ".toml")),
)


@dataclass(frozen=True, slots=True)
class Place:
    """A folder for results."""

    folder: Path
    kept: bool
    """Whether it outlives the report."""


def root() -> Path | None:
    """Return the cache's folder, made or not; None where no home is known."""
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
def open_place(*, keep: bool, shared: bool = False) -> Iterator[Place]:
    """Give a folder to write results to: the cache, or one that is removed afterwards.

    The second is also used where the cache cannot be written. `shared`: workers of other hosts write
    there too, so a temporary folder is made beside the cache where that can be.
    """
    folder = _writable(root())
    if keep and folder is not None:
        yield Place(folder, kept=True)
        prune(folder)
        return
    if folder is not None:
        prune(folder)
    with tempfile.TemporaryDirectory(prefix=_TEMPORARY, dir=folder if shared else None) as made:
        yield Place(Path(made), kept=False)


def _writable(folder: Path | None) -> Path | None:
    if folder is None:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:
        return None


def digest(kernels: Path | None) -> str:
    """Return the digest of what every result depends on: our code and the tables of kernel names.

    Raises TraceError where `kernels` cannot be read.
    """
    found = hashlib.sha256(f"{CACHE_SCHEMA}".encode())
    for package, suffixes in _CODE:
        for item in sorted(resources.files(package).iterdir(), key=lambda item: item.name):
            if item.name.endswith(suffixes):
                found.update(f"\0{package}/{item.name}\0".encode())
                found.update(item.read_bytes())
    if kernels is not None:
        try:
            found.update(b"\0user\0" + kernels.read_bytes())
        except OSError as error:
            raise TraceError(
                f"{kernels} cannot be read ({error.strerror or error})",
                "name a TOML file of kernel names with --kernels",
            ) from error
    return found.hexdigest()


def place(folder: Path, file: TraceFile, digest: str) -> Path:
    """Return where the entry of a trace is, or would be."""
    key = hashlib.sha256("\0".join((digest, file.address, file.identity)).encode("utf-8", "surrogatepass"))
    return folder / f"{key.hexdigest()}{entry.SUFFIX}"


def load(path: Path) -> entry.Entry | None:
    """Return the entry, which counts as used now; None where there is none, or a damaged one."""
    try:
        found = entry.read(path)
        os.utime(path)
    except FileNotFoundError:
        return None
    except (ValueError, OSError):
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        return None
    return found


def prune(folder: Path, limit_bytes: int = LIMIT_BYTES) -> None:
    """Remove the entries used least recently until the rest is within the limit, and dead parts."""
    found: list[tuple[float, int, str]] = []
    with contextlib.suppress(OSError), os.scandir(folder) as items:
        for item in items:
            if item.name.startswith(_TEMPORARY) and item.is_dir(follow_symlinks=False):
                if item.stat(follow_symlinks=False).st_mtime < time.time() - _STALE_S:
                    shutil.rmtree(item.path, ignore_errors=True)
                continue
            if not item.name.endswith((entry.SUFFIX, ".part")):
                continue
            with contextlib.suppress(OSError):
                status = item.stat(follow_symlinks=False)
                if item.name.endswith(".part"):
                    if entry.SUFFIX in item.name and status.st_mtime < time.time() - _STALE_S:
                        os.unlink(item.path)
                else:
                    found.append((status.st_mtime, status.st_size, item.path))
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= limit_bytes:
            return
        with contextlib.suppress(OSError):
            os.unlink(path)
            total -= size
