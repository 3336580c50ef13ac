"""Frozen values that cross the public line; no event loop, no threads, no clocks."""
