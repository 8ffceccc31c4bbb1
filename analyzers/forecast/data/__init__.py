"""Packaged data of the forecast: models, measured compute, networks and
fitted constants, each with its source; no code."""
