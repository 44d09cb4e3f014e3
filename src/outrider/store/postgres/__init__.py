"""The shared engine: a schema in a PostgreSQL database, for many machines."""
