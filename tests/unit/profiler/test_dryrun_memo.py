"""What the dry run remembers of an operator is what torch's fake tensors give for the same shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from shardtoll.profiler.dryrun.device.memo import Memo
from shardtoll.profiler.dryrun.device.work import tensors_in

_aten: Any = torch.ops.aten
Made = Callable[..., torch.Tensor]

CALLS: dict[str, tuple[Any, Callable[[Made], tuple[Any, ...]], dict[str, Any]]] = {
    "matrices": (_aten.mm.default, lambda new: (new(4, 8), new(8, 2)), {}),
    "transposed": (_aten.mm.default, lambda new: (new(8, 4).t(), new(8, 2)), {}),
    "in place": (_aten.add_.Tensor, lambda new: (new(4, 8), new(8)), {"alpha": 2}),
    "a view": (_aten.view.default, lambda new: (new(4, 8), [8, 4]), {}),
    "an unsafe view": (_aten._unsafe_view.default, lambda new: (new(4, 8), [2, 16]), {}),
    "a view with an offset": (_aten.slice.Tensor, lambda new: (new(4, 8), 0, 1, 3), {}),
    "a view of a view": (_aten.select.int, lambda new: (new(4, 8)[1:3], 1, 5), {}),
    "several views": (_aten.split.Tensor, lambda new: (new(6, 8), 4), {}),
    "a dtype": (_aten._to_copy.default, lambda new: (new(4, 8),), {"dtype": torch.bfloat16}),
    "no shape": (_aten.sum.default, lambda new: (new(4, 8),), {}),
    "lists": (_aten._foreach_mul.Scalar, lambda new: ([new(4), new(8, 2)], 2.0), {}),
    "lists in place": (_aten._foreach_mul_.Scalar, lambda new: ([new(4), new(8, 2)], 2.0), {}),
    "a list given": (_aten.cat.default, lambda new: ([new(4, 8), new(2, 8)], 0), {}),
    "several results": (
        _aten.native_layer_norm.default,
        lambda new: (new(4, 8), [8], new(8), None, 1e-5),
        {},
    ),
    "an output": (_aten.add.out, lambda new: (new(4), new(4)), {"out": torch.empty(4)}),
}
"""What each call is about -> the operator, what it is given, and by name."""


def facts(result: Any, given: list[torch.Tensor]) -> list[Any]:
    """Return everything that tells one result from another: whose storage it has, too."""
    addresses = [tensor.untyped_storage()._cdata for tensor in given]
    rows: list[Any] = [type(result)]
    for tensor in tensors_in(result):
        storage = tensor.untyped_storage()
        rows.append(
            (
                *(tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.device),
                *(type(tensor), tensor.requires_grad, storage.nbytes(), sorted(vars(tensor))),
                [address == storage._cdata for address in addresses],
                [tensor is one for one in given],
            )
        )
    return rows


@pytest.mark.parametrize("about", CALLS)
def test_a_remembered_result_is_the_one_that_torch_gives(about: str) -> None:
    func, arguments, named = CALLS[about]
    mode = FakeTensorMode()
    memo = Memo(mode)
    assert memo.takes(func)

    def new(*size: int) -> torch.Tensor:
        with mode:
            return torch.empty(size)

    made = []
    for run in (
        lambda *args, **kwargs: func(*args, **kwargs),
        lambda *args, **kwargs: memo.run(func, args, kwargs),
    ):
        for _ in range(2):
            args = arguments(new)
            kwargs = {name: mode.from_tensor(x) if name == "out" else x for name, x in named.items()}
            made.append(facts(run(*args, **kwargs), tensors_in(args) + tensors_in(kwargs)))
    assert made[1:] == made[:-1]
    (_, plans), *others = memo._plans.values()
    assert not others
    assert [plan is not None for plan in plans.values()] == [True], "made from memory the second time"


def test_values_that_are_equal_but_of_other_types_give_other_results() -> None:
    mode = FakeTensorMode()
    memo = Memo(mode)
    with mode:
        whole = torch.empty(4, dtype=torch.int64)
    dtypes = [memo.run(_aten.mul.Tensor, (whole, 2), {}).dtype for _ in range(2)]
    dtypes += [memo.run(_aten.mul.Tensor, (whole, 2.0), {}).dtype for _ in range(2)]
    assert dtypes == [torch.int64, torch.int64, torch.float32, torch.float32]


def test_the_default_type_is_a_part_of_what_is_given() -> None:
    mode = FakeTensorMode()
    memo = Memo(mode)
    with mode:
        whole = torch.empty(4, dtype=torch.int64)
    made = []
    before = torch.get_default_dtype()
    try:
        for default in (torch.float32, torch.bfloat16) * 2:
            torch.set_default_dtype(default)
            made.append(memo.run(_aten.mul.Tensor, (whole, 2.0), {}).dtype)
    finally:
        torch.set_default_dtype(before)
    assert made == [torch.float32, torch.bfloat16] * 2
    assert [len(plans) for _, plans in memo._plans.values()] == [2]


def test_a_view_of_a_storage_that_was_freed_leaves_it_free() -> None:
    mode = FakeTensorMode()
    memo = Memo(mode)
    with mode:
        held, freed = torch.empty(4, 8), torch.empty(4, 8)
    memo.run(_aten.t.default, (held,), {})
    freed.untyped_storage().resize_(0)
    view = memo.run(_aten.t.default, (freed,), {})
    assert (view.shape, view.stride()) == ((8, 4), (1, 8))
    assert view.untyped_storage()._cdata == freed.untyped_storage()._cdata
    assert freed.untyped_storage().nbytes() == 0


def test_of_two_tensors_that_share_a_storage_none_is_taken_for_the_other_later() -> None:
    mode = FakeTensorMode()
    memo = Memo(mode)
    with mode:
        first, second = torch.empty(4), torch.empty(4)
    assert memo.run(_aten.add_.Tensor, (first, first), {}) is first
    assert memo.run(_aten.add_.Tensor, (first, second), {}) is first
    whole = torch.ops.aten.expand_as.default
    assert memo.run(_aten.add.out, (first, second), {"out": second}) is second
    with mode:
        third = torch.empty(4)
    assert memo.run(_aten.add.out, (first, second), {"out": third}) is third
    assert memo.run(whole, (first, second), {}).untyped_storage()._cdata == first.untyped_storage()._cdata


def test_what_is_given_numbers_or_another_mode_or_changes_its_shape_is_not_remembered() -> None:
    mode, other = FakeTensorMode(allow_non_fake_inputs=True), FakeTensorMode()
    memo = Memo(mode)
    with mode:
        fake = torch.empty(4)
        constant = torch.tensor(3.0)
    with other:
        stranger = torch.empty(4)
    for args in ((fake, torch.ones(4)), (constant, 2), (stranger, stranger)):
        memo.run(_aten.mul.Tensor, args, {})
    assert not memo._plans
    taken = {name: memo.takes(getattr(_aten, name).default) for name in ("resize_", "nonzero", "t_", "mm")}
    assert taken == {"resize_": False, "nonzero": False, "t_": False, "mm": True}


@pytest.mark.filterwarnings("ignore:Accessing the data pointer", "ignore:.*data pointer")
def test_a_remembered_result_may_be_asked_for_its_address_as_torchs_own() -> None:
    mode = FakeTensorMode()
    memo = Memo(mode)
    with mode:
        one = torch.empty(4)
    answers = [memo.run(_aten.neg.default, (one,), {}).untyped_storage().data_ptr() for _ in range(2)]
    assert answers == [_aten.neg.default(one).untyped_storage().data_ptr()] * 2
