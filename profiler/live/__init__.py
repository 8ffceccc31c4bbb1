"""Capture inside a running job. Only this folder, `profiler.calibrate` and
`profiler.dryrun` import torch.

Start reading in `session.session`.
"""
