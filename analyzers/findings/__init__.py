"""The findings, one file a question, in rooms by what they ask.

Start reading in `stragglers.straggler`.
"""
