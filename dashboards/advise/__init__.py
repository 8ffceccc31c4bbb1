"""Advice on a terminal, as Markdown and as a page.

Start reading in `advice_shown`.
"""
