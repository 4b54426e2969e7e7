"""Options that the engine itself reads."""

import pytest

from velostream.engine.options import is_realtime, query_options
from velostream.errors import OptionError, UnsupportedError
from velostream.sql.statements import OptionValue


def test_real_time_is_for_what_goes_from_topic_to_topic():
    given = [OptionValue("trigger", "RealTime")]
    assert is_realtime(given)
    assert query_options(given, realtime=True).text("trigger") == "RealTime"
    with pytest.raises(UnsupportedError) as refused:
        query_options(given)
    assert refused.value.code == "unsupported-trigger"
    assert "kafka://" in refused.value.hint


@pytest.mark.parametrize("trigger", ["500ms", "once"])
def test_other_triggers_are_not_taken_and_ignored(trigger):
    with pytest.raises(OptionError, match=trigger):
        query_options([OptionValue("trigger", trigger)])
    assert not is_realtime([OptionValue("trigger", trigger)])
