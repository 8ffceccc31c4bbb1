"""Findings as SARIF 2.1.0, which code review shows at the lines that cause them.

The format is https://docs.oasis-open.org/sarif/sarif/v2.1.0/. It has a rule for each kind and a result for
each finding with a line of source. A finding without a line becomes a notification of the run: GitHub takes
no result without a place.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from shardtoll.dashboards.facts import replayed_words, summary
from shardtoll.dashboards.words.files import write as write_file
from shardtoll.dashboards.words.kind_words import WORDS
from shardtoll.dashboards.words.text import clip
from shardtoll.ledger import KINDS, Finding, Report
from shardtoll.ledger.words import human

LEVELS: Final = {"error": "error", "warning": "warning", "info": "note"}

SCHEMA: Final = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"

ROOT: Final = "%SRCROOT%"
"""SARIF's name for the folder that relative paths start at; readers put the repository there."""

ENDS: Final = "%PATHENDS%"
"""Start of paths that may be ends of longer ones. It has no URI: a reader that minds bases (VS Code's) looks
for a file that ends so, or asks. GitHub takes every relative path as one from the repository's root."""

KEPT: Final = 2
"""Parts that capture keeps of a path outside the folder that the job ran in."""

_BASES: Final = {
    ROOT: "The folder that the training job ran in.",
    ENDS: "The folder that the training job ran in. If the record has only "
    "the end of a longer path, the folder is not on record.",
}

_END: Final = "This may be the end of a longer path: of files outside the job's folder no more is on record."

_SOURCE: Final = re.compile(
    r"(?P<path>[^\x00-\x1f]+):(?P<line>[0-9]{1,9})(?: \((?P<function>[^()\x00-\x1f]*)\))?"
)

MOST: Final = 4_096
"""Characters of the longest path that Linux takes."""


def write(report: Report, path: Path) -> list[Path]:
    """Write the log and return the files written; UsageError if that fails."""
    text = json.dumps(sarif(report), allow_nan=False, indent=1)
    write_file(path, f"{text}\n".encode("ascii"))
    return [path]


def sarif(report: Report) -> dict[str, Any]:
    """Return the log as JSON values."""
    kinds = [kind for kind in KINDS if any(finding.kind == kind for finding in report.findings)]
    results: list[dict[str, Any]] = []
    notices: list[dict[str, Any]] = []
    seen: Counter[str] = Counter()
    for finding in report.findings:
        line = source_line(finding.where.source)
        if line is None:
            notices.append(_notification(finding, kinds))
            continue
        artifact = _artifact(line.path, traced=report.run.source == "trace")
        print_of = fingerprint(finding, line)
        seen[print_of] += 1
        results.append(_result(finding, line, artifact, kinds, f"{print_of}:{seen[print_of]}"))
    notices += [_notice(kind, text) for kind, text in summary.notices(report)]
    invocation: dict[str, Any] = {"executionSuccessful": True}
    if notices:
        invocation["toolExecutionNotifications"] = notices
    run = {
        "tool": {"driver": {**_version(), "name": "shardtoll", "rules": [_rule(kind) for kind in kinds]}},
        "invocations": [invocation],
        "originalUriBaseIds": {name: {"description": {"text": text}} for name, text in _BASES.items()},
        "columnKind": "unicodeCodePoints",
        "results": results,
        "properties": {
            "worldSize": report.run.world_size,
            "fabric": clip(report.fabric.name, 200),
            "headline": clip(report.verdict, 1000),
        },
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def fingerprint(finding: Finding, line: SourceLine) -> str:
    """Return what stays the same in another run and after edits above the line: no time, no number."""
    where = finding.where
    parts = (finding.kind, line.path, line.function, where.phase, where.module, where.parameter, where.op)
    text = json.dumps([*parts, where.mesh_dim])
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:32]


def _version() -> dict[str, str]:
    try:
        return {"semanticVersion": version("shardtoll")}
    except PackageNotFoundError:
        return {}


def _rule(kind: str) -> dict[str, Any]:
    return {
        "id": kind,
        "name": "".join(word.capitalize() for word in kind.split("-")),
        "shortDescription": {"text": WORDS[kind]},
        "fullDescription": {"text": WORDS[kind]},
        "help": {"text": f"{WORDS[kind]} What it costs and what to change stand in each result."},
        "properties": {"tags": [KINDS[kind], "distributed-training"]},
    }


def _result(
    finding: Finding, line: SourceLine, artifact: dict[str, Any], kinds: list[str], print_of: str
) -> dict[str, Any]:
    place: dict[str, Any] = {
        "physicalLocation": {"artifactLocation": artifact, "region": {"startLine": line.line}}
    }
    where = finding.where
    names = [(line.function, "function"), (where.module, "module"), (where.parameter, "member")]
    logical = [{"fullyQualifiedName": clip(name, 300), "kind": kind} for name, kind in names if name]
    if logical:
        place["logicalLocations"] = logical
    numbers = {
        "tollNs": finding.toll_ns,
        "floorNs": finding.floor_ns,
        "savingNs": finding.saving_ns,
        "bytes": finding.bytes,
        "count": finding.count,
        "confidence": finding.confidence,
    }
    return {
        "ruleId": finding.kind,
        "ruleIndex": kinds.index(finding.kind),
        "level": LEVELS[finding.severity],
        "message": {"text": _message(finding)},
        "locations": [place],
        "partialFingerprints": {"shardtollFinding/v1": print_of},
        "properties": {key: value for key, value in numbers.items() if value is not None},
    }


def _artifact(path: str, *, traced: bool) -> dict[str, Any]:
    """Return the path of a file, as far as the record has it.

    Capture keeps the whole path below the job's folder and the last parts of others. Profilers write paths
    from any folder that Python imports from.
    """
    # `//` would begin with a host's name, `..` would leave the folder that all paths are below.
    if path.startswith("/"):
        return {"uri": f"file:///{quote(_utf8(path).lstrip('/'))}"}
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    location = {"uri": quote(_utf8("/".join(parts) or "unknown")), "uriBaseId": ROOT}
    if traced or len(parts) == KEPT:
        return {**location, "uriBaseId": ENDS, "description": {"text": _END}}
    return location


def _utf8(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _message(finding: Finding) -> str:
    """Return the text at the line. Brackets would begin a link in SARIF's messages."""
    words = [f"{clip(finding.title, 500).rstrip('.')}."]
    if finding.toll_ns is not None:
        saving = (
            ""
            if finding.remedy_saves_ns is None
            else f", of which {replayed_words.saving(finding)} can be saved"
        )
        words.append(f"It costs {human.duration(finding.toll_ns)} per step{saving}.")
    if finding.remedy is not None:
        words.append(f"{clip(finding.remedy.text, 1000).rstrip('.')}.")
        words += [f"Effort: {finding.remedy.effort}."] if finding.remedy.effort else []
    text = " ".join(words).replace("\\", "\\\\")
    return text.replace("[", "\\[").replace("]", "\\]")


def _notification(finding: Finding, kinds: list[str]) -> dict[str, Any]:
    return {
        "level": LEVELS[finding.severity],
        "message": {"text": f"{clip(finding.where.label(), 200)}: {_message(finding)}"},
        "associatedRule": {"id": finding.kind, "index": kinds.index(finding.kind)},
    }


def _notice(kind: str, text: str) -> dict[str, Any]:
    words = f"{clip(kind, 60)}: {clip(text, 500)}".replace("\\", "\\\\").replace("[", "\\[")
    return {"level": "note", "message": {"text": words.replace("]", "\\]")}}


@dataclass(frozen=True, slots=True)
class SourceLine:
    """`path` below the folder the job ran in; of others the last two parts.

    Other paths: in traces often absolute, else from any folder that Python imports from.
    """

    path: str
    line: int
    function: str | None


def source_line(source: str | None) -> SourceLine | None:
    """Return the parts of a source; None if it is no line of a file, as `<string>:1 (<module>)`."""
    parts = _SOURCE.fullmatch(source[:MOST]) if source else None
    if parts is None or parts["path"].startswith("<") or int(parts["line"]) < 1:
        return None
    return SourceLine(parts["path"], int(parts["line"]), parts["function"])
