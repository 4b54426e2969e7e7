"""Options that the engine itself reads."""

from datetime import timedelta

import pytest

from velostream.engine.options import query_options, trigger_of
from velostream.engine.trigger import Trigger
from velostream.errors import OptionError, UnsupportedError
from velostream.sql.statements import OptionValue


def test_real_time_is_for_what_goes_from_topic_to_topic():
    given = [OptionValue("trigger", "RealTime")]
    assert trigger_of(given).realtime
    assert query_options(given, realtime=True).text("trigger") == "RealTime"
    with pytest.raises(UnsupportedError) as refused:
        query_options(given)
    assert refused.value.code == "unsupported-trigger"
    assert "kafka://" in refused.value.hint


@pytest.mark.parametrize(
    ("text", "trigger"),
    [
        ("500ms", Trigger(every=timedelta(milliseconds=500))),
        ("2.5s", Trigger(every=timedelta(seconds=2.5))),
        ("INTERVAL '5' MINUTE", Trigger(every=timedelta(minutes=5))),
        ("3", Trigger(every=timedelta(seconds=3))),
        ("0s", Trigger()),
        (" Once ", Trigger(once=True)),
    ],
)
def test_a_trigger_is_a_length_of_time_or_once(text, trigger):
    given = [OptionValue("trigger", text)]
    assert query_options(given).text("trigger") == text
    assert trigger_of(given) == trigger


@pytest.mark.parametrize("text", ["often", "-5s", "5 parsecs", "", "1e3s", "once 5s"])
def test_no_other_trigger_is_taken(text):
    with pytest.raises(OptionError, match=f'trigger.*"{text}"') as refused:
        query_options([OptionValue("trigger", text)])
    assert "once" in refused.value.detail + (refused.value.hint or "") + refused.value.message


def test_what_goes_on_as_fast_as_it_can_has_nothing_to_tell():
    assert trigger_of([]) == Trigger()
    assert trigger_of([]).shown is None
    assert "500ms" in trigger_of([OptionValue("trigger", "0.5 seconds")]).shown
