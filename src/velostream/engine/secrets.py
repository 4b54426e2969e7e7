"""Passwords: the one file that keeps what of a statement may not be shown."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from velostream.engine.directory import write_atomically
from velostream.errors import StateError
from velostream.model.confidential import concealed


class SecretFile:
    """Option values that hold passwords, by the id of their entry, in a file that only its owner can read.

    What stands in the catalog is their concealed form. Thread-safe.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._values: dict[str, dict[str, str]] = {}
        if path.exists():
            try:
                self._values = json.loads(path.read_bytes())
            except ValueError as error:
                raise StateError.corrupt(str(path), reason=str(error)) from error

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._values))

    def of(self, entry_id: str) -> Mapping[str, str]:
        return self._values.get(entry_id, {})

    def keep(self, entry_id: str, options: Mapping[str, str]) -> None:
        """Keep those of an entry's options whose concealed form is not all there is to know."""
        secret = {name: value for name, value in options.items() if concealed(name, value) != value}
        if secret:
            with self._lock:
                self._write({**self._values, entry_id: secret})

    def keep_only(self, values: Mapping[str, Mapping[str, str]]) -> None:
        """Keep these values and no others, by the ids of their entries."""
        with self._lock:
            fresh = {entry_id: dict(secret) for entry_id, secret in values.items()}
            if fresh != self._values:
                self._write(fresh)

    def forget(self, *entry_ids: str) -> None:
        with self._lock:
            kept = {known: values for known, values in self._values.items() if known not in entry_ids}
            if len(kept) < len(self._values):
                self._write(kept)

    def forget_all_but(self, entry_ids: Iterable[str]) -> None:
        """Remove what a crash left of entries that never came to be, or are gone."""
        self.forget(*(set(self._values) - set(entry_ids)))

    def _write(self, values: dict[str, dict[str, str]]) -> None:
        write_atomically(self._path, json.dumps(values).encode(), private=True)
        self._values = values
