"""Capture inside a running job: the only folder that imports torch."""
