"""Measures what collectives cost on the process groups of a job, and writes it as a fabric."""
