"""Fabrics and measured sweeps on terminals, in files and on pages.

It may import `dashboards.page.html`, `dashboards.terminal`, `dashboards.words`, `ledger.words`.
Start reading in `sweep_lines`.
"""
