"""Tokens of a dry step: what embeddings looked up, and how many ranks share it."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from shardtoll.analyzers.forecast.dry.priced import price_dry
from shardtoll.analyzers.roofline import load_fabric
from shardtoll.ledger import Ledger
from shardtoll.ledger.answers.dry_step import DryStep
from shardtoll.ledger.records.dry import DryOp
from shardtoll.ledger.tables.tables import to_records, to_table
from tests.dry_runs import recorded

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]


def _ids(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.long, device="cuda")


def _trained(model: nn.Module) -> None:
    adam = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model().square().mean().backward()
        adam.step()
        adam.zero_grad()


def _priced(ledger: Ledger) -> DryStep:
    return price_dry(ledger, load_fabric("h100x8-ib400"))[1]


class _Tables(nn.Module):
    """Looks up indices of the given shapes, each in its own table, in its own module or in this one."""

    def __init__(self, shapes: list[tuple[int, ...]], *, functional: bool, rows: list[int]) -> None:
        super().__init__()
        self.shapes, self.functional = shapes, functional
        self.tables = nn.ModuleList([nn.Embedding(each, 8) for each in rows])

    def forward(self) -> torch.Tensor:
        total = torch.zeros(1, device="cuda")
        for shape, table in zip(self.shapes, self.tables, strict=True):
            assert isinstance(table, nn.Embedding)
            found = F.embedding(_ids(*shape), table.weight) if self.functional else table(_ids(*shape))
            total = total + found.sum()
        return total


@pytest.mark.parametrize("functional", [False, True])
@pytest.mark.parametrize(
    ("shapes", "tokens"),
    [
        pytest.param([(16,), (4, 16)], 64, id="positions first"),
        pytest.param([(4, 16), (16,)], 64, id="positions last"),
        pytest.param([(1, 16), (4, 16)], 64, id="batched positions"),
        pytest.param([(16,), (64,)], 64, id="flattened"),
        pytest.param([(64,), (1, 16)], 64, id="flattened, positions last"),
        pytest.param([(16,), (16, 32)], 512, id="a class for each sequence"),
        pytest.param([(1,), (4, 16)], 64, id="one for all"),
        pytest.param([(4, 16), (4, 16), (16,)], 64, id="kinds of tokens"),
        pytest.param([(24,), (4, 16)], None, id="neither"),
        pytest.param([(4, 16), (3, 16)], None, id="batches of two sizes"),
        pytest.param([(16,), (24,)], None, id="lengths of two sizes"),
    ],
)
def test_what_embeddings_looked_up(
    shapes: list[tuple[int, ...]], tokens: int | None, functional: bool
) -> None:
    rows = [100, 16, 50][: len(shapes)]
    answer = _priced(recorded(lambda: _trained(_Tables(shapes, functional=functional, rows=rows).cuda())))
    assert answer.tokens == tokens
    assert answer.no_tokens == ("embeddings disagree" if tokens is None else None)


def test_tables_of_one_shape_in_one_module_are_not_told_apart() -> None:
    equal = _Tables([(4, 16), (16,)], functional=True, rows=[100, 100])
    assert _priced(recorded(lambda: _trained(equal.cuda()))).no_tokens == "embeddings disagree"


def test_one_table_of_an_encoder_and_its_decoder_has_the_tokens_of_both() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(100, 8)

        def forward(self) -> torch.Tensor:
            total: torch.Tensor = self.table(_ids(4, 32)).sum() + self.table(_ids(4, 16)).sum()
            return total

    assert _priced(recorded(lambda: _trained(Model().cuda()))).tokens == 4 * 48


def test_an_embedding_whose_shapes_are_not_on_record_is_one() -> None:
    made = recorded(lambda: _trained(_Tables([(4, 16)], functional=False, rows=[100]).cuda()))
    ops: list[DryOp] = to_records("dry_ops", made.tables["dry_ops"])
    bare = [replace(op, shapes=None) for op in ops]
    answer = _priced(replace(made, tables={**made.tables, "dry_ops": to_table("dry_ops", bare)}))
    assert (answer.tokens, answer.no_tokens) == (None, "embedding without shapes")


class _Sending(nn.Module):
    """A stage that sends its activations on, or a layer that sums them, within one group."""

    def __init__(self, group: dist.ProcessGroup, stage: bool, small: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(100, 8 if small else 64)
        self.group, self.stage = group, stage

    def forward(self) -> torch.Tensor:
        found: torch.Tensor = self.table(_ids(8, 64))
        if self.stage:
            dist.send(found.detach(), group=self.group, group_dst=1)
        else:
            dist.all_reduce(found.detach(), group=self.group)
        return found


def _on_mesh(
    shape: tuple[int, ...], names: tuple[str, ...], which: str, *, small: bool = False, at_top: bool = False
) -> Ledger:
    """Return the record of a program that holds its mesh in a function, or at the top of its file too."""
    file = ModuleType("program")

    def train() -> None:
        dist.init_process_group("nccl")
        mesh = init_device_mesh("cuda", shape, mesh_dim_names=names)
        if at_top:
            file.__dict__["mesh"] = mesh
        _trained(_Sending(mesh.get_group(which), which == "pp", small).cuda())

    return recorded(train, world=torch.Size(shape).numel())


@pytest.mark.parametrize("at_top", [True, False])
@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize(
    ("shape", "names", "which", "tokens"),
    [
        ((2, 2), ("dp", "pp"), "pp", 1024),
        ((2, 2, 2), ("dp", "cp", "tp"), "tp", 2048),
        ((2, 2), ("dp", "tensor_parallel"), "tensor_parallel", 1024),
        ((2, 2), ("replicate", "cp"), "replicate", 2048),
    ],
)
def test_ranks_share_tokens_as_the_mesh_says_wherever_the_program_holds_it(
    shape: tuple[int, ...], names: tuple[str, ...], which: str, tokens: int, small: bool, at_top: bool
) -> None:
    made = _on_mesh(shape, names, which, small=small, at_top=at_top)
    assert made.run.mesh == (dict(zip(names, shape, strict=True)) if at_top else {})
    answer = _priced(made)
    assert (answer.tokens, answer.no_tokens) == (tokens, None)


def test_replicas_on_a_mesh_of_all_ranks_share_no_tokens() -> None:
    assert _priced(_on_mesh((4,), ("dp",), "dp", at_top=True)).tokens == 2048
    # Its group is that of the job, which has no description of its own.
    assert _priced(_on_mesh((4,), ("dp",), "dp")).no_tokens == "shared by unknown ranks"


def test_two_names_of_one_dimension_do_not_say_how_many_ranks_share_tokens() -> None:
    made = _on_mesh((2, 2), ("dp", "pp"), "pp")
    named = replace(made, run=replace(made.run, mesh={"stage": 4}))
    assert _priced(named).no_tokens == "shared by unknown ranks"
