"""Habits of a training loop: things it does needlessly in every step, or leaves out.

It may import `analyzers.context`, `analyzers.shared`, `ledger`, `ledger.records`, `ledger.words`.
Start reading in `habit`.
"""
