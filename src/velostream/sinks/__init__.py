"""Sinks: where a query's rows go."""
