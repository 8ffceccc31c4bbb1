"""What a training loop does in every step and need not, or leaves out.

It may import `analyzers.context`, `analyzers.shared`, `ledger`, `ledger.records`, `ledger.words`.
Start reading in `habit`.
"""
