"""How well findings and their predictions have held so far, by kind."""

from __future__ import annotations

from collections.abc import Sequence

from shardtoll.ledger.scores import KindScore, Score, ScoredFinding


def history(scores: Sequence[Score]) -> list[KindScore]:
    """Return one line a kind, most verified first. Of a pair of runs verified again the last time counts."""
    last: dict[tuple[str, str, str], tuple[ScoredFinding, Score]] = {}
    for score in scores:
        for finding in score.findings:
            last[score.pair, finding.kind, finding.place] = (finding, score)
    kinds: dict[str, list[tuple[ScoredFinding, Score]]] = {}
    for finding, score in last.values():
        kinds.setdefault(finding.kind, []).append((finding, score))
    return sorted(
        (_line(kind, of) for kind, of in kinds.items()), key=lambda line: (-line.verified, line.kind)
    )


def _line(kind: str, of: Sequence[tuple[ScoredFinding, Score]]) -> KindScore:
    verdicts = [finding.verdict for finding, _ in of]
    gone = [score for finding, score in of if finding.verdict == "gone" and finding.predicted_ns is not None]
    ratios = [
        score.measured_ns / score.predicted_ns
        for score in gone
        if score.measured_ns is not None and score.predicted_ns
    ]
    return KindScore(
        kind=kind,
        verified=len(of),
        gone=verdicts.count("gone"),
        smaller=verdicts.count("smaller"),
        still=verdicts.count("still there"),
        unknown=verdicts.count("cannot be told"),
        exceeded=sum(score.kept == "exceeded" for score in gone),
        ratio=sum(ratios) / len(ratios) if ratios else None,
        timed=len(ratios),
    )
