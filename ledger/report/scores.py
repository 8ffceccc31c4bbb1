"""The score of verified fixes: a file of JSON lines, one a `shardtoll verify`, read with distrust."""

from __future__ import annotations

import os
from dataclasses import dataclass
from hashlib import blake2b
from json import dumps
from pathlib import Path
from typing import Final

import msgspec

from shardtoll.ledger.answers.verification import Answer, Kept, Verdict, Verification
from shardtoll.ledger.foreign.plain import to_plain
from shardtoll.ledger.foreign.regular import read_regular
from shardtoll.ledger.records.errors import UsageError
from shardtoll.ledger.records.finding import KINDS
from shardtoll.ledger.report.report import Report

DEFAULT_NAME: Final = "verify-scores.jsonl"
MOST_BYTES: Final = 64 << 20
"""A longer file is not read: it is no file of scores, or one for years of them."""
MOST_LINE: Final = 1 << 20
MOST_NS: Final = 1 << 62


class ScoredFinding(msgspec.Struct, frozen=True):
    """Outcome of one finding."""

    kind: str
    place: str
    """In words that stay the same when lines move."""
    verdict: Verdict
    predicted_ns: int | None
    replayed: bool = False
    """Whether that is a prediction by replay, not an upper bound."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"unknown finding kind {self.kind[:40]!r}")


class Score(msgspec.Struct, frozen=True, tag_field="score_version", tag=1):
    """One verified pair of runs."""

    pair: str
    before: str
    after: str
    findings: tuple[ScoredFinding, ...]
    gradients: Answer
    kept: Kept
    measured_ns: int | None
    low_ns: int | None
    high_ns: int | None
    predicted_ns: int | None
    """Sum for all findings of the line that are gone or smaller: the step's time does not show the cause."""
    predicted_low_ns: int | None = None
    """Ends of the prediction's band; None if nothing was replayed, and in lines of earlier versions."""
    predicted_high_ns: int | None = None
    held: bool | None = None
    """Whether the band held the measured saving; None if unknown."""

    def __post_init__(self) -> None:
        band = (self.predicted_low_ns, self.predicted_high_ns)
        for number in (self.measured_ns, self.low_ns, self.high_ns, self.predicted_ns, *band):
            if number is not None and abs(number) > MOST_NS:
                raise ValueError(f"{number} ns is no time")


@dataclass(frozen=True, slots=True)
class KindScore:
    """The score of one kind of finding so far."""

    kind: str
    verified: int
    """Fixes of it that were looked at, each pair of runs and place once."""
    gone: int
    smaller: int
    still: int
    unknown: int
    exceeded: int
    """Verifications whose step became shorter by more than was predicted: the bound was wrong."""
    ratio: float | None
    """Mean of measured / predicted; None without any. It covers verifications with a finding gone and a
    prediction, and step times that vary less than the prediction."""
    timed: int
    """How many verifications that mean is over."""
    bands: int = 0
    """Verifications of what is gone whose saving was predicted by replay, and could be measured."""
    held: int = 0
    """Those of them whose band held the measured saving."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Content of a file of scores."""

    scores: tuple[Score, ...]
    damaged: tuple[int, ...] = ()
    """Numbers of the lines that are no score, from 1 on."""


def pair_of(before: Report, after: Report) -> str:
    """Return a name for the two runs that no other pair has, wherever their folders are moved."""
    digest = blake2b(digest_size=12)
    for report in (before, after):
        run = {**to_plain(report.run), "ranks_seen": len(report.run.ranks_seen)}
        digest.update(dumps(run, sort_keys=True).encode())
        for name in ("step", "rank", "start_ns", "duration_ns"):
            digest.update(report.tables["steps"].column(name).to_numpy().tobytes())
    return digest.hexdigest()


def score_of(verification: Verification, places: tuple[str, ...]) -> Score:
    """Return the line to keep; `places` of the findings that were worked on, in their order."""
    saving = verification.saving
    return Score(
        pair=verification.pair,
        before=verification.before,
        after=verification.after,
        findings=tuple(
            ScoredFinding(
                answer.finding.kind,
                place,
                answer.verdict,
                answer.finding.saving_ns,
                answer.finding.replayed is not None,
            )
            for answer, place in zip(verification.worked_on, places, strict=True)
        ),
        gradients=verification.gradients.answer,
        kept=saving.kept,
        measured_ns=saving.measured_ns,
        low_ns=saving.low_ns,
        high_ns=saving.high_ns,
        predicted_ns=saving.predicted_ns,
        predicted_low_ns=saving.predicted_low_ns,
        predicted_high_ns=saving.predicted_high_ns,
        held=saving.held,
    )


def append(path: Path, score: Score) -> None:
    """Add the score as one line; UsageError if the file cannot be written."""
    try:
        with path.open("ab+") as file:
            line = msgspec.json.encode(score) + b"\n"
            if file.tell():
                file.seek(-1, os.SEEK_END)
                # A writer that was killed may have left half a line.
                line = line if file.read(1) == b"\n" else b"\n" + line
            file.write(line)
    except OSError as error:
        raise UsageError(
            f"cannot write {path} ({error.strerror or error})", "give --scores FILE, or --no-scores"
        ) from error


def read(path: Path) -> Scores:
    """Return the scores in a file, oldest first; UsageError if it is none or cannot be read."""
    try:
        data = read_regular(path, MOST_BYTES)
    except OSError as error:
        raise UsageError(
            f"cannot read {path} ({error.strerror or error})",
            "verify a pair of runs first, or name the file with --scores FILE",
        ) from error
    decoder = msgspec.json.Decoder(Score)
    scores, damaged = [], []
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            if len(line) > MOST_LINE:
                raise ValueError("too long")
            scores.append(decoder.decode(line))
        except (ValueError, RecursionError):
            # msgspec's errors are ValueErrors.
            damaged.append(number)
    if damaged and not scores:
        raise UsageError(
            f"{path} holds no score in {len(damaged)} lines", "name a file that `shardtoll verify` wrote"
        )
    return Scores(tuple(scores), tuple(damaged))
