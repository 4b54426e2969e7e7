"""What every source refuses that follows a log."""

import pytest

from velostream.errors import OptionError
from velostream.plugins import Group, load
from velostream.sources.base import SourceSpec


@pytest.mark.parametrize("kind", ["postgres", "mysql", "mongodb"])
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("where", "x"),
        ("limit", "3"),
        ("incremental.column", "id"),
        ("cdc.start", "latest"),
        ("cdc.start.position", "x"),
    ],
)
def test_options_that_a_log_would_ignore_are_refused(kind, option, value):
    options = {"table": "t", "cdc": "true", option: value}
    with pytest.raises(OptionError, match="can't be combined" if "cdc" not in option else "initial.load = none"):
        load(Group.SOURCES, kind)(SourceSpec(kind, f"{kind}://host/database", options))
