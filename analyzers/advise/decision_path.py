"""The decision path: families of layouts from simple to complex, with the number that decided each step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from shardtoll.ledger.answers.advice import Candidate, Decision
from shardtoll.ledger.answers.plan_memory import fits_words
from shardtoll.ledger.answers.training_plan import Layout
from shardtoll.ledger.words import human

NOISE: Final = 0.02
"""Releases of one layout differ by 1.4 to 5.8 % in published tables: within 2 % simpler is better."""


class Family(NamedTuple):
    """Layouts that use no more than some mechanisms."""

    name: str
    holds: Callable[[Layout], bool]


def _one_stage(layout: Layout) -> bool:
    return layout.pp == layout.cp == layout.ep == 1


FAMILIES: Final = (
    Family(
        "data parallel (DDP)",
        lambda x: _one_stage(x) and x.tp == 1 and x.sharding == "ddp" and x.checkpointing == "none",
    ),
    Family("DDP with checkpointing", lambda x: _one_stage(x) and x.tp == 1 and x.sharding == "ddp"),
    Family(
        "a sharded optimizer (ZeRO-1)",
        lambda x: _one_stage(x) and x.tp == 1 and x.sharding in ("ddp", "zero1"),
    ),
    Family("fully sharded (FSDP)", lambda x: _one_stage(x) and x.tp == 1),
    Family("tensor parallel", lambda x: _one_stage(x)),
    Family("pipeline parallel", lambda x: x.cp == x.ep == 1),
    Family("context or expert parallel", lambda _: True),
)


_ALONE: Final = {
    "data parallel (DDP)": "one GPU without checkpointing",
    "DDP with checkpointing": "one GPU with checkpointing",
}
"""Names of families if there is one GPU."""


def choose(
    fitting: Sequence[Candidate], family_best: Callable[[Family], Candidate | None]
) -> Candidate | None:
    """The fastest layout of the simplest family that is within the noise of the fastest of all."""
    if not fitting:
        return None
    fastest = fitting[0]
    for family in FAMILIES:
        best = family_best(family)
        if best is not None and best.step_ns.expected <= (1 + NOISE) * fastest.step_ns.expected:
            return best
    return fastest


def path(
    single: Candidate | None,
    families: Sequence[tuple[Family, Candidate | None, Candidate | None]],
    best: Candidate,
    capacity_bytes: int,
    share: float,
    *,
    stays: bool = False,
) -> tuple[Decision, ...]:
    """The steps up to the family of the best layout.

    `single`: one micro-batch of one sequence on one GPU, None if there is one GPU anyway. `families`: each
    family with its fastest layout that fits and, if none does, its smallest layout. `stays`: the best one
    is the current layout, which is faster than each of them.
    """
    limit = f"{human.size(share * capacity_bytes)} allowed"
    steps = []
    if single is not None:
        needed = human.size(single.memory_high_bytes)
        if single.fits:
            steps.append(
                Decision("Does one GPU hold the model?", f"up to {needed}, {limit}", "Yes: replicas suffice.")
            )
        else:
            steps.append(
                Decision(
                    "Does one GPU hold the model?",
                    f"up to {needed}, {limit}",
                    "No: split its state or its activations.",
                )
            )
    for family, fastest, smallest in families:
        name = family.name if single is not None else _ALONE.get(family.name, family.name)
        question = f"Is {name} enough?"
        if fastest is None:
            if smallest is None:
                steps.append(Decision(question, "no layout suits batch and memory", "No: it has none."))
                continue
            needed = human.size(smallest.memory_high_bytes)
            answer = f"No: it {fits_words(smallest.fits)}."
            steps.append(Decision(question, f"the smallest layout takes up to {needed}, {limit}", answer))
            continue
        exposed = human.percent(fastest.exposed_share)
        slower = fastest.step_ns.expected / best.step_ns.expected - 1
        number = f"{human.duration(fastest.step_ns.expected)} per step, {exposed} exposed communication"
        if fastest.words == best.words:
            steps.append(Decision(question, number, f"Yes: {fastest.words}."))
            break
        if slower > 0:
            answer = f"No: {human.percent(slower)} slower than {best.words}."
        else:
            answer = f"Not better: within {human.percent(NOISE)} of {best.words}."
        steps.append(Decision(question, number, answer))
    if stays and all(fastest is None for _, fastest, _ in families):
        needed = f"it ran; its band reaches {human.size(best.memory_high_bytes)}, {limit}"
        steps.append(Decision("Does your layout fit?", needed, f"Yes: keep {best.words}."))
    elif stays and not steps[-1].answer.startswith("Yes"):
        number = f"{human.duration(best.step_ns.expected)} per step"
        fast = [each.step_ns.expected for _, each, _ in families if each is not None]
        question, yes = "Is your layout faster than all of these?", "Yes"
        if fast and best.step_ns.expected > min(fast):
            question, yes = "Is your layout as fast as these?", f"Yes, within {human.percent(NOISE)}"
        steps.append(Decision(question, number, f"{yes}: keep {best.words}."))
    return tuple(steps)
