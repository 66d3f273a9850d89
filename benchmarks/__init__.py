"""Measurements, each one command that prints JSON lines. Nothing in the packages or tests depends on them."""
