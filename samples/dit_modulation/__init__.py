"""Three lines of a diffusion transformer, parallelised in four ways.

`weight` [hidden, hidden] projects each sample's conditioning to a scale per channel, which multiplies that
sample's tokens. Nothing could be simpler on one device. Spread over ranks by hand it is wrong (`chunk`), then
right but done n times (`scatter`), then right (`partial`); spread by DTensor it is right, and what it costs
cannot be seen in the program (`dtensor`). Run one and read its bill:

    torchrun --nproc-per-node 4 -m shardtoll.samples.dit_modulation.chunk --out runs/chunk
    shardtoll report runs/chunk
"""
