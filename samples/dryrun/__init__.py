"""Training scripts written for GPUs, to be run by `shardtoll dryrun` on a machine without one.

It may import torch only: a dry run takes a script as it is. Start reading in `llama`.
"""
