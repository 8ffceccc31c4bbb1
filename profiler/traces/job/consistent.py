"""Which of the traces found in one place are one recording of one job, each rank once.

The most complete consistent set is kept. Each trace that is set aside is reported with its reason.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from shardtoll.ledger.tables.ledger import concatenated
from shardtoll.profiler.traces.file.meta import process_from_name
from shardtoll.profiler.traces.job.entry import Entry

CLOCKS_NS: Final = 60 * 1_000_000_000
"""Hosts' clocks differ by less: recordings further apart are two, if ranks or steps say so too."""

CYCLES_NS: Final = 60 * CLOCKS_NS
"""Recordings of a rank further apart are of two runs, unless their names give the same process."""
_RUN_NS: Final = 365 * 24 * 60 * CLOCKS_NS


@dataclass(slots=True)
class Candidate:
    """A trace that could be read."""

    entry: Entry
    steps: tuple[int, ...]
    """Numbers of the steps recorded, ascending."""
    addresses: tuple[str, ...]
    """The traces it is from, in order of time."""

    @property
    def order(self) -> tuple[int, int, str]:
        """Decides between two traces that fit equally: more events, then later, then the name."""
        facts = self.entry.facts
        return (-facts.events, -facts.start_ns, facts.address)


@dataclass(slots=True)
class Choice:
    """The set kept, by rank, and what was set aside with its reason."""

    kept: list[Candidate]
    left_out: list[tuple[str, str]] = field(default_factory=list)
    """(address, reason in one line)"""
    notices: list[tuple[str, str]] = field(default_factory=list)
    """(notice kind, text) of what is kept."""


def candidate(entry: Entry) -> Candidate:
    """Return the entry with what is compared."""
    steps = entry.ledger.tables["steps"].column("step").unique().to_pylist()
    return Candidate(entry, tuple(sorted(steps)), (entry.facts.address,))


def choose(candidates: Sequence[Candidate]) -> Choice:
    """Return the most complete consistent set of the traces; at least one is kept."""
    choice = Choice(sorted(candidates, key=lambda each: (each.entry.rank, each.order)))
    _by_world_size(choice)
    _by_groups(choice)
    _join_cycles(choice)
    _by_time(choice)
    _by_steps(choice)
    _by_rank(choice)
    return choice


def _ranks(members: Sequence[Candidate]) -> int:
    return len({each.entry.rank for each in members})


def _largest(classes: dict[Hashable, list[Candidate]]) -> Hashable:
    """Return the class with most ranks; of equals the one with most events, then the latest."""
    return max(
        classes,
        key=lambda name: (
            _ranks(classes[name]),
            sum(each.entry.facts.events for each in classes[name]),
            max(each.entry.facts.start_ns for each in classes[name]),
        ),
    )


def _keep(choice: Choice, fits: Callable[[Candidate], bool], why: Callable[[Candidate], str]) -> None:
    for each in choice.kept:
        if not fits(each):
            choice.left_out += [(address, why(each)) for address in each.addresses]
    choice.kept = [each for each in choice.kept if fits(each)]


def _by_world_size(choice: Choice) -> None:
    classes: dict[Hashable, list[Candidate]] = defaultdict(list)
    for each in choice.kept:
        classes[each.entry.ledger.run.world_size].append(each)
    if len(classes) < 2:
        return
    usual = _largest(classes)
    _keep(
        choice,
        lambda each: each.entry.ledger.run.world_size == usual,
        lambda each: f"it is of a job of {each.entry.ledger.run.world_size} ranks, the others of {usual}",
    )


def _by_groups(choice: Choice) -> None:
    """Traces whose groups of one name share ranks and yet differ are of different jobs."""
    if len(choice.kept) < 2:
        return
    owners: dict[tuple[str, int], tuple[int, ...]] = {}
    by_group: dict[tuple[str, tuple[int, ...]], list[Candidate]] = defaultdict(list)
    for each in choice.kept:
        for group in each.entry.ledger.groups:
            by_group[group.name, group.ranks].append(each)
    # Groups of most traces first: what differs from them is the odd one.
    for name, ranks in sorted(by_group, key=lambda key: (-_ranks(by_group[key]), key)):
        clash = next((owners[name, rank] for rank in ranks if owners.get((name, rank), ranks) != ranks), None)
        if clash is None:
            owners.update(dict.fromkeys(((name, rank) for rank in ranks), ranks))
            continue
        odd = {id(each) for each in by_group[name, ranks]}
        why = f"its group {name} has {len(ranks)} ranks unlike the {len(clash)} that the others say"
        if len(odd) < len(choice.kept):
            _keep(choice, lambda each: id(each) not in odd, lambda _: why)  # noqa: B023


def _join_cycles(choice: Choice) -> None:
    """Put together the recordings of a rank whose steps follow each other, as `schedule(repeat=3)` makes."""
    by_rank: dict[int, list[Candidate]] = defaultdict(list)
    for each in sorted(choice.kept, key=lambda each: (each.entry.facts.start_ns, each.order)):
        same = by_rank[each.entry.rank]
        place = next((place for place in range(len(same) - 1, -1, -1) if _follows(same[place], each)), None)
        if place is None:
            same.append(each)
        else:
            same[place] = _joined(same[place], each)
    choice.kept = [
        each for _, same in sorted(by_rank.items()) for each in sorted(same, key=lambda o: o.order)
    ]


def _follows(first: Candidate, second: Candidate) -> bool:
    """Whether the second is a later recording of the same process: no instant and no step is in both."""
    if not first.steps or not second.steps or first.steps[-1] >= second.steps[0]:
        return False
    before, after = first.entry.facts, second.entry.facts
    # Files a process wrote itself are named by it; else what comes later was run later.
    process = process_from_name(first.addresses[-1])
    same = process is not None and process == process_from_name(second.addresses[0])
    return 0 <= after.start_ns - before.end_ns <= (_RUN_NS if same else CYCLES_NS)


def _joined(first: Candidate, second: Candidate) -> Candidate:
    before, after = first.entry, second.entry
    facts = replace(
        before.facts,
        world_size=before.facts.world_size or after.facts.world_size,
        end_ns=after.facts.end_ns,
        events=before.facts.events + after.facts.events,
    )
    ledger = concatenated([before.ledger, after.ledger])
    return Candidate(Entry(facts, ledger), first.steps + second.steps, first.addresses + second.addresses)


def _by_time(choice: Choice) -> None:
    """Among recordings far apart in time one is kept, unless they are other ranks' of the same steps."""
    apart: dict[Hashable, list[Candidate]] = {}
    end_ns = 0
    for each in sorted(choice.kept, key=lambda each: each.entry.facts.start_ns):
        facts = each.entry.facts
        if not apart or facts.start_ns > end_ns + CLOCKS_NS:
            apart[len(apart)] = []
            end_ns = facts.end_ns
        apart[len(apart) - 1].append(each)
        end_ns = max(end_ns, facts.end_ns)
    if len(apart) < 2:
        return
    best = apart[_largest(apart)]
    kept = {id(each) for each in best}
    ranks = {each.entry.rank for each in best}
    steps = {step for each in best for step in each.steps}
    for others in apart.values():
        # Clocks that count from a host's start are hours apart: no reason to lose a rank.
        if others is best or any(each.entry.rank in ranks or not steps & set(each.steps) for each in others):
            continue
        moved = [_begun_at(each, min(each.entry.facts.start_ns for each in best)) for each in others]
        away = {id(each) for each in others}
        choice.kept = [each for each in choice.kept if id(each) not in away] + moved
        kept |= {id(each) for each in moved}
        ranks |= {each.entry.rank for each in moved}
        one_only = len(others) == 1
        who, their = ("1 trace was", "its") if one_only else (f"{len(others)} traces were", "their")
        text = f"{who} recorded at another time than the others by {their} clock"
        choice.notices.append(("clock-unknown", text))
    start_ns = min(each.entry.facts.start_ns for each in best)
    _keep(
        choice,
        lambda each: id(each) in kept,
        lambda each: f"it was recorded {_span(each.entry.facts.start_ns - start_ns)} than the others",
    )


def _begun_at(moved: Candidate, start_ns: int) -> Candidate:
    """Return a recording whose clock says nothing as if it had begun with the others, not decades away."""
    ledger = replace(moved.entry.ledger, run=replace(moved.entry.ledger.run, epoch_ns=start_ns))
    return replace(moved, entry=replace(moved.entry, ledger=ledger))


def _by_steps(choice: Choice) -> None:
    """Traces that share no step with the steps of most ranks are set aside."""
    classes: dict[Hashable, list[Candidate]] = defaultdict(list)
    for each in choice.kept:
        if each.steps:
            classes[each.steps].append(each)
    if len(classes) < 2:
        return
    common = next(each.steps for each in classes[_largest(classes)])
    shared = set(common)
    _keep(
        choice,
        lambda each: not each.steps or not shared.isdisjoint(each.steps),
        lambda each: f"it has {_steps(each.steps)}, the others {_steps(common)}",
    )
    uneven = Counter(each.steps for each in choice.kept if each.steps != common and each.steps)
    for steps, count in sorted(uneven.items()):
        text = (
            f"{count} {'trace has' if count == 1 else 'traces have'} {_steps(steps)}, most {_steps(common)}"
        )
        choice.notices.append(("steps-differ", text))


def _by_rank(choice: Choice) -> None:
    """Among several traces of a rank the fullest is kept."""
    by_rank: dict[int, list[Candidate]] = defaultdict(list)
    for each in choice.kept:
        by_rank[each.entry.rank].append(each)
    usual = Counter(each.steps for each in choice.kept).most_common(1)[0][0]
    kept = {
        rank: min(same, key=lambda each: (each.steps != usual, each.order)) for rank, same in by_rank.items()
    }
    _keep(
        choice,
        lambda each: kept[each.entry.rank] is each,
        lambda each: f"it is of rank {each.entry.rank} as is {kept[each.entry.rank].entry.facts.address}",
    )


def _steps(steps: tuple[int, ...]) -> str:
    if len(steps) == 1:
        return f"step {steps[0]}"
    if steps[-1] - steps[0] == len(steps) - 1:
        return f"steps {steps[0]} to {steps[-1]}"
    shown = ", ".join(map(str, steps[:5]))
    return f"steps {shown}{' ...' if len(steps) > 5 else ''}"


def _span(apart_ns: int) -> str:
    seconds = abs(apart_ns) / 1e9
    for unit, of in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * of:
            return f"{seconds / of:.0f} {unit} {'later' if apart_ns > 0 else 'earlier'}"
    return f"{seconds:.0f} s {'later' if apart_ns > 0 else 'earlier'}"
