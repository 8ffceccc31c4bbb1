"""Habits that cost each step for nothing, each with its sound twin.

torchrun --nproc-per-node 2 -m shardtoll.samples.habits barrier
torchrun --nproc-per-node 2 -m shardtoll.samples.habits barrier --fixed
"""
