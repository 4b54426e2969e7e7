"""All pages of an HTTP resource: by links, by a cursor, or by number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from velostream.errors import Category, OptionError, SourceError
from velostream.model.http import Answer, HttpClient
from velostream.model.options import Option, Options, OptionType
from velostream.model.path import Path
from velostream.sources.http_records import Body, BodyRules, path_of, values_at

PAGING_OPTIONS: tuple[Option, ...] = (
    Option("http.method", "method of the request", OptionType.CHOICE, "get", ("get", "post")),
    Option("http.body", "body of the request, for http.method = post"),
    Option("http.paging", "how to come to further pages", OptionType.CHOICE, None, ("link", "cursor", "page")),
    Option("http.cursor.field", "where an answer holds the cursor of the next page, as in meta.next"),
    Option("http.cursor.param", "parameter that takes the cursor", OptionType.TEXT, "cursor"),
    Option("http.page.param", "parameter that takes the number of the page", OptionType.TEXT, "page"),
    Option("http.page.first", "number of the first page", OptionType.INTEGER, "1"),
    Option("http.page.size", "records per page; a page with fewer is the last one", OptionType.INTEGER),
    Option("http.page.size.param", "parameter that takes the size of a page", OptionType.TEXT, "per_page"),
)
_MOST_EMPTY_PAGES = 100
"""In a row. Servers that select after they have cut pages give some; nobody gives that many."""


@dataclass(frozen=True, slots=True)
class _Request:
    """What to ask for: another address, or the same one with other parameters."""

    url: str | None = None
    parameters: tuple[tuple[str, str], ...] = ()


class Pages:
    """The pages of one resource, asked for one after the other."""

    def __init__(self, client: HttpClient, settings: Options, rules: BodyRules) -> None:
        self._client = client
        self._rules = rules
        self._method = (settings.text("http.method") or "get").upper()
        body = settings.text("http.body")
        self._body = None if body is None else body.encode()
        self.paging = (settings.text("http.paging") or "").lower() or None
        self._size = settings.integer("http.page.size")
        self._size_parameter = settings.text("http.page.size.param") or "per_page"
        self._page_parameter = settings.text("http.page.param") or "page"
        self._first_page = settings.integer("http.page.first") or 0
        self._cursor_parameter = settings.text("http.cursor.param") or "cursor"
        self._cursor_field = self._cursor_path(settings.text("http.cursor.field"))

    def first(self, headers: Mapping[str, str]) -> Answer:
        """The answer to the first request, which may be that nothing has changed."""
        return self._ask(self._first_request(), headers)

    def bodies(self, answer: Answer | None = None) -> Iterator[Body]:
        """All pages; the first is `answer`, where it was asked for already."""
        request = self._first_request()
        asked: set[_Request] = set()
        number = 1
        before: Body | None = None
        empty = 0
        while True:
            found = answer if answer is not None and before is None else self._ask(request, {})
            # A link may lead back to what was asked for under another address.
            asked |= {request, _Request(found.url)}
            body = Body(found, self._rules, page=number)
            if before is not None and body.answer.body == before.answer.body and body.count:
                raise self._goes_round(f"page {number} is page {number - 1}")
            yield body
            following = self._following(body, number)
            if following is None or (following in asked and not body.count):
                # A page without records that leads back says that there are no more.
                return
            empty = 0 if body.count else empty + 1
            if following in asked:
                raise self._goes_round(f"page {number} leads back to a page before it")
            if empty == _MOST_EMPTY_PAGES:
                raise self._goes_round(f"{empty} pages without records lead on and on")
            request, before = following, body
            number += 1

    def _ask(self, request: _Request, headers: Mapping[str, str]) -> Answer:
        return self._client.ask(
            method=self._method, url=request.url, parameters=request.parameters, headers=headers, body=self._body
        )

    def _first_request(self) -> _Request:
        sized = () if self._size is None else ((self._size_parameter, str(self._size)),)
        numbered = ((self._page_parameter, str(self._first_page)),) if self.paging == "page" else ()
        return _Request(parameters=(*sized, *numbered))

    def _following(self, body: Body, number: int) -> _Request | None:
        match self.paging:
            case "link":
                return None if body.answer.next is None else _Request(body.answer.next)
            case "page":
                if not body.count or (self._size is not None and body.count < self._size):
                    return None
                page = (self._page_parameter, str(self._first_page + number))
                return _Request(parameters=(*self._first_request().parameters[:-1], page))
            case "cursor":
                return self._after_cursor(body)
            case _:
                return None

    def _after_cursor(self, body: Body) -> _Request | None:
        found = [] if self._cursor_field is None else values_at(body.document, self._cursor_field)
        cursor = found[0] if found else None
        if cursor is None or cursor is False or cursor == "":
            return None
        text = str(cursor)
        if text.startswith(("http://", "https://")):
            return _Request(text)
        return _Request(parameters=(*self._first_request().parameters, (self._cursor_parameter, text)))

    def _cursor_path(self, written: str | None) -> Path | None:
        if self.paging == "cursor" and written is None:
            raise OptionError(
                'option "http.cursor.field" is missing',
                detail="http.paging is cursor",
                hint="WITH ('http.cursor.field' = 'meta.next_cursor')",
                code="missing-option",
            )
        return None if written is None else path_of(written)

    def _goes_round(self, reason: str) -> SourceError:
        return SourceError(
            f'http server at "{self._client.address.shown}" has no last page',
            detail=reason,
            hint="check http.page.param, http.cursor.param and http.records: the server doesn't seem to know them",
            code="paging-goes-round",
            category=Category.CONFIGURATION,
        )
