"""The values, the life of a rollout, errors, time, ids and the wire. Imports nothing above it."""
