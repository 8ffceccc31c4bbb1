"""Adapters that audit training run by a trainer library: one file each, which alone imports that library."""
