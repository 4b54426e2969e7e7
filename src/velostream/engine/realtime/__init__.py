"""Queries from topic to topic in Spark's Real-Time Mode, each in a Spark of its own (`'trigger' = 'realtime'`)."""
