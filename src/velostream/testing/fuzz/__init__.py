"""Random tables, changes and queries, compared with what Spark answers. `python -m velostream.testing.fuzz` runs it."""
