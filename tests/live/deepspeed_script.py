"""A DeepSpeed script that knows nothing of shardtoll: ZeRO 2, its steps told by the engine."""

import torch

from tests.live.deepspeed_programs import MICRO_BATCHES, STEPS, make_engine

engine = make_engine(2)
for _ in range(STEPS * MICRO_BATCHES):
    loss = engine(torch.randn(2, 8)).square().mean()
    engine.backward(loss)
    engine.step()
