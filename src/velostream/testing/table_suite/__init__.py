"""What every kind of table must do, as a suite that the author of a kind runs.

Subclass it in a test module and say which kind is meant:

    class TestMyTable(TableSuite):
        @pytest.fixture
        def kind(self) -> str:
            return "mystore"

Tables are made by `Table.open`; a kind whose tables need more than a directory overrides `store`. What is tested
follows the kind's `TableCapabilities`, never its name: what it claims must hold, what it doesn't claim it must refuse.
"""

from velostream.testing.table_suite.concurrency import Concurrency
from velostream.testing.table_suite.conditions import Conditions
from velostream.testing.table_suite.crashes import Crashes
from velostream.testing.table_suite.epochs import Epochs
from velostream.testing.table_suite.foreign import ForeignWriters
from velostream.testing.table_suite.groups import Groups
from velostream.testing.table_suite.lifecycle import Lifecycle
from velostream.testing.table_suite.programs import Programs
from velostream.testing.table_suite.reads import Reads
from velostream.testing.table_suite.transactions import Transactions
from velostream.testing.table_suite.values import Values
from velostream.testing.table_suite.versions import Versions
from velostream.testing.table_suite.writes import Writes

__all__ = ["TableSuite"]


class TableSuite(
    Lifecycle,
    Writes,
    Epochs,
    Crashes,
    Transactions,
    Reads,
    Versions,
    Conditions,
    Groups,
    Values,
    ForeignWriters,
    Concurrency,
    Programs,
):
    """Inherit it and add a fixture `kind`; see the module's text."""
