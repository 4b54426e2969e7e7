"""What a commit will do to one table, worked out before anything of it is logged or applied.

Each write is resolved against the table's newest rows and the writes staged before it in the same commit. The
result is a `Delta`: the net change, in which no row is both added and removed.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from velostream.errors import TableError
from velostream.model.change import CHANGE, Mode, Scope, Write
from velostream.model.schema import Schema
from velostream.tables.memory.compare import first_equal_rows, match_rows, row_hashes, rows_equal, runs
from velostream.tables.memory.conform import check_not_null, conform
from velostream.tables.memory.generation import Delta, Generation
from velostream.tables.memory.growable import Integers, Mask
from velostream.tables.memory.hash_index import HashIndex, Pairs
from velostream.tables.memory.journal import ALIVE
from velostream.tables.memory.keys import key_normaliser, key_values
from velostream.tables.memory.matching import Hashes
from velostream.tables.memory.values import python_value

if TYPE_CHECKING:
    from velostream.tables.memory.snapshot import MemorySnapshot

_NONE: Integers = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class KeyedUpsert(Write):
    """An upsert of rows no two of which have the same key, by a writer who knows their keys already."""

    keys: Sequence[Hashable] = ()
    """That of each row, in the form of `keys.key_values`."""
    seen: MemorySnapshot | None = None
    """What the writer read before; where nothing has changed since then, `places` are taken as they are."""
    places: Integers = field(default_factory=lambda: _NONE)
    """Where that has the row of each key, -1 for nowhere. Such rows are replaced, even by equal ones."""


class Stage:
    """The writes of one commit to one table. Used under the commit lock, by one thread, once.

    Rows staged stand at positions after those of the generation, as they will once they are applied.
    """

    def __init__(self, name: str, schema: Schema, generation: Generation) -> None:
        self._name = name
        self._schema = schema
        self._generation = generation
        self._base = generation.length
        self._removed = _NONE
        """Positions removed so far: of the generation, and of rows staged earlier."""
        self._staged: list[pa.Table] = []
        self._staged_keys: list[Sequence[Hashable] | None] = []
        self._staged_olders: list[Integers | None] = []
        self._staged_rows = 0
        self._writes = 0
        self._unindexed: list[tuple[Sequence[Hashable], Integers]] = []
        self._overlay: dict[Hashable, int] = {}
        """Where the keys touched by this commit are now, -1 for nowhere; over the generation's index."""

    def apply(self, write: Write) -> None:
        """Stage one more write; raises `TableError` when the table can't take it."""
        keyed = bool(self._schema.key)
        self._writes += 1
        match write.mode:
            case Mode.APPEND if keyed:
                self._append(self._conformed(write.rows))
            case Mode.APPEND:
                self._add(self._conformed(write.rows), None)
            case Mode.UPSERT if keyed:
                self._upsert(self._conformed(write.rows), write)
            case Mode.UPSERT:
                self._add(self._conformed(write.rows), None)
            case Mode.DELETE if keyed:
                self._delete_keys(self._key_columns(write.rows))
            case Mode.DELETE:
                self._change_bag(self._conformed(write.rows), np.full(write.rows.num_rows, -1))
            case Mode.CHANGES:
                self._changes(write.rows)
            case Mode.REPLACE if keyed:
                self._replace_keyed(self._scoped(write), write.scope)
            case Mode.REPLACE:
                self._replace_bag(self._scoped(write), write.scope)

    def finish(self) -> Delta:
        """The net change of all writes staged."""
        in_generation = self._removed < self._base
        removed = self._removed[in_generation]
        if not self._staged:
            return Delta(self._empty(), np.sort(removed))
        rows = self._staged[0] if len(self._staged) == 1 else pa.concat_tables(self._staged).combine_chunks()
        dropped = self._removed[~in_generation] - self._base
        if len(dropped):
            rows = rows.filter(pa.array(_all_but(dropped, rows.num_rows)))
        if self._writes > 1 and len(removed) and rows.num_rows:
            # What one write removes and another adds again stays where it is, as within one write.
            same = match_rows(self._generation.chunks.take(removed), rows)
            if len(same.left):
                rows = rows.filter(pa.array(_all_but(same.right, rows.num_rows)))
                removed = removed[_all_but(same.left, len(removed))]
        if len(self._staged) == 1 and rows.num_rows == self._staged_rows:
            return Delta(rows, np.sort(removed), self._staged_keys[0], self._staged_olders[0])
        return Delta(rows, np.sort(removed))

    def _append(self, rows: pa.Table) -> None:
        keys = key_values(rows, self._schema.key)
        if len(set(keys)) < len(keys):
            seen: set[Hashable] = set()
            for row, key in enumerate(keys):
                if key in seen:
                    raise TableError.duplicate_key(self._name, self._shown_key(rows, row))
                seen.add(key)
        taken = np.flatnonzero(self._current(keys, rows) >= 0)
        if len(taken):
            raise TableError.duplicate_key(self._name, self._shown_key(rows, int(taken[0])))
        self._add(rows, keys)

    def _upsert(self, rows: pa.Table, write: Write) -> None:
        if not isinstance(write, KeyedUpsert):
            rows, keys = _last_of_each(rows, key_values(rows, self._schema.key))
            self._put(rows, keys, self._current(keys, rows))
        elif self._writes == 1 and write.seen is not None and write.seen.is_newest_of(self._generation):
            self._remove(write.places[write.places >= 0], None)
            self._add(rows, write.keys, write.places)
        else:
            self._put(rows, write.keys, self._current(write.keys, rows))

    def _put(self, rows: pa.Table, keys: Sequence[Hashable], current: Integers) -> None:
        """Make these the rows of their keys, which are at `current` now; equal rows stay where they are."""
        existing = (current >= 0).nonzero()[0]
        if len(existing):
            given = rows if len(existing) == rows.num_rows else rows.take(pa.array(existing))
            same = rows_equal(self._rows_at(current[existing]), given)
            changed = existing[~same]
            self._remove(current[changed], None)
            if same.any():
                wanted = _all_but(existing[same], len(keys))
                rows = rows.filter(pa.array(wanted))
                keys = [key for key, wants in zip(keys, wanted.tolist(), strict=True) if wants]
                current = current[wanted]
        self._add(rows, keys, current)

    def _delete_keys(self, rows: pa.Table) -> None:
        rows, keys = _last_of_each(rows, key_values(rows, self._schema.key))
        current = self._current(keys, rows)
        found = np.flatnonzero(current >= 0)
        self._remove(current[found], [keys[index] for index in found.tolist()])

    def _changes(self, rows: pa.Table) -> None:
        signs = self._signs(rows)
        plain = rows.drop_columns([CHANGE])
        if not self._schema.key:
            self._change_bag(self._conformed(plain), signs)
            return
        # A removal may carry no more than the key, so NOT NULL is held for the rows added only.
        conformed = conform(plain, table=self._name, schema=self._schema, check_nulls=False)
        keys = key_values(conformed, self._schema.key)
        last = np.arange(len(keys)) if len(set(keys)) == len(keys) else _last_places(keys)
        comes = signs[last] > 0
        if not comes.all():
            gone = last[~comes]
            self._delete_keys(conformed.select(list(self._schema.key)).take(pa.array(gone)))
        if comes.any():
            added = last[comes]
            upserted, upserted_keys = conformed, keys
            if len(added) < len(keys):
                upserted, upserted_keys = conformed.take(pa.array(added)), [keys[row] for row in added.tolist()]
            check_not_null(upserted, table=self._name, schema=self._schema)
            self._put(upserted, upserted_keys, self._current(upserted_keys, upserted))

    def _signs(self, rows: pa.Table) -> Integers:
        if CHANGE not in rows.column_names:
            raise TableError(f'changes for table "{self._name}" lack the column "{CHANGE}"', code="missing-column")
        column = rows.column(CHANGE)
        usable = pa.types.is_signed_integer(column.type) and not column.null_count
        if not usable or not np.isin(column.to_numpy(), (1, -1)).all():
            raise TableError(f'column "{CHANGE}" of table "{self._name}" takes 1 and -1 only', code="wrong-type")
        signs: Integers = column.cast(pa.int64()).to_numpy()
        return signs

    def _change_bag(self, rows: pa.Table, signs: Integers) -> None:
        """Add and remove rows by value, in their order; a removal that finds no row does nothing."""
        if not (signs < 0).any():
            self._add(rows, None)
            return
        hashes = row_hashes(rows)
        firsts = first_equal_rows(rows, hashes)
        order = np.argsort(firsts, kind="stable")
        begins, lengths = runs(firsts[order])
        group_of = np.repeat(np.arange(len(begins)), lengths)
        steps = signs[order].astype(np.int64)
        counts = np.cumsum(steps)
        lowest = np.minimum.reduceat(counts, begins) - (counts[begins] - steps[begins])
        # So many removals of a group find no row that was added before them, and take one that is there.
        taking = np.maximum(0, -lowest)
        first_rows = firsts[order[begins]]
        looking = np.flatnonzero(taking)
        found = self._equal_now(rows.take(pa.array(first_rows[looking])), hashes[first_rows[looking]], taking[looking])
        found_of = looking[found.rows]
        gone = np.bincount(found_of, minlength=len(begins))
        pending = np.add.reduceat(steps, begins) + taking
        # What is both removed and added again stays where it is.
        unchanged = np.minimum(pending, gone)
        self._remove(found.positions[_places_within(found_of) >= unchanged[found_of]], None)
        adding = np.flatnonzero(steps > 0)
        added = order[adding[_places_within(group_of[adding]) < (pending - unchanged)[group_of[adding]]]]
        self._add(rows.take(pa.array(np.sort(added))), None)

    def _equal_now(self, rows: pa.Table, hashes: Hashes, most: Integers) -> Pairs:
        """Of different rows: where rows that equal them are now, in their order, as many of each as `most` says."""
        index = self._generation.content_index()
        removed_by, gone = self._generation.removed.values(), self._removed

        def stays(positions: Integers) -> Mask:
            mask: Mask = (removed_by[positions] == ALIVE) & ~np.isin(positions, gone)
            return mask

        pairs = [index.pairs(hashes, stays)]
        if self._staged:
            of_staged = np.concatenate([row_hashes(staged) for staged in self._staged])
            staged = HashIndex.of(of_staged, np.arange(self._base, self._base + len(of_staged))).find(hashes)
            stay = ~np.isin(staged.positions, gone)
            pairs.append(Pairs(staged.rows[stay], staged.positions[stay]))
        found = np.concatenate([pair.rows for pair in pairs])
        positions = np.concatenate([pair.positions for pair in pairs])
        order = np.argsort(found, kind="stable")
        candidates = Pairs(found[order], positions[order])
        chosen = _as_many(candidates, most)
        if self._are_equal(chosen, rows).all():
            return chosen
        # Other rows share a hash with some of them.
        equal = self._are_equal(candidates, rows)
        return _as_many(Pairs(candidates.rows[equal], candidates.positions[equal]), most)

    def _are_equal(self, pairs: Pairs, rows: pa.Table) -> Mask:
        return rows_equal(self._rows_at(pairs.positions), rows.take(pa.array(pairs.rows)))

    def _replace_keyed(self, rows: pa.Table, scope: Scope | None) -> None:
        keys = key_values(rows, self._schema.key)
        rows, keys = _last_of_each(rows, keys)
        current = self._current(keys, rows)
        present = self._present(scope)
        leaving = present[~np.isin(present, current[current >= 0])]
        self._remove(leaving, key_values(self._rows_at(leaving, self._schema.key), self._schema.key))
        self._put(rows, keys, current)

    def _replace_bag(self, rows: pa.Table, scope: Scope | None) -> None:
        present = self._present(scope)
        same = match_rows(self._rows_at(present), rows)
        self._remove(present[_all_but(same.left, len(present))], None)
        self._add(rows.filter(pa.array(_all_but(same.right, rows.num_rows))), None)

    def _scoped(self, write: Write) -> pa.Table:
        rows = write.rows
        scope = write.scope
        if scope is not None:
            column = self._schema.column(scope.column)
            if all(name.lower() != column.name.lower() for name in rows.column_names):
                values = pa.array([scope.value] * rows.num_rows, type=column.type)
                rows = rows.append_column(column.name, values)
        return self._conformed(rows)

    def _present(self, scope: Scope | None) -> Integers:
        """Positions of the rows there are now (of the scope), ascending."""
        staged = np.arange(self._base, self._base + self._staged_rows)
        if scope is None:
            positions = np.concatenate((self._generation.alive_positions(), staged))
        else:
            column = self._schema.column(scope.column)
            normalise = key_normaliser([column.type])
            wanted = scope.value if normalise is None else normalise(scope.value)
            indexed = np.array(self._generation.index_on((column.name,)).find(wanted), dtype=np.int64)
            indexed = indexed[self._generation.removed.array[indexed] == ALIVE]
            values = key_values(self._rows_at(staged, [column.name]), [column.name])
            staged = staged[[value == wanted for value in values]] if len(staged) else staged
            positions = np.concatenate((indexed, staged))
        return positions[~np.isin(positions, self._removed)] if len(self._removed) else positions

    def _current(self, keys: Sequence[Hashable], rows: pa.Table) -> Integers:
        """Where the row of each key is now; -1 where there is none. The rows are those the keys were taken of."""
        positions = self._generation.positions_of_keys(keys, rows)
        for touched, at in self._unindexed:
            self._overlay.update(zip(touched, at.tolist(), strict=True))
        self._unindexed.clear()
        if self._overlay:
            staged = map(self._overlay.get, keys, positions.tolist())
            positions = np.fromiter(staged, dtype=np.int64, count=len(keys))
        return positions

    def _add(self, rows: pa.Table, keys: Sequence[Hashable] | None, olders: Integers | None = None) -> None:
        """`olders` are where rows of these keys are now, which are to be removed; -1 for nowhere."""
        if not rows.num_rows:
            return
        start = self._base + self._staged_rows
        if keys is not None:
            self._unindexed.append((keys, np.arange(start, start + rows.num_rows)))
        self._staged.append(rows)
        self._staged_keys.append(keys)
        self._staged_olders.append(olders)
        self._staged_rows += rows.num_rows

    def _remove(self, positions: Integers, keys: Sequence[Hashable] | None) -> None:
        """Without keys the caller adds rows of the same keys right after."""
        if not len(positions):
            return
        self._removed = np.concatenate((self._removed, positions))
        if keys is not None:
            self._unindexed.append((keys, np.full(len(keys), -1)))

    def _rows_at(self, positions: Integers, columns: Sequence[str] | None = None) -> pa.Table:
        if not self._staged or not len(positions) or positions.max() < self._base:
            return self._generation.chunks.take(positions, columns)
        chunks = self._generation.chunks
        for staged in self._staged:
            chunks = chunks.appended(staged)
        return chunks.take(positions, columns)

    def _conformed(self, rows: pa.Table) -> pa.Table:
        return conform(rows, table=self._name, schema=self._schema, stored=self._generation.schema)

    def _key_columns(self, rows: pa.Table) -> pa.Table:
        return conform(rows, table=self._name, schema=self._schema, columns=self._schema.key, check_nulls=False)

    def _shown_key(self, rows: pa.Table, row: int) -> Any:
        values = tuple(python_value(rows.column(name)[row]) for name in self._schema.key)
        return values[0] if len(values) == 1 else values

    def _empty(self) -> pa.Table:
        return self._generation.schema.empty_table()


def _last_of_each(rows: pa.Table, keys: list[Hashable]) -> tuple[pa.Table, list[Hashable]]:
    """The last row of every key."""
    if len(set(keys)) == len(keys):
        return rows, keys
    kept = _last_places(keys)
    return rows.take(pa.array(kept)), [keys[row] for row in kept.tolist()]


def _last_places(keys: Sequence[Hashable]) -> Integers:
    """Where each different key stands last, in order."""
    last = dict(zip(keys, range(len(keys)), strict=True)).values()
    return np.sort(np.fromiter(last, dtype=np.int64, count=len(last)))


def _places_within(groups: Integers) -> Integers:
    """For numbers of groups, those of a group one after another: the how manieth of its group each is."""
    begins, lengths = runs(groups)
    return np.arange(len(groups)) - np.repeat(begins, lengths)


def _as_many(pairs: Pairs, most: Integers) -> Pairs:
    """The first pairs of each row, at most so many."""
    wanted = _places_within(pairs.rows) < most[pairs.rows]
    return Pairs(pairs.rows[wanted], pairs.positions[wanted])


def _all_but(indexes: Integers, length: int) -> Mask:
    mask = np.ones(length, dtype=np.bool_)
    mask[indexes] = False
    return mask
