"""Traces become ledgers of jobs: files are read side by side, and ranks are put together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from msgspec import Struct

from shardtoll.ledger.records.errors import TraceError, UsageError
from shardtoll.ledger.records.record import Group, Notice, Run
from shardtoll.ledger.tables.ledger import Ledger, merge
from shardtoll.ledger.tables.tables import to_table
from shardtoll.profiler.traces.collectives.kernels import load_table
from shardtoll.profiler.traces.file import sources
from shardtoll.profiler.traces.file.meta import rank_from_name
from shardtoll.profiler.traces.job import cache
from shardtoll.profiler.traces.job.communicators import communicators
from shardtoll.profiler.traces.job.consistent import Candidate, Choice, candidate, choose
from shardtoll.profiler.traces.job.executor import Executor, InProcess, cores
from shardtoll.profiler.traces.job.task import Options, Task, TaskResult, Work, run_task
from shardtoll.profiler.traces.rank.worlds import sized, without_assumed

if TYPE_CHECKING:
    from shardtoll.profiler.traces.file.sources import TraceFile

_MOST_REASONS: Final = 5
_REASONS_LENGTH: Final = 120
"""Characters of further reasons in an error, which is a line."""
_SHARE: Final = 2
"""A pool is worth its start from that many files on."""


class Job(Struct, frozen=True):
    """One job as its traces show it."""

    name: str
    """The path it was read from."""
    ledger: Ledger
    files: tuple[TraceFile, ...]
    """The traces it was made from, by rank; several of a rank that was recorded several times."""
    file_ranks: tuple[int, ...]
    """The rank that each of the files is of."""
    set_aside: tuple[tuple[str, str], ...]
    """(address, reason) of the traces that are not part of it: unreadable, or of something else."""


class Progress(Struct, frozen=True):
    """How far the reading is. Files from the cache count as read."""

    files: int
    of_files: int
    bytes: int
    of_bytes: int | None
    """None if a file's size is unknown."""


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
    of your own. Raises TraceError if nothing of a path can be read, UsageError if the cluster cannot be used.
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
    # Without the cache, only what a table of the user's own says has to be checked.
    if kernels is not None:
        load_table(kernels)  # a mistake in it is reported once, before anything is read
    digest = cache.digest(kernels) if keep or kernels is not None else ""
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
        apart = not isinstance(executor, InProcess)
        with cache.open_results(keep=keep, apart=apart, shared=dask is not None) as results_folder:
            candidates, unreadable = _read(files, options, results_folder, executor, work, progress)
        chosen, others = _fullest(folders, candidates)
        inside = {file.address for file in folders[chosen]}
        candidates = _sized([each for each in candidates if each.entry.facts.address in inside])
        unreadable = [result for result in unreadable if result.address in inside]
        yield _job(sources.readable(name), folders[chosen], candidates, unreadable, others + passed)


def _folders(
    parts: Sequence[str], files: list[TraceFile]
) -> tuple[dict[str, list[TraceFile]], list[tuple[str, str]]]:
    """Return the traces of each folder that may be the job, and (folder, reason) of those that are not."""
    if len(parts) != 1:
        return {"": files}, []
    folders = sources.by_folder(parts[0], files)
    held_above = folders.pop(parts[0], None)
    if held_above is None:
        return folders, []
    why = "the traces above it are one job, report this folder by its own path"
    return {parts[0]: held_above}, [
        (name, f"{_traces(held)} set aside: {why}") for name, held in folders.items()
    ]


def _fullest(
    folders: dict[str, list[TraceFile]], candidates: Sequence[Candidate]
) -> tuple[str, list[tuple[str, str]]]:
    """Return the folder with the most complete job, and (folder, reason) of the others."""
    if len(folders) == 1:
        return next(iter(folders)), []
    full: dict[str, tuple[int, int, int]] = {}
    for name, held in folders.items():
        inside = {file.address for file in held}
        kept = (
            choose(mine).kept if (mine := [c for c in candidates if c.entry.facts.address in inside]) else []
        )
        full[name] = (
            len(kept),
            sum(each.entry.facts.events for each in kept),
            max((each.entry.facts.start_ns for each in kept), default=0),
        )
    chosen = max(folders, key=lambda name: full[name])
    why = f"{chosen} is more complete, report this folder by its own path"
    rest = [(name, f"{_traces(held)} set aside: {why}") for name, held in folders.items() if name != chosen]
    return chosen, rest


def _traces(held: Sequence[TraceFile]) -> str:
    return f"{len(held)} {'trace' if len(held) == 1 else 'traces'}"


def _sized(candidates: list[Candidate]) -> list[Candidate]:
    """Return the candidates with the job's size in those that do not state it: a guess from one rank alone.

    The size is that of most traces, else the least that the job can have.
    """
    stated = Counter(size for each in candidates if (size := each.entry.facts.world_size) is not None)
    if stated:
        world_size = max(stated, key=lambda size: (stated[size], size))
    else:
        world_size = max((each.entry.ledger.run.world_size for each in candidates), default=0)
    members = communicators([each.entry for each in candidates])
    for each in candidates:
        entry = each.entry
        if entry.unsized is not None:
            ledger = sized(entry.ledger, entry.unsized, entry.facts.world_size or world_size, members)
            each.entry = replace(entry, ledger=ledger, unsized=None)
    return candidates


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
        from shardtoll.profiler.traces.job.dask_executor import Dask

        return Dask(dask)
    if jobs is not None and jobs < 1:
        raise UsageError(f"{jobs} jobs cannot read anything", "give --jobs a number from 1")
    wanted = min(cores() if jobs is None else jobs, len(files))
    if wanted < _SHARE:
        return InProcess()
    from shardtoll.profiler.traces.job.pool import Pool

    return Pool(wanted)


def _read(
    files: Sequence[TraceFile],
    options: Options,
    results_folder: cache.ResultsFolder,
    executor: Executor,
    work: Work,
    progress: Callable[[Progress], None] | None,
) -> tuple[list[Candidate], list[TaskResult]]:
    """Return what could be read, and the results with a reason of what could not; both in any order."""
    meter = _Meter(files, progress)
    candidates: list[Candidate] = []
    unreadable: list[TaskResult] = []
    groups: dict[Group, Group] = {}
    wanted = [(file, options) for file in files]
    while wanted:
        first = len(candidates)
        sized = {file.address: file for file, _ in wanted}
        unreadable += _round(wanted, results_folder, executor, work, meter, candidates, groups)
        # A file of several devices is read once for each.
        wanted = [
            (sized[each.entry.facts.address], options.of_part(part))
            for each in candidates[first:]
            for part in range(1, each.entry.facts.parts)
            if wanted[0][1].part == 0
        ]
    return candidates, unreadable


def _round(
    wanted: Sequence[tuple[TraceFile, Options]],
    results_folder: cache.ResultsFolder,
    executor: Executor,
    work: Work,
    meter: _Meter,
    candidates: list[Candidate],
    groups: dict[Group, Group],
) -> list[TaskResult]:
    """Add a candidate for each file and device; return the results of those that could not be read."""
    unreadable: list[TaskResult] = []
    tasks: list[Task] = []
    folder, kept = results_folder.folder, results_folder.kept
    for file, options in wanted:
        cached = cache.load(cache.entry_path(folder, file, options.digest)) if folder and kept else None
        if cached is None:
            tasks.append(Task(file, None if folder is None else str(folder), options))
        else:
            candidates.append(_slim(candidate(cached), groups))
            meter.count(file.address)
    if not tasks:
        return unreadable
    with closing(executor.run(work, tasks)) as results:
        for result in results:
            entry = result.entry
            if entry is None and result.path is not None:
                entry = cache.load(Path(result.path))
            if entry is not None:
                candidates.append(_slim(candidate(entry), groups))
            elif result.path is None:
                unreadable.append(result)
            else:
                reason = f"its result in {result.path} is not there or damaged"
                unreadable.append(replace(result, path=None, reason=reason))
            if not kept and result.path is not None:
                Path(result.path).unlink(missing_ok=True)
            meter.count(result.address)
    return unreadable


def _slim(each: Candidate, groups: dict[Group, Group]) -> Candidate:
    """Return the candidate with groups shared between ranks: a thousand lists of a thousand ranks are one."""
    ledger = each.entry.ledger
    shared = tuple(groups.setdefault(group, group) for group in ledger.groups)
    return replace(each, entry=replace(each.entry, ledger=replace(ledger, groups=shared)))


class _Meter:
    def __init__(self, files: Sequence[TraceFile], tell: Callable[[Progress], None] | None) -> None:
        self._sizes = {file.address: file.size_bytes for file in files}
        sizes = [size for size in self._sizes.values() if size is not None]
        self._all_bytes = sum(sizes) if len(sizes) == len(self._sizes) else None
        self._tell = tell
        self._files = self._bytes = 0
        self._counted: set[str] = set()
        self._say()

    def count(self, address: str) -> None:
        if address in self._counted:
            return
        self._counted.add(address)
        self._files += 1
        self._bytes += self._sizes[address] or 0
        self._say()

    def _say(self) -> None:
        if self._tell is not None:
            self._tell(Progress(self._files, len(self._sizes), self._bytes, self._all_bytes))


def _job(
    name: str,
    files: Sequence[TraceFile],
    candidates: list[Candidate],
    unreadable: list[TaskResult],
    folders: Sequence[tuple[str, str]],
) -> Job:
    unreadable.sort(key=lambda result: result.address)
    if not candidates:
        raise _nothing(name, unreadable)
    choice = choose(candidates)
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
    used = [(each.entry.rank, by_address[address]) for each in choice.kept for address in each.addresses]
    ranks = tuple(rank for rank, _ in used)
    return Job(name, ledger, tuple(file for _, file in used), ranks, (*failed, *left))


def _blamed(address: str, run: Run) -> int:
    """Return the rank that a file's notice stands by: its own as its name says, else the first seen."""
    rank = rank_from_name(address)
    return rank if rank is not None and rank < run.world_size else run.ranks_seen[0]


def _named(address: str, reason: str) -> str:
    return reason if address in reason else f"{address}: {reason}"


def _merged(choice: Choice) -> Ledger:
    """Return the ledger of all that is kept, with a notice if the job's size is a guess."""
    kept = choice.kept
    if all(each.entry.facts.world_size is None for each in kept):
        world_size = max(each.entry.ledger.run.world_size for each in kept)
        text = f"no trace says how many ranks the job has: the {world_size} it has at least are assumed"
        choice.notices.append(("world-size-unknown", text))
        for each in kept:
            each.entry = replace(each.entry, ledger=without_assumed(each.entry.ledger))
    try:
        return merge([each.entry.ledger for each in kept])
    except ValueError as error:  # every cause of it was set aside before
        raise AssertionError(f"ranks that were chosen to fit do not: {error}") from error


def _nothing(name: str, unreadable: list[TaskResult]) -> TraceError:
    reasons = [_named(result.address, result.reason or "unknown") for result in unreadable]
    hint = next((result.hint for result in unreadable if result.hint), "name another trace")
    if len(reasons) == 1:
        return TraceError(reasons[0], hint)
    fitting = [each for each in range(1, _MOST_REASONS) if len("; ".join(reasons[:each])) <= _REASONS_LENGTH]
    count = max(fitting, default=1)
    shown = "; ".join(reasons[:count])
    more = f"; and {len(reasons) - count} more" if len(reasons) > count else ""
    return TraceError(f"none of the {len(reasons)} traces in {name} can be read: {shown}{more}", hint)
