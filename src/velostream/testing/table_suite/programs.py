"""Random programs of writes, reopenings and crashes against a model that is a dict."""
# ruff: noqa: S101 - asserting is what a suite does

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from velostream.errors import TableError
from velostream.model.change import Epoch, Write
from velostream.tables.base import Snapshot, Table
from velostream.testing.table_cases import BAG, KEYED, STEPS, Model, content, equals
from velostream.testing.table_suite.harness import TableHarness
from velostream.testing.table_suite.versions import check_changes


class Programs(TableHarness):
    def test_any_program_gives_what_a_dict_would(self) -> None:
        if self.lacks("insert", "update", "delete", "upsert", "epochs"):
            return

        @settings(max_examples=self.store.examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
        @given(st.booleans(), st.lists(st.tuples(STEPS, st.booleans()), max_size=10))
        def run(keyed: bool, program: list[tuple[Write | str, bool]]) -> None:  # noqa: FBT001 - drawn by Hypothesis
            table = self.make_table(KEYED if keyed else BAG)
            if not self.lacks("changes"):
                table.follow()
            model = Model(keyed=keyed)
            for epoch, (step, repeated) in enumerate(program):
                table = self._step(table, model, step, Epoch("w", epoch), repeated=repeated)
            self.close(table)

        run()

    def _check_reads(self, snapshot: Snapshot, model: Model) -> None:
        """Every way to a row leads to the row that is there."""
        if not self.lacks("conditions"):
            named = [row for row in model.rows.elements() if row[1] == "a"]
            assert snapshot.count(equals("name", "a", pa.string())) == len(named)
        if self.lacks("lookup") or not snapshot.schema.key:
            return
        found = snapshot.lookup(pa.array(range(7)))
        assert found.column("_position").to_pylist() == sorted(row[0] for row in model.rows)
        assert content(found.drop_columns(["_position"])) == +model.rows
        by_key = {row["id"]: row for row in found.drop_columns(["_position"]).to_pylist()}
        for key in (0, 5):
            row = snapshot.get(key)
            assert snapshot.contains(key) == (key in by_key)
            assert (None if row is None else row.as_dict()) == by_key.get(key)

    def _step(self, table: Table, model: Model, step: Write | str, epoch: Epoch, *, repeated: bool) -> Table:
        before, since = Counter(model.rows), table.version
        if isinstance(step, str):
            if not self.lacks("durable"):
                table = self.reopen(table) if step == "reopen" else self.crash(table)
        else:
            try:
                model.apply(step)
            except KeyError:
                with pytest.raises(TableError):
                    table.commit(step, epoch)
            else:
                for _ in range(1 + repeated):
                    table.commit(step, epoch)
        assert content(table.snapshot().scan()) == +model.rows
        self._check_reads(table.snapshot(), model)
        assert (table.version == since) == (before == model.rows)
        if not self.lacks("changes"):
            check_changes(table, since, table.version, before, +model.rows)
        return table
