"""Declared columns of CREATE TABLE and CREATE STREAM."""

from __future__ import annotations

from sqlglot.tokenizer_core import TokenType

from velostream.errors import SqlError, ValidationError
from velostream.model.schema import Column, Schema
from velostream.model.types import parse_type
from velostream.sql.queries import QueryGrammar
from velostream.sql.statements import Name


class DeclarationGrammar(QueryGrammar):
    """Reads `(id BIGINT PRIMARY KEY, price DECIMAL(10,2) NOT NULL, …, PRIMARY KEY (a, b))`."""

    def columns(self) -> Schema:
        """Declared columns after the opening bracket, and their key."""
        columns: dict[str, Column] = {}
        key: list[Name] = []
        while True:
            token = self._curr
            if self._match(TokenType.PRIMARY_KEY):
                if key:
                    raise self.refuse("the primary key is declared twice", token=token)
                key = self.name_list("a key column")
            else:
                column = self._column(key)
                if column.name.lower() in columns:
                    raise self.refuse(f'column "{column.name}" is declared twice', token=token)
                columns[column.name.lower()] = column
            if self._match(TokenType.R_PAREN):
                break
            if not self._match(TokenType.COMMA):
                raise self.refuse('expected "," or ")" after a column')
        seen: set[str] = set()
        for name in key:
            if name.text.lower() not in columns:
                raise self.text.error_at(f'key column "{name.text}" is not among the columns', place=name.place)
            if name.text.lower() in seen:
                raise self.text.error_at(f'key column "{name.text}" is named twice', place=name.place)
            seen.add(name.text.lower())
        return Schema(tuple(columns.values()), tuple(columns[name.text.lower()].name for name in key))

    def _column(self, key: list[Name]) -> Column:
        name = self.name("a column")
        type_at = self._curr
        text = self._type_text()
        try:
            type_ = parse_type(text)
        except SqlError as error:
            place = self.place(type_at)
            raise ValidationError(
                error.message,
                hint=error.hint,
                code=error.code,
                line=place.line,
                column=place.column,
                text=self.text.original,
                width=max(1, len(text)),
            ) from error
        nullable = True
        while True:
            if self._match_text_seq("NOT", "NULL"):
                nullable = False
            elif self._match(TokenType.PRIMARY_KEY):
                if key:
                    raise self.refuse(
                        "the primary key is declared twice",
                        token=self._prev,
                        hint="name several columns: PRIMARY KEY (a, b)",
                    )
                key.append(name)
            else:
                return Column(name.text, type_, nullable)

    def _type_text(self) -> str:
        first = self._curr
        depth = 0
        while self._curr:
            kind, text = self._curr.token_type, self._curr.text
            if depth == 0 and (kind in (TokenType.COMMA, TokenType.R_PAREN, TokenType.PRIMARY_KEY, TokenType.NOT)):
                break
            depth += (text in ("(", "<")) - (text in (")", ">"))
            self._advance()
        if self._curr is first:
            raise self.refuse("expected the type of the column")
        return self._written(first, self._prev)

    def name_list(self, what: str) -> list[Name]:
        """Names in brackets: `(a, b)`."""
        if not self._match(TokenType.L_PAREN):
            raise self.refuse('expected "("')
        names = [self.name(what)]
        while self._match(TokenType.COMMA):
            names.append(self.name(what))
        if not self._match(TokenType.R_PAREN):
            raise self.refuse('expected "," or ")"')
        return names
