"""Which ranks' tensors began as one, held against the definition: pair by pair, the first class that fits."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from shardtoll.analyzers.findings.replicas.replicas import NEAR, _alike
from shardtoll.ledger import SKETCH_COLUMNS


def pair_by_pair(rows: pd.DataFrame) -> list[tuple[int, ...]]:
    classes: list[list[dict]] = []
    for row in rows.to_dict("records"):
        for one in classes:
            first = one[0]
            here, there = (np.array([each[name] for name in SKETCH_COLUMNS]) for each in (row, first))
            same = not pd.isna(row["hash"]) and not pd.isna(first["hash"]) and row["hash"] == first["hash"]
            sizes = np.mean(here**2) + np.mean(there**2)
            if row["shape"] == first["shape"] and (same or np.mean((here - there) ** 2) < NEAR * sizes / 2):
                one.append(row)
                break
        else:
            classes.append([row])
    return [tuple(sorted(row["rank"] for row in one)) for one in classes if len(one) > 1]


def held(seed: int) -> pd.DataFrame:
    """Twelve ranks with a few tensors between them: equal, nearly equal, absent, zero or of another shape."""
    random = np.random.default_rng(seed)
    tensors = random.normal(size=(4, len(SKETCH_COLUMNS)))
    tensors[3] = 0.0
    rows = []
    for rank in random.permutation(12):
        which = int(random.integers(4))
        sketch, print_of = tensors[which], 2**40 + which
        how = random.integers(5)
        if how == 0:
            sketch, print_of = sketch * (1 + random.choice((1e-3, 0.2, 0.5))), int(random.integers(2**40))
        elif how == 1:
            sketch = np.full(len(SKETCH_COLUMNS), np.nan)
        rows.append(
            {
                "rank": int(rank),
                "shape": random.choice(("[4, 8]", "[4, 8]", "[8, 4]")),
                "hash": None if random.random() < 0.2 else print_of,
                **dict(zip(SKETCH_COLUMNS, sketch.tolist(), strict=True)),
            }
        )
    return pd.DataFrame(rows).astype({"hash": "Int64"})


@pytest.mark.parametrize("seed", range(60))
def test_ranks_that_began_alike_are_those_of_the_definition(seed: int) -> None:
    rows = held(seed)
    assert _alike(rows) == pair_by_pair(rows)


def test_what_is_infinite_is_like_its_equal_only() -> None:
    rows = held(0).head(3).assign(shape="[2, 2]", hash=[5, 5, 6])
    rows[list(SKETCH_COLUMNS)] = np.inf
    assert _alike(rows) == [tuple(sorted(rows["rank"].iloc[:2]))]
