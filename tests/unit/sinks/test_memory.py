import pyarrow as pa

from velostream.model.change import Epoch
from velostream.model.schema import Schema
from velostream.model.spool import Spool
from velostream.sinks.base import SinkSpec
from velostream.sinks.memory import MemorySink


def test_batches_go_into_the_spool_once(tmp_path):
    spool = Spool(tmp_path / "feed")

    def sink():
        made = MemorySink(SinkSpec("memory", "memory://x", {"spool": str(spool.directory)}))
        made.open(Schema.of(("n", "BIGINT")))
        return made

    first = sink()
    first.write(pa.table({"n": [1]}), Epoch("a", 1))
    first.write(pa.table({"n": pa.array([], pa.int64())}), Epoch("a", 2))
    first.write(pa.table({"n": [2]}), Epoch("b", 1))
    again = sink()
    again.write(pa.table({"n": [1]}), Epoch("a", 1))
    again.write(pa.table({"n": [2]}), Epoch("b", 1))
    again.write(pa.table({"n": [3]}), Epoch("a", 3))
    assert [spool.read(number)["n"].to_pylist() for number in range(1, spool.count() + 1)] == [[1], [2], [3]]
