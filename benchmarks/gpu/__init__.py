"""What `make gpu` measures on one CUDA card, and `make gpu-rehearsal` in small on a CPU.

`run.py` is the plan: parts with a limit each, every part a process of its own that leaves a result file.
Start reading there; `sheet.py` is what a part writes, `place.py` where it runs.
"""
