"""Plain-JSON forms of the small records: run, group, finding. No pickle, no eval."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from shardtoll.ledger.finding import Evidence, Finding, Remedy, Where
from shardtoll.ledger.record import Group, Run
from shardtoll.ledger.typed import typed


def run_to_json(run: Run) -> dict[str, Any]:
    """Return the run as JSON values."""
    plain = {item.name: getattr(run, item.name) for item in fields(run)}
    return {
        **plain,
        "mesh": dict(run.mesh),
        "hosts": list(run.hosts),
        "ranks_seen": list(run.ranks_seen),
        "rank_hosts": list(run.rank_hosts),
    }


def run_from_json(data: Mapping[str, Any]) -> Run:
    """Return the run; KeyError, TypeError or ValueError where a field is missing or unfit."""
    tuples = {name: tuple(data[name]) for name in ("hosts", "ranks_seen")}
    tuples["rank_hosts"] = tuple(data.get("rank_hosts", ()))
    return typed(Run(**{**data, **tuples}))


def group_to_json(group: Group) -> dict[str, Any]:
    """Return the group as JSON values."""
    return {**asdict(group), "ranks": list(group.ranks)}


def group_from_json(data: Mapping[str, Any]) -> Group:
    """Return the group; KeyError, TypeError or ValueError where a field is missing or unfit."""
    return typed(Group(**{**data, "ranks": tuple(data["ranks"])}))


def finding_to_json(finding: Finding) -> dict[str, Any]:
    """Return the finding as JSON values, nested parts as objects."""
    return {
        **asdict(finding),
        "ranks": list(finding.ranks),
        "evidence": [asdict(item) for item in finding.evidence],
    }


def finding_from_json(data: Mapping[str, Any]) -> Finding:
    """Return the finding; KeyError, TypeError or ValueError where a field is missing or unfit."""
    made = Finding(
        **{
            **data,
            "ranks": tuple(data["ranks"]),
            "where": Where(**data["where"]),
            "evidence": tuple(Evidence(**item) for item in data["evidence"]),
            "remedy": None if data["remedy"] is None else Remedy(**data["remedy"]),
        }
    )
    return typed(made)
