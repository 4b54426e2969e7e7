"""Every registered kind of sink, through the suite that ships with the package."""

import json

import pytest

from velostream.model.spool import Spool
from velostream.plugins import Group, load, names
from velostream.sinks.base import SinkSpec
from velostream.sources.base import SourceSpec
from velostream.testing.kafka_feed import settled_end
from velostream.testing.services.azure import AzureService
from velostream.testing.services.clickhouse import ClickhouseService
from velostream.testing.services.gs import GsService
from velostream.testing.services.http import HttpServer, Reply
from velostream.testing.services.kafka import KafkaService
from velostream.testing.services.s3 import S3Service
from velostream.testing.sink_suite import SinkSuite, SinkTarget


class FileTarget(SinkTarget):
    def __init__(self, path, **options):
        self.path = path
        self.options = options

    def sink(self):
        return load(Group.SINKS, "file")(SinkSpec("file", f"file://{self.path}", self.options))

    def numbers(self):
        source = load(Group.SOURCES, "file")(
            SourceSpec("file", f"file://{self.path}", {"watch": "true", "watch.debounce": "0s"})
        )
        schema = source.schema()
        if schema is None:
            return []
        start = source.initial_offset()
        return [
            row["id"]
            for partition in source.partitions(start, source.latest_offset(start))
            for batch in source.read(partition, schema, pytest.fail)
            for row in batch.to_pylist()
        ]


class MemoryTarget(SinkTarget):
    def __init__(self, folder):
        self.spool = Spool(folder / "feed", durable=False)

    def sink(self):
        return load(Group.SINKS, "memory")(SinkSpec("memory", "memory://x", {"spool": str(self.spool.directory)}))

    def numbers(self):
        return [number for n in range(1, self.spool.count() + 1) for number in self.spool.read(n)["id"].to_pylist()]


class ConsoleTarget(SinkTarget):
    def __init__(self, capsys):
        self.capsys = capsys
        self.text = ""

    def sink(self):
        return load(Group.SINKS, "console")(SinkSpec("console", "console://?format=json", {}))

    def numbers(self):
        self.text += self.capsys.readouterr().out
        return [json.loads(line)["id"] for line in self.text.splitlines() if line]


class KafkaTarget(SinkTarget):
    def __init__(self):
        self.url = KafkaService.shared().new_topic()

    def sink(self):
        return load(Group.SINKS, "kafka")(SinkSpec("kafka", self.url, {}))

    def numbers(self):
        source = load(Group.SOURCES, "kafka")(SourceSpec("kafka", self.url, {"record.schema": "id BIGINT"}))
        start = source.initial_offset()
        return [
            row["id"]
            for partition in source.partitions(start, settled_end(self.url))
            for batch in source.read(partition, source.schema(), pytest.fail)
            for row in batch.to_pylist()
        ]


class ObjectTarget(SinkTarget):
    def __init__(self, kind, service, **options):
        self.kind = kind
        self.url = f"{service.new_database()}/out/"
        self.options = {**service.options}
        self.format = options

    def sink(self):
        return load(Group.SINKS, self.kind)(SinkSpec(self.kind, self.url, self.options | self.format))

    def numbers(self):
        source = load(Group.SOURCES, self.kind)(SourceSpec(self.kind, self.url, {**self.options, "watch": "true"}))
        schema = source.schema()
        if schema is None:
            return []
        start = source.initial_offset()
        return [
            row["id"]
            for partition in source.partitions(start, source.latest_offset(start))
            for batch in source.read(partition, schema, pytest.fail)
            for row in batch.to_pylist()
        ]


class HttpTarget(SinkTarget):
    def __init__(self):
        self.server = HttpServer()
        self.server.start()
        self.url = self.server.answer("/in", lambda _: Reply())

    def sink(self):
        return load(Group.SINKS, "http")(SinkSpec("http", f"{self.url}?batch.size=2"))

    def numbers(self):
        return [row["id"] for request in self.server.requests for row in json.loads(request.body)]

    def close(self):
        self.server.stop()


class ClickhouseTarget(SinkTarget):
    def __init__(self):
        self.service = ClickhouseService(url=ClickhouseService.shared().new_database())

    def sink(self):
        return load(Group.SINKS, "clickhouse")(SinkSpec("clickhouse", f"{self.service.url}?table=out"))

    def numbers(self):
        if self.service.execute("EXISTS TABLE out") == b"0\n":
            return []
        # ClickHouse has no order of its own.
        return [int(line) for line in self.service.execute("SELECT id FROM out ORDER BY id").split()]


TARGETS = {
    "clickhouse": {"made": lambda _, __: ClickhouseTarget()},
    "s3": {
        "parquet": lambda _, __: ObjectTarget("s3", S3Service.shared()),
        "csv gzip": lambda _, __: ObjectTarget("s3", S3Service.shared(), format="csv", compression="gzip"),
    },
    "gs": {"parquet": lambda _, __: ObjectTarget("gs", GsService.shared())},
    "abfs": {"parquet": lambda _, __: ObjectTarget("abfs", AzureService.shared())},
    "http": {"json": lambda _, __: HttpTarget()},
    "kafka": {"json": lambda _, __: KafkaTarget()},
    "memory": {"spool": lambda folder, _: MemoryTarget(folder)},
    "console": {"json": lambda _, capsys: ConsoleTarget(capsys)},
    "file": {
        "csv": lambda folder, _: FileTarget(folder / "out.csv"),
        "jsonl": lambda folder, _: FileTarget(folder / "out.jsonl"),
        "parquet": lambda folder, _: FileTarget(folder / "out.parquet"),
        "folder of csv": lambda folder, _: FileTarget(folder / "out", format="csv"),
        "csv gzip": lambda folder, _: FileTarget(folder / "out.csv.gz"),
        "jsonl zstd": lambda folder, _: FileTarget(folder / "out.jsonl.zst"),
        "folder of jsonl gzip": lambda folder, _: FileTarget(folder / "out", format="jsonl", compression="gzip"),
        "folder of avro": lambda folder, _: FileTarget(folder / "out", format="avro"),
        "folder of orc": lambda folder, _: FileTarget(folder / "out", format="orc"),
        "folder of parquet": lambda folder, _: FileTarget(f"{folder}/out/"),
    },
}
CASES = [(kind, case) for kind, cases in TARGETS.items() for case in cases]


def test_no_kind_is_forgotten():
    assert set(names(Group.SINKS)) == set(TARGETS)


@pytest.mark.parametrize(("kind", "case"), CASES, ids=[f"{kind} {case}" for kind, case in CASES])
class TestSinks(SinkSuite):
    @pytest.fixture
    def target(self, kind, case, tmp_path, capsys):
        made = TARGETS[kind][case](tmp_path, capsys)
        yield made
        made.close()
