"""Scripted policies: deterministic, no network, same protocol."""
