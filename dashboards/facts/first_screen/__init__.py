"""Facts of the first screen, for terminal and page: run line, bars, rows of findings, legend, what is linked.

It may import `dashboards.facts`, `dashboards.words`, `ledger`, `ledger.records`, `ledger.words`.
Start reading in `first_facts` and `first_rows`.
"""
