"""Forecasts a step's time and memory: prices put together by the streams that run them.

Start reading in `compute.operator` for one operator, in `memory.peak` for the peak memory of a plan
and in `plan.price` for a whole step.

It is a door: it hands out what its rooms export, and holds no code of its own.
"""
