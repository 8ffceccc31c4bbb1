"""Findings of kinds that a budget forbids, in the whole step or in one section of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardtoll.ledger import Finding, Where
from shardtoll.ledger.budget import Section, glob, matches
from shardtoll.ledger.overrun import Answer, Overrun


def forbidden(
    findings: Sequence[Finding], kinds: Sequence[str], section: Section | None = None
) -> Iterator[Overrun]:
    """Yield each finding of these kinds, of whatever severity; of a `section` those of a place in it.

    A finding that does not say whether it is in the section cannot be told.
    """
    for finding in findings:
        if finding.kind not in kinds:
            continue
        inside = True if section is None else _inside(section, finding.where)
        if inside is False:
            continue
        answer: Answer = "over" if inside else "cannot be told"
        why = finding.title
        if section is not None and not inside:
            why = f"it is not known whether this is in {section.label()}: {why}"
        yield Overrun(
            limit_name="forbid",
            place=finding.kind,
            answer=answer,
            limit=0,
            found=finding.count if inside else None,
            why=why,
            step=None,
            rank=finding.ranks[0] if finding.ranks else None,
            source=finding.where.source,
            section=None if section is None else section.label(),
        )


def _inside(section: Section, where: Where) -> bool | None:
    """Return whether a place is in a section; None where it does not say."""
    if section.part == "phase":
        return None if where.phase is None else where.phase == section.name
    if section.part == "group":
        names = [name for name in (where.group, where.mesh_dim) if name is not None]
        return any(glob(section.name, name) for name in names) if names else None
    # As of a collective: where no module is known the parameter's name tells.
    name = where.parameter if where.module is None else where.module
    if name is None or matches(section.name, name):
        return None if name is None else True
    return None if _may_match(section.name, name) else False


def _may_match(pattern: str, layers: str) -> bool:
    """Return whether a finding's module, with `*` for several layers, may name one that the pattern names."""
    wanted, parts = pattern.split("."), layers.split(".")
    if "*" not in layers or not pattern or len(parts) < len(wanted):
        return False
    return all(map(_overlap, wanted, parts))


def _overlap(pattern: str, layers: str) -> bool:
    """Return whether one part of a name may fit both; of two with a `*` that is not looked into."""
    return glob(pattern, layers) or ("*" in layers and ("*" in pattern or glob(layers, pattern)))
