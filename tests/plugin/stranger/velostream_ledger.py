"""A file that is added to and can only be read as a whole: a source of another package, by the simple rung."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.csv as pacsv

from velostream.errors import Category, SourceError
from velostream.model.options import Option, OptionType
from velostream.sources.base import Offset, SimpleSource


class LedgerSource(SimpleSource):
    """`ledger:///file.csv`, read once, again and again, or with `follow` for the lines that are added.

    Delivery guarantee: exactly-once, for a line that was read is there again when it is asked for by its number.
    """

    kind: ClassVar[str] = "ledger"
    options: ClassVar[tuple[Option, ...]] = (
        Option("follow", "whether lines that are added are taken in", OptionType.BOOLEAN, "false"),
        Option("poll.interval", "how often it is read again", OptionType.DURATION),
    )

    def bulk_load(self, until: Offset) -> pa.Table:
        return self._lines().slice(0, until)

    def get_current_offset(self) -> Offset:
        return self._lines().num_rows

    def supports_incremental(self) -> bool:
        return self.settings.boolean("follow")

    def incremental_load(self, since: Offset, until: Offset) -> pa.Table:
        return self._lines().slice(since, until - since)

    def _lines(self) -> pa.Table:
        path = Path(urlsplit(self.spec.uri).path)
        if not path.exists():
            raise SourceError(f'ledger "{path}" does not exist', hint="check the path", category=Category.MISSING)
        return pacsv.read_csv(path)
