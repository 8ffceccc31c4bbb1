"""Capture inside a running job. Only this folder and `profiler.calibrate` import torch.

Start reading in `session.session`.
"""
