"""Facts that a question leaves out: the batch in whole sequences, the fabric's node and GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardtoll.analyzers.advise.advise import advise
from shardtoll.analyzers.advise.layouts import legal_layouts
from shardtoll.analyzers.advise.question_file import question_of
from shardtoll.ledger import UsageError
from tests.unit.analyzers.advise.test_advise import BASE

ASKED = {"model": "llama2-7b", "gpus": 8, "sequence": 1024}


@pytest.mark.parametrize(
    ("gpus", "tokens", "sequences"),
    [
        # In full, and whole sequences: exactly these, as a run's own batch is.
        (8, "1024000", 1000),
        (8, "3072", 3),
        # About so many: the power of two within 5 %, if the GPUs divide it.
        (8, "4M", 4096),
        (8, "1000000", 1024),
        (8, "3M", 2928),
        (48, "4M", 3888),
        (7, "4M", 3906),
        # No number near it that the GPUs divide.
        (4096, "1M", 1024),
        (64, "36.5k", 36),
    ],
)
def test_a_batch_is_kept_if_it_is_exact_and_else_one_that_the_gpus_divide(
    gpus: int, tokens: str, sequences: int
) -> None:
    assert question_of({**ASKED, "gpus": gpus, "batch_tokens": tokens}, "advise").sequences == sequences


def test_a_batch_that_nothing_divides_names_one_that_something_does() -> None:
    asked = replace(BASE, gpus=7, sequences=64)
    with pytest.raises(UsageError) as error:
        advise(asked)
    tokens = int(str(error.value).split("--batch-tokens ")[1])
    assert tokens == 70 * BASE.sequence
    assert list(legal_layouts(replace(asked, sequences=tokens // BASE.sequence)))


@pytest.mark.parametrize(
    ("given", "gpu", "node"),
    [
        ({}, "h100-sxm", 8),
        ({"fabric": "perlmutter"}, "a100-sxm-40gb", 4),
        ({"fabric": "perlmutter", "gpu": "a100-sxm-80gb"}, "a100-sxm-80gb", 4),
        ({"fabric": "gb200-nvl72-ib400"}, "gb200", 72),
        ({"gpu": "gb200"}, "gb200", 72),
        ({"fabric": "pcie-gen4"}, "h100-sxm", 8),
        ({"gpu": "rtx-4090"}, "rtx-4090", 8),
        ({"fabric": "perlmutter", "gpus_per_node": 2}, "a100-sxm-40gb", 2),
    ],
)
def test_the_fabric_says_which_gpu_and_how_many_share_its_fast_links(
    given: dict[str, object], gpu: str, node: int
) -> None:
    question = question_of({**ASKED, "gpus": 16, **given}, "advise")
    assert (question.gpu, question.gpus_per_node) == (gpu, node)
    assert max(layout.tp for layout in legal_layouts(question)) == min(16, node)
