"""Formats: bytes to Arrow and back, shared by sources and sinks."""
