"""Results of `shardtoll verify`, as plain lines that every renderer of it shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shardtoll.dashboards.facts import replayed_words
from shardtoll.dashboards.words.text import answer, clip
from shardtoll.ledger import Finding
from shardtoll.ledger.answers.verification import Gradients, Judged, Quantity, Saving, Verification
from shardtoll.ledger.words import human

NEW_SHOWN: Final = 8
DIFFERENCES_SHOWN: Final = 5
OPEN: Final = "not gone, and nothing fails for it (times vary from run to run; name one with --finding)"
ALSO: Final = "also on the bill before, without a saving to judge (name one with --finding)"
NOTHING: Final = "nothing to judge"
_TITLE: Final = 400
_PLACE: Final = 200
_LEAST_PERCENT: Final = 0.1


def headline(verification: Verification) -> str:
    """Return the answer in one sentence."""
    parts = [*_counted(verification), gradients_words(verification.gradients)]
    parts.append(f"saving {answer(verification.saving.kept)}")
    return f"{'passed' if verification.passed else 'not passed'}: {', '.join(parts)}"


def _counted(verification: Verification) -> list[str]:
    """Return `1 of 2 findings gone` for those that decide; `2 others gone` and `1 smaller` for the rest."""
    judged = verification.findings
    counts = [
        (word, sum(finding.verdict == word for finding in verification.also)) for word in ("gone", "smaller")
    ]
    rest = [(word, count) for word, count in counts if count]
    if not judged:
        return ["no finding decides", *(f"{count} {word}" for word, count in rest)] if rest else [NOTHING]
    said = [
        f"{sum(each.verdict == 'gone' for each in judged)} of {human.plural(len(judged), 'finding')} gone"
    ]
    for word, count in rest:
        said.append(f"{human.plural(count, 'other') if len(said) == 1 else count} {word}")
    return said


def gradients_words(gradients: Gradients) -> str:
    """Return `gradients equal`, `gradients differ, as they should` or the like."""
    if gradients.answer == "unknown":
        return "gradients unknown"
    if gradients.answer == "equal":
        return "gradients equal" + (", though a fix should change them" if gradients.change_expected else "")
    return "gradients differ" + (", as a fix of wrong ones must" if gradients.change_expected else "")


def title(judged: Judged) -> str:
    """Return a judged finding's own sentence, made safe to show."""
    return clip(judged.finding.title, _TITLE)


def place(finding: Finding) -> str:
    """Return where a finding is, made safe to show."""
    return clip(finding.where.label(), _PLACE)


def predicted(judged: Judged) -> str:
    """Return the saving that the finding predicted, per step."""
    return replayed_words.saving(judged.finding) if judged.finding.saving_ns is not None else "none claimed"


def differences(gradients: Gradients) -> list[str]:
    """Return a line for each of the worst parameters."""
    lines = []
    for difference in gradients.differences[:DIFFERENCES_SHOWN]:
        off = "from zero" if difference.relative is None else f"by {difference.relative:.3g} of its norm"
        line = f"{clip(difference.parameter, _PLACE)}, from step {difference.step}: {off}"
        line += f", tolerance {difference.tolerance:.2g}"
        if difference.factor is not None:
            line += f"; after is {difference.factor:.4g} times before"
        lines.append(line + (f"; {clip(difference.note, _TITLE)}" if difference.note else ""))
    return lines


def timed_steps(saving: Saving) -> str:
    """Return how many steps were timed, and which were not, that a report's own figures hold."""
    out = [
        f"{_numbers(left)} {word}"
        for word, left in (("before", saving.left_out_before), ("after", saving.left_out_after))
        if left
    ]
    warm_up = f"; without {' and '.join(out)}, to warm up" if out else ""
    if len(out) == 2 and saving.left_out_before == saving.left_out_after:
        warm_up = f"; without {_numbers(saving.left_out_before)} of both, to warm up"
    return f"{saving.steps_before} steps before, {saving.steps_after} after{warm_up}"


def _numbers(steps: tuple[int, ...]) -> str:
    return f"step{'s' if len(steps) > 1 else ''} {human.runs(steps)}"


def figures(verification: Verification) -> list[tuple[str, str, str, str]]:
    """Return name, before, after and change of the step's time and of each figure.

    The step that the parts add up to is left out if it is the timed one.
    """
    saving = verification.saving
    name = f"step, own work of the slowest rank ({saving.timed})"
    first = figure(Quantity(name, "ns", saving.before_ns, saving.after_ns))
    rest = [figure(quantity) for quantity in verification.quantities]
    same = rest and rest[0][0] == f"step, own work ({saving.timed})" and rest[0][1:] == first[1:]
    return [first, *(rest[1:] if same else rest)]


def figure(quantity: Quantity) -> tuple[str, str, str, str]:
    """Return name, before, after and change of one figure."""
    was, now = (
        f"{'at least ' if bound else ''}{human.quantity(_rounded(value, quantity.unit), quantity.unit)}"
        for value, bound in zip((quantity.before, quantity.after), quantity.at_least, strict=True)
    )
    by = human.UNKNOWN if any(quantity.at_least) else change(quantity.before, quantity.after)
    return clip(quantity.name, _PLACE), was, now, by


def _rounded(value: float | None, unit: str | None) -> float | None:
    """Counts are means over steps: of `5 -> 2` a reader would compute another change."""
    if value is None:
        return None
    return round(value, 2) if unit is None else round(value)


def still_open(verification: Verification) -> list[str]:
    """Return a line for each of the others that promised a saving and did not shrink, the first few."""
    return _in_a_line([judged for judged in verification.also if judged.promised and not judged.shrank])


def also(verification: Verification) -> list[str]:
    """Return a line for each warning that promised no saving and decides nothing, the first few."""
    return _in_a_line([judged for judged in verification.also if not judged.promised])


def _in_a_line(every: Sequence[Judged]) -> list[str]:
    lines = [
        f"{judged.number} {answer(judged.verdict)} {judged.finding.kind}: {clip(judged.why, _TITLE)} "
        f"({place(judged.finding)})"
        for judged in every[:NEW_SHOWN]
    ]
    if len(every) > NEW_SHOWN:
        lines.append(f"and {len(every) - NEW_SHOWN} more, which are in the JSON file")
    return lines


def change(before: float | None, after: float | None) -> str:
    """Return `-12.5 %`, `under +0.1 %`, `none`, or `unknown`."""
    if before is None or after is None:
        return human.UNKNOWN
    if before == after:
        return "none"
    if before == 0:
        return "new"
    percent = 100 * (after - before) / before
    if 0 < abs(percent) < _LEAST_PERCENT:
        return f"under {'+' if percent > 0 else '-'}{_LEAST_PERCENT} %"
    return f"{percent:+.3g} %"


def new_findings(findings: Sequence[Finding]) -> list[str]:
    """Return a line for each finding that the change brought, the first few."""
    lines = [
        f"{finding.severity} {finding.kind}: {clip(finding.title, _TITLE)} ({place(finding)})"
        for finding in findings[:NEW_SHOWN]
    ]
    if len(findings) > NEW_SHOWN:
        lines.append(f"and {len(findings) - NEW_SHOWN} more, which are in the JSON file (-o out.json)")
    return lines
