"""What others wrote, read with care: files, TOML, JSON as records. What is wrong ends in one line.

It may import `ledger.records`.
Start reading in `regular`; `plain` makes records of JSON values, `toml_text` reads TOML.
"""
