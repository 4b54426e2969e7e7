"""What several kinds of sinks share."""

from __future__ import annotations

from dataclasses import replace

from velostream.model.address import split_parameters
from velostream.sinks.base import SinkSpec


def with_parameters(spec: SinkSpec) -> SinkSpec:
    """The spec with the URI's parameters among its options, where WITH hasn't set them, and the bare URI."""
    address, parameters = split_parameters(spec.uri)
    given = {name.lower(): value for name, value in spec.options.items()}
    return replace(spec, uri=address, options=parameters | given) if parameters else spec
