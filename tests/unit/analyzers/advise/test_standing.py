"""The layout in use: it stays unless another one pays, and the words say so."""

from dataclasses import replace

from shardtoll.analyzers.advise.advise import Beside, advise, slower_by
from shardtoll.analyzers.advise.decision_path import NOISE
from shardtoll.dashboards.advise.advice_rows import sections
from shardtoll.ledger.answers.advice import SAME
from tests.unit.analyzers.advise.test_advise import BASE


def test_a_layout_that_stands_gives_way_only_to_what_pays() -> None:
    """In fp32 all micro-batches take one time: another one is no advice, nor is one 2 % faster at most."""
    question = replace(BASE, precision="fp32")
    free = advise(question)
    equal = [
        each
        for each in free.ties
        if 0 < slower_by(each, free.best) <= NOISE and each.levers == free.best.levers
    ]
    assert equal, "some layout is slower than the best by rounding alone"
    kept = advise(replace(question, current=equal[-1].layout), beside=Beside(keeps_current=True))
    assert kept.best.layout == equal[-1].layout
    assert kept.headline.endswith("It is your layout.")
    yours = next(each for each in sections(kept) if each.title == "Your layout")
    assert yours.lead == "It is the advised one."
    assert kept.path[-1].answer.startswith("Yes")
    # Who only asks about it gets the other one, and no difference in percent.
    same = min(equal, key=lambda each: slower_by(each, free.best))
    assert slower_by(same, free.best) < SAME
    asked = advise(replace(question, current=same.layout), beside=Beside(asked=True))
    assert asked.headline.endswith(f" {same.words} is as fast.")
    assert [each.lead for each in sections(asked) if each.title.startswith(same.words)] == [
        "It is no slower than the advised one."
    ]
    # More mechanisms are no reason to stay.
    wide = replace(question, sequences=32)
    free = advise(wide)
    more = next(
        each
        for each in free.ties
        if each.levers > free.best.levers and 0 <= slower_by(each, free.best) <= NOISE
    )
    left = advise(replace(wide, current=more.layout), beside=Beside(keeps_current=True)).best
    assert left.layout != more.layout
