"""Walls around what we did not write."""
