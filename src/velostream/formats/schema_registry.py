"""The client of a schema registry: schemas by number, by the name of their subject, and new ones.

Speaks the REST interface of Confluent's registry. A schema that has a number never changes, so each is fetched once per
process.
"""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import quote

from velostream.errors import Category, SourceError, VelostreamError
from velostream.formats.base import RegistrySettings

_TIMEOUT_SECONDS = 10
_REFERENCE = ("name", "subject", "version")
_CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema as the registry keeps it."""

    text: str
    type: str = "AVRO"
    """`AVRO`, `JSON` or `PROTOBUF`."""
    references: tuple[tuple[str, str, int], ...] = ()
    """What it imports: name, subject and version each."""


def concerns_one_record(error: VelostreamError) -> bool:
    """Whether an error in reading a record by its registered schema is the record's fault: the schema it names isn't
    there, or is none of its format. Everything else is trouble of the registry, and no record's.
    """
    return error.code in ("unknown-schema", "unreadable-schema")


class SchemaRegistry:
    """One registry. Thread-safe: it holds nothing but an address and schemas that never change."""

    def __init__(self, settings: RegistrySettings) -> None:
        self._settings = settings
        self._by_number: dict[int, RegisteredSchema] = {}
        self._numbers: dict[tuple[str, RegisteredSchema], int] = {}

    def schema(self, number: int) -> RegisteredSchema:
        """The schema of that number; `SourceError` `unknown-schema` when there is none."""
        found = self._by_number.get(number)
        if found is None:
            found = _registered(self._request(f"schemas/ids/{number}", f"schema {number}"))
            self._by_number[number] = found
        return found

    def latest(self, subject: str) -> RegisteredSchema:
        """The newest schema of a subject; `SourceError` `unknown-schema` when it has none."""
        return _registered(self._request(f"subjects/{quote(subject, safe='')}/versions/latest", f'subject "{subject}"'))

    def referenced(self, subject: str, version: int) -> RegisteredSchema:
        """One version of a subject that another schema imports."""
        path = f"subjects/{quote(subject, safe='')}/versions/{version}"
        return _registered(self._request(path, f'version {version} of subject "{subject}"'))

    def register(self, subject: str, schema: RegisteredSchema) -> int:
        """The number of a schema under a subject, given to it now if it has none."""
        known = self._numbers.get((subject, schema))
        if known is not None:
            return known
        body: dict[str, Any] = {"schema": schema.text}
        if schema.type != "AVRO":
            body["schemaType"] = schema.type
        if schema.references:
            body["references"] = [dict(zip(_REFERENCE, found, strict=True)) for found in schema.references]
        path = f"subjects/{quote(subject, safe='')}/versions"
        number = int(self._request(path, f'subject "{subject}"', body)["id"])
        self._numbers[(subject, schema)] = number
        return number

    def _request(self, path: str, what: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        request = urllib.request.Request(  # noqa: S310 - the address is the user's own
            f"{self._settings.url}/{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Accept": _CONTENT_TYPE, "Content-Type": _CONTENT_TYPE} | self._credentials(),
        )
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as response:  # noqa: S310 - likewise
                answer: dict[str, Any] = json.loads(response.read())
        except urllib.error.HTTPError as error:
            with error:
                raise self._refused(what, error.code, error.read()) from error
        except (OSError, ValueError) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            raise self._unreachable(str(reason)) from error
        return answer

    def _credentials(self) -> dict[str, str]:
        if self._settings.username is None:
            return {}
        pair = f"{self._settings.username}:{self._settings.password or ''}"
        return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}

    def _unreachable(self, reason: str) -> SourceError:
        return SourceError(
            f'schema registry at "{self._settings.url}" can\'t be reached',
            detail=reason,
            hint="check the address in WITH ('schema.registry.url' = …) and that the registry runs",
            code="registry-unreachable",
            category=Category.NETWORK,
        )

    def _refused(self, what: str, status: int, body: bytes) -> SourceError:
        try:
            reason = str(json.loads(body)["message"])
        except (ValueError, KeyError, TypeError):
            reason = body[:200].decode("utf-8", "replace")
        where = self._settings.url
        detail = f"the registry answers {status}: {reason}"
        if status == 404:
            return SourceError(
                f'{what} is not in the schema registry at "{where}"',
                detail=detail,
                hint="check WITH ('schema.registry.url' = …) and the subject",
                code="unknown-schema",
                category=Category.MISSING,
            )
        if status in (401, 403):
            return SourceError(
                f'schema registry at "{where}" refuses the user',
                detail=detail,
                hint="WITH ('schema.registry.username' = …, 'schema.registry.password' = '${REGISTRY_PASSWORD}')",
                code="registry-refused",
                category=Category.AUTHENTICATION,
            )
        return SourceError(
            f'schema registry at "{where}" refuses {what}',
            detail=detail,
            hint="check that the schema is compatible with those of its subject",
            code="registry-refused",
            category=Category.NETWORK if status >= 500 else Category.CONFIGURATION,
        )


@cache
def registry_at(settings: RegistrySettings) -> SchemaRegistry:
    """The registry of those settings, one per process, so that its schemas are fetched once."""
    return SchemaRegistry(settings)


def _registered(answer: dict[str, Any]) -> RegisteredSchema:
    references = tuple(tuple(found[part] for part in _REFERENCE) for found in answer.get("references") or ())
    return RegisteredSchema(answer["schema"], answer.get("schemaType") or "AVRO", references)
