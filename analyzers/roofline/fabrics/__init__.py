"""Fabrics as data: one TOML file each."""
