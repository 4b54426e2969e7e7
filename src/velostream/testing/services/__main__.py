"""`python -m velostream.testing.services fetch`: get all test servers ahead of the tests, which then start at once."""

from __future__ import annotations

import sys

from velostream.errors import VelostreamError
from velostream.testing.services.azure import AzureService
from velostream.testing.services.base import Service
from velostream.testing.services.clickhouse import ClickhouseService
from velostream.testing.services.downloads import tell
from velostream.testing.services.gs import GsService
from velostream.testing.services.kafka import KafkaService
from velostream.testing.services.mongodb import MongodbService
from velostream.testing.services.mysql import MysqlService
from velostream.testing.services.postgres import PostgresService
from velostream.testing.services.redis import RedisService
from velostream.testing.services.s3 import S3Service

ALL: tuple[type[Service], ...] = (
    PostgresService,
    MysqlService,
    MongodbService,
    RedisService,
    ClickhouseService,
    S3Service,
    GsService,
    AzureService,
    KafkaService,
)


def main(arguments: list[str]) -> int:
    if arguments != ["fetch"]:
        tell("usage: python -m velostream.testing.services fetch")
        return 2
    for service in ALL:
        try:
            service.fetch()
        except VelostreamError as error:
            tell(str(error))
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
