"""Paths into values: wildcards such as `positions.*.shares`, `a.**.b`, `orders[*].amount`, `x[price > 100]`, and
`payload:a.b` into a VARIANT.
"""

from __future__ import annotations

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from velostream.errors import SqlError
from velostream.model.path import Field, parse_path
from velostream.sql.reading import Reader

WILDCARD_PATH = "wildcard_path"
"""Name of the call that stands for a wildcard path in a tree; its argument is the path as written."""

_COMPARISONS = frozenset((TokenType.EQ, TokenType.NEQ, TokenType.LT, TokenType.LTE, TokenType.GT, TokenType.GTE))

_VARIANTS = (exp.Column, exp.Dot, exp.Bracket, exp.Paren, exp.Anonymous)
"""What may hold a VARIANT before a colon."""


def is_wildcard_path(node: exp.Expr) -> bool:
    """Whether a node stands for a wildcard path."""
    return isinstance(node, exp.Anonymous) and str(node.name) == WILDCARD_PATH


def path_as_written(node: exp.Expr) -> str:
    """The text of a wildcard path."""
    return str(node.expressions[0].name)


def path_name(node: exp.Expr) -> str:
    """What a column of a path's values is called: as the last field that is named, as with a path of names alone."""
    written = path_as_written(node)
    try:
        steps = parse_path(written).steps
    except SqlError:
        return written
    return next((step.name for step in reversed(steps) if isinstance(step, Field)), written)


class PathGrammar(Reader):
    """Reads a column that is a wildcard path as a call of `wildcard_path`, before sqlglot sees it."""

    def _parse_atom(self) -> exp.Expr | None:
        if self._curr.token_type == TokenType.STAR and (path := self._wildcard_path()):
            return path
        return super()._parse_atom()

    def _parse_column(self) -> exp.Expr | None:
        if path := self._wildcard_path():
            return path
        column = super()._parse_column()
        if isinstance(column, _VARIANTS) and self._match(TokenType.COLON):
            return self._parse_column_ops(self._variant_path(column))
        return column

    def _variant_path(self, column: exp.Expr) -> exp.Expr:
        """`column:a.b[0]['c']` after its colon, as the call of `variant_get` it stands for."""
        path = "$" + self._variant_field()
        while self._match_set((TokenType.DOT, TokenType.L_BRACKET)):
            if self._prev.token_type == TokenType.DOT:
                path += self._variant_field()
                continue
            key = self._curr
            if not self._match_set((TokenType.NUMBER, TokenType.STRING)) or not self._match(TokenType.R_BRACKET):
                raise self.refuse("expected an index or a quoted field in brackets", token=key)
            path += f"[{key.text}]" if key.token_type == TokenType.NUMBER else _quoted_step(key.text)
        arguments = [column, exp.Literal.string(path), exp.Literal.string("variant")]
        return exp.Anonymous(this="variant_get", expressions=arguments)

    def _variant_field(self) -> str:
        token = self._curr
        field = self._parse_id_var(any_token=True)
        if not isinstance(field, exp.Identifier) or token.token_type in (TokenType.NUMBER, TokenType.STRING):
            raise self.refuse("expected a field of the VARIANT")
        return _quoted_step(field.name) if field.quoted else f".{field.name}"

    def _wildcard_path(self) -> exp.Expr | None:
        """`a.*.b`, `a.**.b`, `a[*].b`, `a[1:3]`, `a[price > 100]`: a call of `wildcard_path` with the text.

        A path of plain names and indexes is no such path: it is left to SQL's own rules.
        """
        first = self._curr
        end = self._wildcard_end()
        if end is None:
            return None
        self._advance(end - self._index)
        path = exp.Anonymous(this=WILDCARD_PATH, expressions=[exp.Literal.string(self._written(first, self._prev))])
        return path.update_positions(first)

    def _wildcard_end(self) -> int | None:
        """Index of the token after the path that begins here, if it holds a wildcard."""
        index = self._index
        wildcard = False
        if self._token_at(index).token_type == TokenType.STAR:
            index = self._after_stars(index)
            wildcard = self._token_at(index).token_type == TokenType.DOT
            if not wildcard:
                return None
        elif self._token_at(index).token_type in self.ID_VAR_TOKENS or self._curr.token_type == TokenType.IDENTIFIER:
            index += 1
        else:
            return None
        while True:
            token = self._token_at(index)
            if token.token_type == TokenType.DOT:
                following = self._token_at(index + 1)
                if following.token_type == TokenType.STAR:
                    after = self._after_stars(index + 1)
                    double = after - index > 2
                    continues = self._token_at(after).token_type in (TokenType.DOT, TokenType.L_BRACKET)
                    if not (double or continues):
                        return index if wildcard else None
                    wildcard, index = True, after
                elif following.token_type in (TokenType.VAR, TokenType.IDENTIFIER) or following.text[:1].isalpha():
                    index += 2
                else:
                    break
            elif token.token_type == TokenType.L_BRACKET:
                index, selects_many = self._bracket_end(index)
                wildcard = wildcard or selects_many
            else:
                break
        return index if wildcard else None

    def _token_at(self, index: int) -> Token:
        return self._tokens[index] if index < self._tokens_size else Token(TokenType.SENTINEL, "")

    def _after_stars(self, index: int) -> int:
        """Index after `*` or `**`; the two stars of `**` touch."""
        following = self._token_at(index + 1)
        double = following.token_type == TokenType.STAR and following.start == self._token_at(index).end + 1
        return index + 2 if double else index + 1

    def _bracket_end(self, index: int) -> tuple[int, bool]:
        """Index after the bracket that opens here, and whether it selects many: `[*]`, `[1:3]`, `[price > 100]`."""
        depth = 0
        selects_many = False
        start = index
        while index < self._tokens_size:
            kind = self._tokens[index].token_type
            if kind in (TokenType.L_BRACKET, TokenType.L_PAREN):
                depth += 1
            elif kind in (TokenType.R_BRACKET, TokenType.R_PAREN):
                depth -= 1
                if depth == 0:
                    return index + 1, selects_many
            elif depth == 1:
                star = kind == TokenType.STAR and index == start + 1
                following = self._token_at(index + 1).token_type
                slice_ = kind == TokenType.COLON and following in (
                    TokenType.NUMBER,
                    TokenType.DASH,
                    TokenType.R_BRACKET,
                )
                selects_many = selects_many or star or slice_ or kind in _COMPARISONS
            index += 1
        return index, False


def _quoted_step(name: str) -> str:
    return "['" + name.replace("'", "\\'") + "']"
