"""The parts of `benchmarks/model_accuracy.py`: which sweeps predict which, and the peers' formulas.

Start reading in `cases`.
"""
