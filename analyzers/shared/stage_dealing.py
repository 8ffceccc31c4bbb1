"""How nanotron deals a model's blocks to pipeline stages: for the time of a stage and for its memory."""

from __future__ import annotations

from shardtoll.ledger.answers.training_plan import ModelShape


def dealt_by_weight(model: ModelShape, stages: int) -> tuple[int, ...]:
    """Deal blocks as nanotron does: a stage takes blocks until all so far weigh its equal share.

    A block weighs its parameters, the head those of the embedding (nanotron's `get_block_compute_costs`
    and `build_model`). So the first stages get more, and the last one may keep the head alone.

    nanotron's own comparison gives one block more to a stage whose blocks weigh its share exactly. Shapes of
    published rows are inferred from rounded parameter counts, so an exact tie is a guess. In the one model
    with ties (1.34B) the measured memory of rank 0 and the step both show the smaller stage.
    """
    block = 4 * model.heads * model.head_width * model.hidden + 3 * model.ffn * model.hidden
    whole = model.layers * block + model.vocab * model.hidden
    dealt = [0] * stages
    stage = 0
    for count in range(1, model.layers + 1):
        dealt[stage] += 1
        if stage < stages - 1 and count * block * stages >= whole * (stage + 1):
            stage += 1
    return tuple(dealt)
