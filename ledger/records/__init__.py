"""The records themselves: frozen, slotted, checked when made; findings, errors, volumes in bytes.

It may import nothing of ours.
Start reading in `record`.
"""
