"""The parts of `benchmarks/overhead.py`: programs, their ranks, and the tools that look at a step.

Other benchmarks of capture use them too. Start reading in `cases`.
"""
