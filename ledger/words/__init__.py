"""How numbers are written: one form for analyses, renderers and commands.

It may import nothing of ours.
Start reading in `human`.
"""
