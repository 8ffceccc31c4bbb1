"""One small transformer, trained in every way people spread a model over ranks.

Each module here is a program for torchrun that shows one family of strategies; its options choose the
variant. It trains for a few steps under an audit and prints the bill of the last one:

    torchrun --nproc-per-node 4 -m shardtoll.samples.strategies.ddp --variant no_sync

The module's own text says which collectives a step must issue, with which bytes, and what to learn from it.
"""
