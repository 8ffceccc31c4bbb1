"""Traces become ledgers of jobs: files are read side by side, and ranks are put together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from shardtoll.ledger.errors import TraceError, UsageError
from shardtoll.ledger.ledger import Ledger, merge
from shardtoll.ledger.record import Group, Notice, Run
from shardtoll.ledger.tables import to_table
from shardtoll.profiler.traces import cache, sources
from shardtoll.profiler.traces.consistent import Candidate, Choice, candidate, choose
from shardtoll.profiler.traces.executor import Executor, InProcess, cores
from shardtoll.profiler.traces.kernels import load_table
from shardtoll.profiler.traces.meta import rank_from_name
from shardtoll.profiler.traces.task import Options, Task, TaskResult, Work, run_task
from shardtoll.profiler.traces.worlds import without_assumed

if TYPE_CHECKING:
    from shardtoll.profiler.traces.sources import TraceFile

_MOST_REASONS: Final = 5
_SHARE: Final = 2
"""A pool is worth its start from that many files on."""


@dataclass(frozen=True, slots=True)
class Job:
    """One job as its traces tell it."""

    name: str
    """The path it was read from."""
    ledger: Ledger
    files: tuple[TraceFile, ...]
    """The traces it was made from, by rank; several of a rank that was recorded several times."""
    file_ranks: tuple[int, ...]
    """The rank that each of the files is of."""
    set_aside: tuple[tuple[str, str], ...]
    """(address, reason) of the traces that are not part of it: unreadable, or of something else."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the reading is. Files from the cache count as read."""

    files: int
    of_files: int
    bytes: int
    of_bytes: int | None
    """None where a file's size is not known."""


def read_traces(
    paths: Sequence[str],
    *,
    jobs: int | None = None,
    dask: str | None = None,
    cache: bool = True,
    kernels: Path | None = None,
    progress: Callable[[Progress], None] | None = None,
    work: Work = run_task,
) -> list[Job]:
    """Return a job for each path: a folder, glob or address of traces; traces named one by one are one job.

    `jobs`: processes at once, by default one a core. `dask`: the address of a Dask scheduler whose
    workers read instead. `cache`: keep results between calls. `kernels`: a TOML table of kernel names
    of your own. Raises TraceError where nothing of a path can be read, UsageError where the cluster
    cannot be used.
    """
    return list(iter_traces(paths, jobs, dask, cache, kernels, progress, work))


def iter_traces(
    paths: Sequence[str],
    jobs: int | None = None,
    dask: str | None = None,
    keep: bool = True,
    kernels: Path | None = None,
    progress: Callable[[Progress], None] | None = None,
    work: Work = run_task,
) -> Iterator[Job]:
    """Yield the jobs of `read_traces` one after the other, so that one need not wait for all."""
    digest = cache.digest(kernels)
    if kernels is not None:
        load_table(kernels)  # a mistake in it is told once, before anything is read
    for name, parts in _places(paths):
        folders, passed = _folders(parts, sources.find(parts))
        files = [file for held in folders.values() for file in held]
        alone = len(files) == 1
        options = Options(
            digest=f"{digest} alone" if alone else digest,
            kernels=None if kernels is None else str(kernels.absolute()),
            alone=alone,
        )
        executor = _executor(jobs, dask, files)
        with cache.open_place(keep=keep, shared=dask is not None) as place:
            reading = partial(_read, place=place, executor=executor, work=work, progress=progress)
            found, unreadable = reading(files, options)
            chosen, others = _fullest(folders, found)
            inside = {file.address for file in folders[chosen]}
            files = folders[chosen]
            found = [one for one in found if one.entry.facts.address in inside]
            unreadable = [result for result in unreadable if result.address in inside]
            world_size = _world_size(found)
            unsure = {
                one.entry.facts.address
                for one in found
                if one.entry.facts.world_size is None and one.entry.ledger.run.world_size != world_size
            }
            if unsure:
                # Their groups were guessed from their rank alone; now the job's size is known.
                again = replace(options, digest=f"{digest} of {world_size}", world_size=world_size)
                more, failed = reading([file for file in files if file.address in unsure], again)
                found = [one for one in found if one.entry.facts.address not in unsure] + more
                unreadable += failed
        yield _job(sources.readable(name), files, found, unreadable, others + passed)


def _folders(
    parts: Sequence[str], files: list[TraceFile]
) -> tuple[dict[str, list[TraceFile]], list[tuple[str, str]]]:
    """Return the traces of each folder that may be the job, and (folder, reason) of those that are not."""
    if len(parts) != 1:
        return {"": files}, []
    found = sources.by_folder(parts[0], files)
    own = found.pop(parts[0], None)
    if own is None:
        return found, []
    why = "the traces above it are one job, report this folder by its own path"
    return {parts[0]: own}, [(name, f"{_traces(held)} set aside: {why}") for name, held in found.items()]


def _fullest(
    folders: dict[str, list[TraceFile]], found: Sequence[Candidate]
) -> tuple[str, list[tuple[str, str]]]:
    """Return the folder with the most complete job, and (folder, reason) of the others."""
    if len(folders) == 1:
        return next(iter(folders)), []
    full: dict[str, tuple[int, int, int]] = {}
    for name, held in folders.items():
        inside = {file.address for file in held}
        kept = choose(mine).kept if (mine := [c for c in found if c.entry.facts.address in inside]) else []
        full[name] = (
            len(kept),
            sum(one.entry.facts.events for one in kept),
            max((one.entry.facts.start_ns for one in kept), default=0),
        )
    chosen = max(folders, key=lambda name: full[name])
    why = f"{chosen} is more complete, report this folder by its own path"
    rest = [(name, f"{_traces(held)} set aside: {why}") for name, held in folders.items() if name != chosen]
    return chosen, rest


def _traces(held: Sequence[TraceFile]) -> str:
    return f"{len(held)} {'trace' if len(held) == 1 else 'traces'}"


def _world_size(found: Sequence[Candidate]) -> int | None:
    """Return the size of the job: as most traces say, else the least it can be; None without traces."""
    said = Counter(size for one in found if (size := one.entry.facts.world_size) is not None)
    if said:
        return max(said, key=lambda size: (said[size], size))
    return max((one.entry.ledger.run.world_size for one in found), default=None)


def _places(paths: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Return (name, paths) of each job: files that are named one by one belong together."""
    single = [path for path in paths if Path(path).is_file()]
    places: list[tuple[str, list[str]]] = []
    for path in paths:
        if path not in single:
            places.append((path, [path]))
        elif path == single[0]:
            name = path if len(single) == 1 else f"{len(single)} files, {path} first"
            places.append((name, single))
    return places


def _executor(jobs: int | None, dask: str | None, files: Sequence[TraceFile]) -> Executor:
    if dask is not None:
        from shardtoll.profiler.traces.dask_executor import Dask

        return Dask(dask)
    if jobs is not None and jobs < 1:
        raise UsageError(f"{jobs} jobs cannot read anything", "give --jobs a number from 1")
    wanted = min(cores() if jobs is None else jobs, len(files))
    if wanted < _SHARE:
        return InProcess()
    from shardtoll.profiler.traces.pool import Pool

    return Pool(wanted)


def _read(
    files: Sequence[TraceFile],
    options: Options,
    *,
    place: cache.Place,
    executor: Executor,
    work: Work,
    progress: Callable[[Progress], None] | None,
) -> tuple[list[Candidate], list[TaskResult]]:
    """Return what could be read, and the results with a reason of what could not; both in any order."""
    meter = _Meter(files, progress)
    found: list[Candidate] = []
    unreadable: list[TaskResult] = []
    tasks: list[Task] = []
    groups: dict[Group, Group] = {}
    for file in files:
        known = cache.load(cache.place(place.folder, file, options.digest)) if place.kept else None
        if known is None:
            tasks.append(Task(file, str(place.folder), options))
        else:
            found.append(_slim(candidate(known), groups))
            meter.count(file.address)
    if not tasks:
        return found, unreadable
    with closing(executor.run(work, tasks)) as results:
        for result in results:
            loaded = None if result.path is None else cache.load(Path(result.path))
            if loaded is not None:
                found.append(_slim(candidate(loaded), groups))
            elif result.path is None:
                unreadable.append(result)
            else:
                unreadable.append(
                    replace(result, reason=f"its result in {result.path} is not there or damaged")
                )
            if not place.kept and result.path is not None:
                Path(result.path).unlink(missing_ok=True)
            meter.count(result.address)
    return found, unreadable


def _slim(one: Candidate, groups: dict[Group, Group]) -> Candidate:
    """Return the candidate with groups shared between ranks: a thousand lists of a thousand ranks are one."""
    ledger = one.entry.ledger
    shared = tuple(groups.setdefault(group, group) for group in ledger.groups)
    return replace(one, entry=replace(one.entry, ledger=replace(ledger, groups=shared)))


class _Meter:
    def __init__(self, files: Sequence[TraceFile], tell: Callable[[Progress], None] | None) -> None:
        self._sizes = {file.address: file.size_bytes for file in files}
        known = [size for size in self._sizes.values() if size is not None]
        self._all_bytes = sum(known) if len(known) == len(self._sizes) else None
        self._tell = tell
        self._files = self._bytes = 0
        self._say()

    def count(self, address: str) -> None:
        self._files += 1
        self._bytes += self._sizes[address] or 0
        self._say()

    def _say(self) -> None:
        if self._tell is not None:
            self._tell(Progress(self._files, len(self._sizes), self._bytes, self._all_bytes))


def _job(
    name: str,
    files: Sequence[TraceFile],
    found: list[Candidate],
    unreadable: list[TaskResult],
    folders: Sequence[tuple[str, str]],
) -> Job:
    unreadable.sort(key=lambda result: result.address)
    if not found:
        raise _nothing(name, unreadable)
    choice = choose(found)
    ledger = _merged(choice)
    run = ledger.run
    notices = [Notice(run.ranks_seen[0], kind, text) for kind, text in choice.notices]
    failed = [(result.address, result.reason or "unknown") for result in unreadable]
    left = [*choice.left_out, *folders]
    for kind, aside in (("file-left-out", left), ("file-unreadable", failed)):
        notices += [Notice(_blamed(address, run), kind, _named(address, why)) for address, why in aside]
    if notices:
        table = pa.concat_tables([ledger.tables["notices"], to_table("notices", notices)])
        ledger = replace(ledger, tables={**ledger.tables, "notices": table})
    by_address = {file.address: file for file in files}
    used = [(one.entry.rank, by_address[address]) for one in choice.kept for address in one.addresses]
    ranks = tuple(rank for rank, _ in used)
    return Job(name, ledger, tuple(file for _, file in used), ranks, (*failed, *left))


def _blamed(address: str, run: Run) -> int:
    """Return the rank that a file's notice stands by: its own as its name says, else the first seen."""
    rank = rank_from_name(address)
    return rank if rank is not None and rank < run.world_size else run.ranks_seen[0]


def _named(address: str, reason: str) -> str:
    return reason if address in reason else f"{address}: {reason}"


def _merged(choice: Choice) -> Ledger:
    """Return the ledger of all that is kept, with a notice where the job's size is a guess."""
    kept = choice.kept
    if all(one.entry.facts.world_size is None for one in kept):
        world_size = max(one.entry.ledger.run.world_size for one in kept)
        text = f"no trace says how many ranks the job has: the {world_size} it has at least are assumed"
        choice.notices.append(("world-size-unknown", text))
        for one in kept:
            one.entry = replace(one.entry, ledger=without_assumed(one.entry.ledger))
    try:
        return merge([one.entry.ledger for one in kept])
    except ValueError as error:  # every cause of it was set aside before
        raise AssertionError(f"ranks that were chosen to fit do not: {error}") from error


def _nothing(name: str, unreadable: list[TaskResult]) -> TraceError:
    reasons = [_named(result.address, result.reason or "unknown") for result in unreadable]
    hint = next((result.hint for result in unreadable if result.hint), "name another trace")
    if len(reasons) == 1:
        return TraceError(reasons[0], hint)
    shown = "; ".join(reasons[:_MOST_REASONS])
    more = f"; and {len(reasons) - _MOST_REASONS} more" if len(reasons) > _MOST_REASONS else ""
    return TraceError(f"none of the {len(reasons)} traces in {name} can be read: {shown}{more}", hint)
