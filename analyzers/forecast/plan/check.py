"""Whether a plan is possible, with one line if it is not; and the fabric that a GPU usually has."""

from __future__ import annotations

from typing import Final

from shardtoll.analyzers.forecast.compute.cards import card_of
from shardtoll.analyzers.forecast.plan.limits import check_sizes
from shardtoll.analyzers.forecast.plan.phases import DTYPES
from shardtoll.ledger import UsageError
from shardtoll.ledger.answers.training_plan import TrainingPlan

_DEFAULT_FABRICS: Final = {
    "a100": "a100x8-ib200",
    "h100": "h100x8-ib400",
    "h800": "h100x8-ib400",
    "h200": "h200x8-ib400",
    "b200": "b200x8-ib400",
    "b300": "b300x8-ib800",
    "gb200": "gb200-nvl72-ib400",
    "gb300": "azure-nd-gb300-v6",
    "mi300x": "mi300x8-roce400",
}


def check_plan(plan: TrainingPlan) -> None:
    """Raise UsageError in one line for a plan that cannot be."""
    layout, model = plan.layout, plan.model
    check_sizes(model, layout, plan.sequence)
    card_of(plan.gpu)
    if plan.precision not in DTYPES:
        raise UsageError(f"unknown precision {plan.precision!r:.40}", f"name one of {', '.join(DTYPES)}")
    stage = layout.dp * layout.cp * layout.tp
    if layout.ep > 1 and stage % layout.ep:
        raise UsageError(
            f"expert parallel {layout.ep} does not divide the {stage} ranks of a stage",
            "let it divide data x context x tensor parallel",
        )
    if layout.pp * layout.chunks > model.layers + 2:
        raise UsageError(
            f"{layout.pp} x {layout.chunks} pipeline stages for {model.layers} blocks",
            "give each stage one block at least",
        )
    if layout.cp > plan.sequence:
        raise UsageError(f"context parallel {layout.cp} of {plan.sequence} tokens", "use a smaller one")


def usual_fabric(gpu: str) -> str:
    """Return the fabric that machines of this GPU usually have; UsageError if none is usual.

    A GPU of a file goes by the name that its file gives it.
    """
    name = card_of(gpu).name
    for start in sorted(_DEFAULT_FABRICS, key=len, reverse=True):
        if name.startswith(start):
            return _DEFAULT_FABRICS[start]
    raise UsageError(
        f"no usual fabric of GPU {name!r:.40}", "name one with --fabric; shardtoll fabrics lists them"
    )
