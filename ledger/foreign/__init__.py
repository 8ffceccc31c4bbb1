"""Careful reading of files that others wrote: files, TOML, JSON as records. A defect ends in one line.

It may import `ledger.records`.
Start reading in `regular`; `plain` makes records of JSON values, `toml_text` reads TOML.
"""
