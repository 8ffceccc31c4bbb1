"""The named reasons for a change of the step's time, and how much of it they account for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardtoll.analyzers.compare.compare_machine import State
from shardtoll.analyzers.compare.modules import Module
from shardtoll.analyzers.two_runs.steps import ALL_ELSE
from shardtoll.ledger.answers.comparison import Cause, Change, ModuleChange, SiteChange
from shardtoll.ledger.words.human import duration, place, size, some_size


def causes(
    step: Change,
    parts: Sequence[Change],
    sites: Sequence[SiteChange],
    modules: Sequence[ModuleChange],
    machine: State,
    computed: tuple[Mapping[str, Module], Mapping[str, Module]],
    scale: float = 1.0,
) -> tuple[tuple[Cause, ...], float | None]:
    """Return the causes, most first, and what is left of the step's change without them.

    A collective adds its exposed time, a module its computing: both are parts of the step, counted once.
    If equal operators took longer everywhere, that is one cause, and a module's own is the excess over it.
    `scale`: the factor on times after, for as much work as a step before. It has a cause of its own if the
    same operators serve another amount of work. Copies and idle time have no place on record: if they
    changed, they are causes as a whole. So is the part of a watched step outside collectives. The rest is the
    step's change less the causes, so that all adds up.
    """
    reasons: list[Cause] = []
    for site in sites:
        if site.what != "none":
            # Unknown exposed time explains nothing; the cause is named all the same.
            certain = site.exposed.changed or site.waiting.changed
            reasons.append(_cause(site_words(site), site.exposed.difference or 0.0, step, certain))
    before, after = computed
    vouched = set(machine.names)
    state = machine.machine
    factor = 1.0 if state is None or not state.apart else state.factor
    usual = [before[name].time for name in machine.names]
    whole = sum(float(time.mean()) for time in usual if time is not None)
    if vouched and scale != 1:
        text = f"the same operators serve {1 / scale:.3g} times the work: {signed((scale - 1) * whole)}"
        reasons.append(_cause(text, (scale - 1) * whole, step, True))
    if state is not None and state.apart:
        words = "slower" if factor > 1 else "faster"
        why = "a busier machine, or other settings" if state.shared else "clock, power or settings"
        where = "all" if state.alike else "most"
        text = f"the same operators took {factor:.3g} times as long in {where} modules: {words} ({why})"
        reasons.append(_cause(text, (factor - 1) * scale * whole, step, True))
    for module in modules:
        if module.time.changed or module.work.changed or module.formats:
            change = module.time.difference or 0.0
            if module.name in vouched:
                change -= (module.time.before or 0.0) * (factor * scale - 1)
            earlier, other = before.get(module.name), after.get(module.name)
            same = (
                scale == 1
                and earlier is not None
                and other is not None
                and earlier.signature == other.signature
            )
            reasons.append(_cause(module_words(module, same_work=same), change, step, module.time.changed))
    for part in parts:
        if part.name in ("copies", "idle") and part.changed:
            change = part.difference or 0.0
            reasons.append(_cause(f"{part.name} time: {signed(change)} per step", change, step, True))
        elif part.name == ALL_ELSE and part.changed and not any(map(_told, modules)):
            change = part.difference or 0.0
            text = f"{part.name}: {signed(change)} per step, with too few operators on record to tell where"
            reasons.append(_cause(text, change, step, True))
    reasons.sort(key=lambda cause: -abs(cause.change_ns))
    if step.difference is None:
        return tuple(reasons), None
    return tuple(reasons), step.difference - sum(cause.change_ns for cause in reasons)


def _told(module: ModuleChange) -> bool:
    return module.time.low is not None or module.work.changed or module.formats is not None


def _cause(text: str, change: float, step: Change, certain: bool) -> Cause:
    whole = step.difference if step.changed else None
    return Cause(text, change, change / whole if whole else None, certain)


def site_words(site: SiteChange) -> str:
    """Return `added all_gather in layers.*.mlp at train.py:42 (forward, tp): +2 calls, +1.05 MB per step`."""
    by = f" by {site.cause}" if site.cause and site.cause != site.op else ""
    name = f"{site.op}{by}{place(site.module, site.source)} ({site.phase}, {site.group})"
    calls = _more(site.calls.difference, "call")
    moved = _bytes(site.bytes.difference)
    if site.what in ("added", "removed"):
        return f"{site.what} {name}: {calls}{moved} per step"
    if site.what == "dtype":
        return f"{site.dtypes[0]} -> {site.dtypes[1]} in {name}: {_message(site)}{moved} per step"
    if site.what == "size":
        return f"other size of {name}: {_message(site)}{moved} per step"
    if site.what == "count":
        return f"{'more' if site.calls.verdict == 'more' else 'fewer'} {name}: {calls}{moved} per step"
    part = "waits" if site.waiting.changed and not site.exposed.changed else "is exposed"
    words = "longer" if (site.exposed.difference or 0) > 0 else "shorter"
    return f"{name} {part} {words}: {signed(site.exposed.difference)} per step"


def module_words(module: ModuleChange, *, same_work: bool) -> str:
    """Return `layers.3.mlp computes 5.2 % slower with the same work: +1.2 ms per step`.

    `same_work`: operators, shapes and the amount of work are those of before. Equal FLOPs alone do not say
    so, as many operators have none.
    """
    was, now = module.time.before, module.time.after
    time = f": {signed(module.time.difference)} per step"
    if module.formats:
        return f"{module.name} computes in {module.formats[1]}, not in {module.formats[0]}{time}"
    if was == 0 or now == 0:
        return f"{module.name} computes {'now' if was == 0 else 'no longer'}{time}"
    work = " with the same work" if same_work else ""
    if module.work.changed and module.work.before:
        work = f" with {module.work.after or 0:,.0f} FLOP per step, not {module.work.before:,.0f}"
    if not module.time.changed or not was or now is None:
        return f"{module.name} computes{work}{time}"
    by = 100 * (now - was) / was
    return f"{module.name} computes {abs(by):.3g} % {'slower' if by > 0 else 'faster'}{work}{time}"


def signed(time_ns: float | None) -> str:
    """Return `+1.2 ms`."""
    if time_ns is None:
        return "an unknown time"
    return f"{'-' if time_ns < 0 else '+'}{duration(abs(time_ns))}"


def _more(count: float | None, noun: str) -> str:
    if count is None:
        return "an unknown number of calls"
    return f"{count:+.4g} {noun}{'' if abs(count) == 1 else 's'}"


def _bytes(count: float | None) -> str:
    if count is None:
        return ""
    return f", {'-' if count < 0 else '+'}{size(round(abs(count)))}"


def _message(site: SiteChange) -> str:
    was, now = site.message_bytes
    return f"messages of {some_size(was)} -> {some_size(now)}"
