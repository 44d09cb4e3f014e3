"""Instances of Amazon's EC2, or of a cloud that speaks its API."""
