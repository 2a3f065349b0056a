"""What to write instead of what other systems have: statements, clauses and joins, by the words that they begin with.

Nothing here is part of the dialect. A word is looked at only where a text has failed already, so each may be a name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_STREAM: Final = "a query's result is a stream without an end"
_ASOF: Final = "ASOF JOIN q MATCH_CONDITION (t.ts >= q.ts) ON t.k = q.k"
_STATEMENTS: Final = {
    "INSERT COPY EXPORT": "the sink of a query is given beside its text, as in engine.create(sql, sink=...)",
    "CREATE": "give the SELECT alone: engine.create(sql, name) makes a query of it, and its sink a table or a topic",
    "EXPLAIN": "engine.preview(sql), or `streamjoin query add --dry-run`, shows what a query would share and cost",
    "DESCRIBE DESC SHOW": "engine.streams, or `streamjoin streams`, lists the streams with their columns",
    "UPDATE DELETE MERGE TRUNCATE UPSERT": "a stream only grows, and so does a query's result",
    "DROP": "engine.drop(name), or `streamjoin query drop`, ends a query",
    "SET PRAGMA USE": "settings are given to the engine: Engine(settings=Settings(...))",
    "FROM": "write SELECT * FROM ...",
    "(": "write the query without parentheses around it",
}
_CLAUSES: Final = {
    "LT": f"LT JOIN leaves out equal times: {_ASOF.replace('>=', '>')}",
    "SPLICE": "create two queries with ASOF LEFT JOIN, one from either side",
    "POSITIONAL": "tuples of streams have no common positions: write JOIN ... WITHIN ... ON with a condition",
    "SYSTEM_TIME": f"a lookup as of a tuple's time is {_ASOF}",
    "HORIZON": "write one WINDOW JOIN or ASOF JOIN for each horizon of a markout",
    "ANY": "a join gives every match: SEMI JOIN gives each left tuple that has one, ASOF JOIN one match for each",
    "GRACE": "how late a tuple may come is said where its stream is registered: register(..., lateness='1 minute')",
    "LATEST": f"{_STREAM} and has no last row; to look up the newest tuple of a key write {_ASOF}",
    "SAMPLE": "windows of time are GROUP BY TUMBLE(t.ts, INTERVAL '1' HOUR), tuples around each one a WINDOW JOIN",
    "EMIT": "a row comes out once, when nothing can change it any more: leave EMIT out",
    "TABLESAMPLE": "write a condition, such as WHERE t.id % 10 = 0",
    "PIVOT UNPIVOT": "write a column for each value, as in CASE WHEN t.sym = 'A' THEN t.px END AS a",
    "MATCH_RECOGNIZE": "join the stream with itself: FROM a x JOIN a y WITHIN 5 SECONDS ON x.k = y.k AND y.ts > x.ts",
    "PREWHERE": "write WHERE",
    "UNNEST EXPLODE LATERAL APPLY": "make rows of lists before the join: push one tuple for each element",
    "RETURNING SETTINGS FORMAT": f"{_STREAM}, and goes to the query's sink",
}


def _by_word(advice: dict[str, str]) -> dict[str, str]:
    return {word: text for words, text in advice.items() for word in words.split()}


_OF_STATEMENTS: Final = _by_word(_STATEMENTS)
_OF_CLAUSES: Final = _by_word(_CLAUSES)


def of_statement(word: str) -> str | None:
    """What to do instead of a statement that begins with a word."""
    advice = _OF_STATEMENTS.get(word.upper())
    return None if advice is None else f"{word.upper()} is not allowed here: {advice}"


def of_clause(words: Iterable[str]) -> str | None:
    """What to write instead of a clause, where one of these words begins it."""
    for word in words:
        if advice := _OF_CLAUSES.get(word.upper()):
            return f"{word.upper()} is not allowed here: {advice}"
    return None
