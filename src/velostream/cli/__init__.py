"""The command line."""

from velostream.cli.app import main

__all__ = ["main"]
