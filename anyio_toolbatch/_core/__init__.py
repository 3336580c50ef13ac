"""Decisions without an event loop: facts come in, actions go out."""
