"""A measured run re-priced for other numbers of GPUs, other fabrics and other GPUs.

Start reading in `scaling`.
"""
