"""Packaged data of the forecast: measured compute and fitted constants, each with its source; no code."""
