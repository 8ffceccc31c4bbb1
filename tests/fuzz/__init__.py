"""Damaged and hostile input for all that reads what others wrote: `python -m tests.fuzz` (`make fuzz`).

A seam is one way in: traces, Nsight exports, run folders, reports, budgets, fabrics, kernel tables, output of
nccl-tests, sweeps, requests to the server. Each input is made from a seed, so any can be made again.
Children with a limit on memory and time try them: a crash or a hang ends one child and is counted.
Start reading in `run`; `seams` lists the seams, `mutate` makes the damage.
"""
