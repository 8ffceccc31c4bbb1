"""Parameters and operations of a model, counted from its shape."""

from __future__ import annotations

from functools import lru_cache

from shardtoll.ledger.answers.training_plan import ModelShape


def attention_parameters(model: ModelShape) -> int:
    """Return the parameters of one block's attention."""
    width = model.head_width
    return model.hidden * width * (2 * model.heads + 2 * model.kv_heads)


def feed_forward_parameters(model: ModelShape, columns: int) -> int:
    """Return the parameters of one feed-forward part with that many columns."""
    return (3 if model.gated else 2) * model.hidden * columns


def expert_columns(model: ModelShape) -> int:
    """Return the columns of one expert."""
    return model.expert_ffn or model.ffn


@lru_cache(maxsize=4096)
def block_parameters(model: ModelShape, *, active: bool = False) -> float:
    """Return the parameters of one block, mean over the blocks; `active`: those that one token passes."""
    attention = attention_parameters(model) + 2 * model.hidden
    if model.experts <= 1:
        return attention + feed_forward_parameters(model, model.ffn)
    used = model.topk if active else model.experts
    experts = (used + model.shared_experts) * feed_forward_parameters(model, expert_columns(model))
    router = model.hidden * model.experts
    dense = min(model.dense_layers, model.layers) / model.layers
    return attention + (1 - dense) * (experts + router) + dense * feed_forward_parameters(model, model.ffn)


def parameters(model: ModelShape, *, active: bool = False) -> float:
    """Return all parameters; `active`: those that one token passes."""
    embeddings = model.vocab * model.hidden * (1 if model.tied or active else 2)
    return model.layers * block_parameters(model, active=active) + embeddings + model.hidden


def model_flops_per_token(model: ModelShape, sequence: int) -> float:
    """Return operations of forward and backward for one token: 6 per active parameter that multiplies, and
    attention with its causal half only."""
    multiplied = model.layers * block_parameters(model, active=True) + model.vocab * model.hidden
    attention = 6.0 * model.layers * sequence * model.heads * model.head_width
    return 6.0 * multiplied + attention
