"""Measurements, each one command that prints JSON lines. Nothing in the packages depends on them."""
