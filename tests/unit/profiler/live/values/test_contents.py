"""Numbers of contents: one memory until it is written to, and copies of it."""

from __future__ import annotations

import torch

from shardtoll.profiler.live.values.contents import Contents


def test_one_memory_has_one_number_until_it_is_written_to() -> None:
    contents, x = Contents(), torch.randn(4, 4)
    first = contents.of([x])
    assert contents.of([x]) == contents.of([x.view(-1)]) == contents.of([x.detach()]) == first
    assert contents.of([x[:2]]) != first
    x[0].add_(0)
    assert contents.of([x]) != first


def test_equal_values_elsewhere_are_another_content() -> None:
    contents, x = Contents(), torch.randn(4)
    assert contents.of([x]) != contents.of([x + 0])


def test_a_copy_holds_what_its_source_did() -> None:
    contents, x = Contents(), torch.randn(4, 4)
    first = contents.of([x])
    copy, turned = x.clone(), x.t().contiguous()
    contents.copied(x, copy)
    contents.copied(x.t(), turned)
    assert contents.of([copy]) == first
    assert contents.of([turned]) != first
    x.zero_()
    assert contents.of([copy]) == first


def test_what_a_collective_fills_is_new_whatever_its_version() -> None:
    contents, x = Contents(), torch.randn(4, 4)
    before, row = contents.of([x]), contents.of([x[1]])
    made = contents.made([x])
    assert made != before
    assert contents.of([x]) == made
    assert contents.of([x[1]]) != row


def test_several_are_one_content_in_their_order() -> None:
    contents, x, y = Contents(), torch.randn(4), torch.randn(4)
    assert contents.of([x, y]) == contents.of([x, y])
    assert contents.of([x, y]) != contents.of([y, x])


def test_what_cannot_be_followed_has_none() -> None:
    contents = Contents()
    with torch.inference_mode():
        inference = torch.ones(3)
    for tensor in (inference, torch.empty(0), torch.ones(4, 4)[:, 1], torch.empty(3, device="meta")):
        assert contents.of([tensor]) is None
