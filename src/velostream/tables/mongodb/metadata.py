"""What the database keeps about tables next to their rows: versions, epochs, and the changes of those followed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from velostream.model.change import Epoch
from velostream.model.schema import Schema
from velostream.tables.change_log import Changes

TABLES = "_velostream_tables"
EPOCHS = "_velostream_epochs"
CHANGES = "_velostream_changes"
RESERVED = (TABLES, EPOCHS, CHANGES)
_LARGEST_PART = 8_000_000
"""Bytes of one document of the log; a document may have 16 MB."""
_ALREADY_THERE = 48


@dataclass(frozen=True, slots=True)
class TableState:
    """One table's entry."""

    id: str
    incarnation: str
    """Another one once the table was dropped and made again."""
    version: int
    schema: Schema
    made: bool
    """We made the collection, and DROP removes it; else it is a user's."""
    followed_from: int | None = None
    """The oldest version whose changes since are kept; None: nobody follows the table."""

    @classmethod
    def of(cls, document: dict[str, Any]) -> TableState:
        return cls(
            id=document["id"],
            incarnation=document["incarnation"],
            version=document["version"],
            schema=Schema.from_json(document["schema"]),
            made=document["made"],
            followed_from=document["followed_from"],
        )

    def document(self, name: str) -> dict[str, Any]:
        return {
            "_id": name,
            "id": self.id,
            "incarnation": self.incarnation,
            "version": self.version,
            "schema": self.schema.to_json(),
            "made": self.made,
            "followed_from": self.followed_from,
            "attempts": 0,
        }


class Metadata:
    """The three collections; within the caller's transaction where it gives its session."""

    def __init__(self, database: Any) -> None:
        self._database = database
        self._tables = database[TABLES]
        self._epochs = database[EPOCHS]
        self._changes = database[CHANGES]

    def create(self) -> None:
        """Make them ahead of the first transaction, which can't."""
        from pymongo.errors import CollectionInvalid, OperationFailure

        there = set(self._database.list_collection_names())
        for name in RESERVED:
            if name in there:
                continue
            try:
                self._database.create_collection(name, check_exists=False)
            except CollectionInvalid:
                continue
            except OperationFailure as error:
                if error.code != _ALREADY_THERE:
                    raise
        self._changes.create_index([("table", 1), ("version", 1), ("part", 1)], unique=True)

    def state(self, name: str, *, session: Any = None) -> TableState | None:
        found = self._tables.find_one({"_id": name}, session=session)
        return None if found is None else TableState.of(found)

    def locked_state(self, name: str, *, session: Any) -> TableState | None:
        """The entry, which no other transaction can commit a change of before this one ends."""
        from pymongo import ReturnDocument

        found = self._tables.find_one_and_update(
            {"_id": name}, {"$inc": {"attempts": 1}}, session=session, return_document=ReturnDocument.AFTER
        )
        return None if found is None else TableState.of(found)

    def add(self, name: str, state: TableState) -> None:
        """Nothing happens when there is an entry already: another opening was faster."""
        self._tables.update_one({"_id": name}, {"$setOnInsert": state.document(name)}, upsert=True)

    def remove(self, name: str) -> None:
        self._changes.delete_many({"table": name})
        self._epochs.delete_many({"_id.table": name})
        self._tables.delete_one({"_id": name})

    def is_repeat(self, name: str, epoch: Epoch, *, session: Any) -> bool:
        found = self._epochs.find_one({"_id": {"table": name, "writer": epoch.writer}}, session=session)
        return found is not None and epoch.number <= found["number"]

    def record_epoch(self, name: str, epoch: Epoch, *, session: Any) -> None:
        self._epochs.replace_one(
            {"_id": {"table": name, "writer": epoch.writer}}, {"number": epoch.number}, upsert=True, session=session
        )

    def set_version(self, name: str, version: int, *, session: Any) -> None:
        self._tables.update_one({"_id": name}, {"$set": {"version": version}}, session=session)

    def follow(self, name: str) -> TableState | None:
        """Have commits logged from now on."""
        self._tables.update_one({"_id": name, "followed_from": None}, [{"$set": {"followed_from": "$version"}}])
        return self.state(name)

    def log(self, name: str, version: int, changes: Changes, *, session: Any) -> None:
        blob = changes.encode()
        parts = [blob[start : start + _LARGEST_PART] for start in range(0, len(blob), _LARGEST_PART)]
        self._changes.insert_many(
            [{"table": name, "version": version, "part": number, "changed": part} for number, part in enumerate(parts)],
            session=session,
        )

    def forget_before(self, name: str, version: int, *, session: Any) -> None:
        """Give up what led to versions up to this one."""
        self._changes.delete_many({"table": name, "version": {"$lte": version}}, session=session)
        self._tables.update_one({"_id": name}, {"$set": {"followed_from": version}}, session=session)

    def changes(self, name: str, since: int, until: int, *, session: Any) -> Sequence[Changes]:
        """What each commit after a version up to another one did."""
        found = self._changes.find({"table": name, "version": {"$gt": since, "$lte": until}}, session=session)
        blobs: dict[int, bytes] = {}
        for document in found.sort([("version", 1), ("part", 1)]):
            blobs[document["version"]] = blobs.get(document["version"], b"") + document["changed"]
        return [Changes.decode(blob) for blob in blobs.values()]
