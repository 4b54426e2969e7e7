"""Text to statements to plan: pure, without Spark, in milliseconds."""

from velostream.sql.parse import parse_expression, parse_script, parse_statement
from velostream.sql.places import place_of
from velostream.sql.render import render
from velostream.sql.sources import uri_parameters

__all__ = ["parse_expression", "parse_script", "parse_statement", "place_of", "render", "uri_parameters"]
