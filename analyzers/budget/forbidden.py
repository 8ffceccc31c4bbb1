"""Findings of kinds that a budget forbids, in the whole step or in one section of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardtoll.ledger import Finding
from shardtoll.ledger.answers.budget import Section, glob, matches
from shardtoll.ledger.answers.overrun import Answer, Overrun


def forbidden(
    findings: Sequence[Finding], kinds: Sequence[str], section: Section | None = None
) -> Iterator[Overrun]:
    """Yield each finding of these kinds, of whatever severity; of a `section` those of a place in it.

    If a finding does not say whether it is in the section, the answer is unknown. It is also unknown for one
    of several places that does not name them all and names none in the section.
    """
    for finding in findings:
        # Collectives of two kinds are one line, which tells both.
        kind = next((kind for kind in (finding.kind, *finding.also) if kind in kinds), None)
        if kind is None:
            continue
        inside = True if section is None else _inside(section, finding)
        if inside is False:
            continue
        answer: Answer = "over" if inside else "cannot be told"
        why = finding.title
        if section is not None and not inside:
            why = f"it is not known whether this is in {section.label()}: {why}"
        yield Overrun(
            limit_name="forbid",
            place=kind,
            answer=answer,
            limit=0,
            found=finding.count if inside else None,
            why=why,
            step=None,
            rank=finding.ranks[0] if finding.ranks else None,
            source=finding.where.source,
            section=None if section is None else section.label(),
        )


def _inside(section: Section, finding: Finding) -> bool | None:
    """Return whether one of a finding's places is in a section; None if it does not say all of them."""
    where = finding.where
    if section.part == "phase":
        return None if where.phase is None else where.phase == section.name
    if section.part == "group":
        names = [name for name in (where.group, where.mesh_dim) if name is not None]
        if any(glob(section.name, name) for name in names):
            return True
        # A finding of several parameters has the group of the worst.
        return None if not names or (_of_parameters(finding) and finding.count > 1) else False
    names, whole = _names(finding)
    if any(matches(section.name, name) for name in names):
        return True
    may = not whole or any(_may_match(section.name, name) for name in names)
    return None if may else False


def _of_parameters(finding: Finding) -> bool:
    """Return whether it is of parameters or buffers, so that its count is how many there are."""
    return finding.family == "correctness" and finding.where.parameter is not None


def _names(finding: Finding) -> tuple[list[str], bool]:
    """Return the modules and parameters that a finding names, and whether these are all it stands for."""
    where = finding.where
    if where.module is not None and not _of_parameters(finding):
        # As of a collective: if no module is known the parameter's name tells.
        return [where.module], True
    # A place of a few parameters lists all of them, with commas.
    placed = [name for name in (where.parameter or "").split(", ") if name]
    listed = dict.fromkeys([*placed, *finding.parameters])
    names = [name for name in listed if not name.startswith("...")]
    whole = bool(names) and len(names) == len(listed)
    if _of_parameters(finding):
        whole = whole and len(names) >= finding.count
    holders = {name.rpartition(".")[0]: None for name in names}
    return [*holders, *names], whole


def _may_match(pattern: str, layers: str) -> bool:
    """Return whether a finding's module, with `*` for several layers, may name one that the pattern names."""
    wanted, parts = pattern.split("."), layers.split(".")
    if "*" not in layers or not pattern or len(parts) < len(wanted):
        return False
    return all(map(_overlap, wanted, parts))


def _overlap(pattern: str, layers: str) -> bool:
    """Return whether one part of a name may fit both; of two with a `*` that is not looked into."""
    return glob(pattern, layers) or ("*" in layers and ("*" in pattern or glob(layers, pattern)))
