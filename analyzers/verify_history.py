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
    ratios = [ratio for ratio in map(_ratio, gone) if ratio is not None]
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


def _ratio(score: Score) -> float | None:
    """Return measured / predicted; None where the step's time varies by more than was predicted."""
    if score.measured_ns is None or score.low_ns is None or score.high_ns is None or not score.predicted_ns:
        return None
    if score.high_ns - score.low_ns > 2 * score.predicted_ns:
        return None
    return score.measured_ns / score.predicted_ns
