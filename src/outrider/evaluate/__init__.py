"""Evaluation: benchmark files in, scored results out."""
