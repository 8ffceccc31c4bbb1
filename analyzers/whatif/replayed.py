"""Savings by replay: one edit alone, and several one after the other."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from shardtoll.analyzers.context.context import Context
from shardtoll.analyzers.recorded.recorded import Recorded
from shardtoll.analyzers.replay.events.outcome import Outcome
from shardtoll.analyzers.whatif.anatomy import changed_as, parts_by_rank, parts_on_record
from shardtoll.analyzers.whatif.doubt import Doubt, doubt
from shardtoll.analyzers.whatif.edits.draft import Draft
from shardtoll.analyzers.whatif.edits.edit import Edit
from shardtoll.analyzers.whatif.edits.under_compute import Floats, added_ns, cost, slow_down
from shardtoll.analyzers.whatif.path import critical_path
from shardtoll.ledger.answers.what_if import Parts, Path


class Saved(Struct, frozen=True):
    """A predicted saving per step; negative where the step becomes longer."""

    mid_ns: float
    low_ns: float
    high_ns: float

    def at_most(self, most_ns: int) -> tuple[int, int, int]:
        """Return saving and ends of its band, each between 0 and `most_ns`.

        For a trace that is what the finding claims at most. In a live run it holds the host's work too.
        """
        mid, low, high = (
            round(min(max(end, 0.0), most_ns)) for end in (self.mid_ns, self.low_ns, self.high_ns)
        )
        return mid, low, high


class Replayer:
    """Recorded steps, replayed once as they are; answers what edits save.

    Measured beats modelled: the step before is the report's, which is a mean over all steps whose times are
    true. The replayed time of some of them is scaled by `anchor`, so that both start from one time.
    """

    def __init__(self, context: Context, recorded: Recorded) -> None:
        self.context = context
        self.recorded = recorded
        unedited = recorded.replay()
        self.outcome: Outcome = Draft(recorded).outcome() if recorded.captured else unedited
        """Outcome of the steps without the time that their recording took."""
        lasts = recorded.lasts_ns(self.outcome)
        self.anchor = context.step_ns / lasts if context.step_ns and lasts else 1.0
        """Times as long as in the replayed steps everything is in the report's mean step."""
        self.step_ns = lasts * self.anchor
        self._on_record = parts_on_record(context)
        longest = max(self._on_record, key=lambda rank: self._on_record[rank].step_ns, default=None)
        self.slowest = recorded.slowest_rank(self.outcome, longest)
        """Rank whose step is the step before."""
        self._replayed = parts_by_rank(recorded, self.outcome, self.anchor)
        self.path: Path = critical_path(recorded, self.outcome, self.slowest, self.step_ns)
        self.doubt: Doubt = doubt(context, recorded, unedited, self.path.unknown_share)
        self._steps: dict[tuple[tuple[int, ...], float], tuple[list[Edit], float]] = {}
        self._added: dict[tuple[tuple[int, ...], float], tuple[list[Edit], Floats]] = {}
        self._alone: dict[tuple[int, float], tuple[Edit, float]] = {}
        self._beyond: dict[tuple[int, float], tuple[Edit, float]] = {}

    def lasts_ns(self, draft: Draft, outcome: Outcome | None = None) -> float:
        """Return the edited step's time where the report's step is the one before."""
        return draft.lasts_ns(outcome) * self.anchor

    def parts(self, outcome: Outcome, draft: Draft | None = None) -> dict[int, Parts]:
        """Return rank -> the parts of its step: those of the report before all edits, changed as in replay
        after them."""
        factor = 1.0 if draft is None else draft.step_factor
        made = parts_by_rank(self.recorded, outcome, self.anchor, factor)
        return {
            rank: changed_as(self._on_record[rank], self._replayed[rank], parts)
            if rank in self._on_record
            else parts
            for rank, parts in made.items()
        }

    def draft(self, edits: Sequence[Edit], end: float = 0.0) -> Draft:
        """Return the steps with these edits, each at this end of its model's band, in whatever order they are
        given.

        An edit that alone would save more than its finding costs changes more than the finding speaks of.
        So these edits save at most what the others do by replay plus the costs of these findings. If replay
        saves more, the step is made longer. One more edit that only shortens work therefore never lengthens
        the step, even if it takes out what another has taken out already.

        The work that hides a cost may itself be taken out by the others, as a late rank that computes while
        all fetch. Then these edits save more after the others than alone. The share of it that counts is
        their cost over their saving alone. If there are several, it is the largest share, so that one more
        edit never lengthens the step.
        """
        draft = self._edited(edits, end)
        over = [edit for edit in edits if self._saves_too_much(edit, end)]
        if not over:
            return draft
        lasts = least = self.lasts_ns(draft)
        for held in [[edit] for edit in over] + ([over] if len(over) > 1 else []):
            costs = [self.most_ns(edit, end) or 0.0 for edit in held]
            saves = [self.step_ns - self._alone_ns(edit, end) for edit in held]
            cost, share = sum(costs), max(one / alone for one, alone in zip(costs, saves, strict=True))
            if least < self.step_ns - cost:
                ids = {id(edit) for edit in held}
                without = self.lasts_ns(self._edited([edit for edit in edits if id(edit) not in ids], end))
                least = max(least, without - max(cost, (without - lasts) * share))
        if 0 < lasts < least:
            draft.step_factor *= least / lasts
        return draft

    def _edited(self, edits: Sequence[Edit], end: float) -> Draft:
        draft = Draft(self.recorded)
        # Ranks are held to what their peers took on record; what else is asked for then changes all of them.
        for edit in sorted(edits, key=lambda edit: not edit.as_recorded):
            edit.apply(draft, end)
        under = [edit for edit in edits if edit.overlaps]
        share = cost(self.context, end)
        if under and share:
            key = tuple(sorted(map(id, under))), end
            if key not in self._added:
                # The edits are held so that no other ones get their ids.
                self._added[key] = under, added_ns(self.recorded, self.outcome, under, end)
            slow_down(draft, self._added[key][1], share)
        return draft

    def _saves_too_much(self, edit: Edit, end: float) -> bool:
        """Return whether this edit alone saves more than `most_ns`."""
        most_ns = self.most_ns(edit, end)
        return most_ns is not None and self._alone_ns(edit, end) < self.step_ns - most_ns

    def most_ns(self, edit: Edit, end: float = 0.0) -> float | None:
        """Return the most that the edit saves: its finding's cost, and costs outside every toll; None if
        unbounded."""
        if edit.most_ns is None:
            return None
        if edit.beyond is None:
            return edit.most_ns
        key = id(edit), end
        if key not in self._beyond:
            # The edit is held so that no other one gets its id.
            self._beyond[key] = edit, edit.beyond(self.recorded, edit.most_ns / self.anchor, end)
        return edit.most_ns + self._beyond[key][1] * self.anchor

    def _alone_ns(self, edit: Edit, end: float) -> float:
        """Return the step's time with this edit alone, whatever its finding costs; simulated once."""
        key = id(edit), end
        if key not in self._alone:
            # The edit is held so that no other one gets its id.
            self._alone[key] = edit, self.lasts_ns(self._edited([edit], end))
        return self._alone[key][1]

    def simulated(self, edits: Sequence[Edit]) -> tuple[Draft, Outcome, float]:
        """Return the steps with these edits, their outcome, and the step's time."""
        draft = self.draft(edits)
        outcome = draft.outcome()
        lasts = self.lasts_ns(draft, outcome)
        self._steps[tuple(map(id, edits)), 0.0] = list(edits), lasts
        return draft, outcome, lasts

    def after_ns(self, edits: Sequence[Edit], end: float = 0.0) -> float:
        """Return the step's time after these edits, each at this end of its model's band; simulated once."""
        key = tuple(map(id, edits)), end
        if key not in self._steps:
            most_ns = self.most_ns(edits[0], end) if len(edits) == 1 else None
            if most_ns is not None:
                lasts = max(self._alone_ns(edits[0], end), self.step_ns - most_ns)
            else:
                lasts = self.lasts_ns(self.draft(edits, end))
            # The edits are held so that no other ones get their ids.
            self._steps[key] = list(edits), lasts
        return self._steps[key][1]

    def saved(self, edits: Sequence[Edit]) -> Saved:
        """Return what these edits save together."""
        mid = self.step_ns - self.after_ns(edits)
        # Fixes that hid each other's cost may save all that their replay does: how much of it no cost says.
        all_ns = self.step_ns - self.lasts_ns(self._edited(edits, 0.0)) if len(edits) > 1 else mid
        ends = [mid, max(mid, all_ns)]
        if any(edit.banded for edit in edits):
            ends += [self.step_ns - self.after_ns(edits, end) for end in (-1.0, 1.0)]
        half = self.doubt.half_ns(mid)
        tolls = [most for edit in edits if (most := self.most_ns(edit, 1.0)) is not None]
        # No change saves more than there is: the whole step, and what its findings cost, hidden or not.
        bound = min(self.step_ns, max(*ends[:2], sum(tolls))) if len(tolls) == len(edits) else self.step_ns
        chance_ns = self.doubt.chance_ns
        gaps_ns = half - chance_ns
        if self.recorded.source == "points":
            # In a live run gaps may hold more than any finding, and ranks that share cores free each other.
            held, beyond = max(ends), gaps_ns + self.doubt.crowding * max(0.0, mid)
        else:
            held, beyond = max(ends) + gaps_ns, 0.0
        # Steps of the changed run differ by chance, to both sides, whatever the findings cost.
        most = min(min(held, bound) + beyond + chance_ns, self.step_ns)
        return Saved(mid, min(ends) - half, max(mid, most))
