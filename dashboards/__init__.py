"""One renderer a file: a Report goes in, text comes out. No renderer computes a cost of its own.

Start reading in `page.page`, or in `terminal.terminal`.
"""
