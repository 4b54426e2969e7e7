"""Options that the engine itself reads."""

import pytest

from velostream.engine.options import query_options
from velostream.errors import OptionError, UnsupportedError
from velostream.sql.statements import OptionValue


def test_real_time_is_refused_with_the_reason():
    with pytest.raises(UnsupportedError) as refused:
        query_options([OptionValue("trigger", "RealTime")])
    assert refused.value.code == "unsupported-trigger"
    assert "without any stage in Python" in refused.value.detail


@pytest.mark.parametrize("trigger", ["500ms", "once"])
def test_other_triggers_are_not_taken_and_ignored(trigger):
    with pytest.raises(OptionError, match=trigger):
        query_options([OptionValue("trigger", trigger)])
