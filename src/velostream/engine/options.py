"""Options of tables and of queries that the engine itself reads. Those of sources and sinks are theirs."""

from __future__ import annotations

from velostream.model.options import Option, OptionType

TABLE_OPTIONS = (
    Option("key", "columns of the key, comma-separated"),
    Option("extension", "kind of store", OptionType.CHOICE, "inmemory", ("inmemory",)),
    Option("connector", "another word for extension", OptionType.CHOICE, None, ("inmemory",)),
)

QUERY_OPTIONS = (
    Option("table.wait.timeout", "how long a query waits for the tables it reads", OptionType.DURATION, "5m"),
    Option("table.wait.on.timeout", "what happens then", OptionType.CHOICE, "fail", ("fail", "start")),
    Option("checkpoint", "folder of the state of an aggregate"),
    Option("source", "the URI behind CREATE STREAM"),
)
