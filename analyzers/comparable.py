"""Whether two runs are of the same training on the same machine, so that their difference is the change."""

from __future__ import annotations

from collections.abc import Mapping

from shardtoll.analyzers.step_change import level_words, step_times
from shardtoll.ledger import Report
from shardtoll.ledger.levels import alike_steps

FEW_STEPS = 3
"""Fewer timed steps tell little of their mean."""
NAMED = 3


def warnings(before: Report, after: Report) -> tuple[str, ...]:
    """Return one sentence for each way in which the runs are not alike, as `world size 4 before, 8 after`."""
    one, other = before.run, after.run
    steps = [report.tables["steps"] for report in (before, after)]
    said: list[str | None] = [
        "both are the same recording" if steps[0].num_rows and steps[0].equals(steps[1]) else None,
        _apart("world size", one.world_size, other.world_size),
        _apart("device", one.device, other.device),
        _apart("backend", one.backend, other.backend),
        _apart("torch", one.torch, other.torch),
        _apart("recorded", one.source, other.source),
        _apart("hosts", len(one.hosts), len(other.hosts)),
        _apart("mesh", *(_mesh(run.mesh) for run in (one, other))),
        _apart("steps", *(len(alike_steps(table)) for table in steps)),
        _apart("steps were", level_words(before), level_words(after)),
        _apart("floors are of", before.fabric.name, after.fabric.name),
        *_parameters(before, after),
    ]
    for name, report in (("before", before), ("after", after)):
        if report.run.ranks_missing:
            said.append(f"{len(report.run.ranks_missing)} ranks left no records {name}")
        few = len(step_times(report))
        if 0 < few < FEW_STEPS:
            said.append(f"only {few} timed step{'s' if few > 1 else ''} {name}: run more for a surer time")
    return tuple(words for words in said if words)


def _mesh(mesh: Mapping[str, int]) -> str | None:
    return " x ".join(f"{name}={size}" for name, size in mesh.items()) or None


def _apart(what: str, before: object, after: object) -> str | None:
    if before is None or after is None or before == after:
        return None
    return f"{what} {before} before, {after} after"


def _parameters(before: Report, after: Report) -> list[str]:
    """Compare names, whole shapes and dtypes of the models, where both runs recorded them."""
    known = []
    for report in (before, after):
        frame = report.parameters.drop_duplicates("name")
        known.append(
            {
                str(row["name"]): (row["shape"], row["dtype"])
                for row in frame[["name", "shape", "dtype"]].to_dict("records")
            }
        )
    if not all(known):
        return []
    said = []
    only = sorted(set(known[0]) ^ set(known[1]))
    if only:
        said.append(f"{len(only):,} parameters are in one model only ({', '.join(only[:NAMED])})")
    both = [name for name in known[0] if name in known[1] and known[0][name] != known[1][name]]
    if both:
        was, is_now = (" ".join(map(str, models[both[0]])) for models in known)
        said.append(
            f"{len(both):,} parameters differ in shape or dtype ({both[0]}: {was} before, {is_now} after)"
        )
    return said
