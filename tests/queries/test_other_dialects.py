"""What users of other systems type: each statement is refused at its place, with what to write instead.

A line of the table is a statement, the words that the error marks, and how its message begins.
"""

from __future__ import annotations

import pyarrow as pa
import pytest

from streamjoin.adhoc import Stream
from streamjoin.model.errors import QueryError
from streamjoin.queries.language.sql import parse

TRADES = {"sym": pa.string(), "px": pa.float64(), "qty": pa.int64(), "tags": pa.list_(pa.string()), "js": pa.string()}
STREAMS = [
    Stream("trades", pa.schema({**TRADES, "info": pa.struct({"a": pa.int64()}), "ts": pa.timestamp("us")}), "ts"),
    Stream("quotes", pa.schema({"sym": pa.string(), "bid": pa.float64(), "at": pa.timestamp("us")}), "at"),
]
TABLE = """
SELECT * FROM trades t WHERE EXISTS (SELECT 1 FROM quotes q WHERE q.sym = t.sym) | EXISTS | a subquery is not allowed
SELECT * FROM trades t WHERE t.sym IN (SELECT q.sym FROM quotes q) | SELECT | a subquery is not allowed in an ad-hoc
SELECT * FROM trades t WHERE t.px > ALL (SELECT bid FROM quotes) | ALL | a subquery is not allowed in an ad-hoc
SELECT * FROM trades t WHERE t.px = ANY (SELECT bid FROM quotes) | ANY | ANY is not allowed in an ad-hoc query: write
SELECT (SELECT max(bid) FROM quotes) AS m FROM trades t | SELECT | a subquery is not allowed in an ad-hoc query: join
SELECT * FROM (SELECT * FROM trades) t | ( | a subquery is not allowed here: name a stream, and write its conditions
SELECT t.px, t.* FROM trades t, quotes q WHERE t.sym = q.sym | , | a comma between streams is not allowed here: write
SELECT t.px FROM trades t INNER JOIN quotes q ON t.sym = q.sym | quotes q | WITHIN is missing: say how far apart
SELECT t.px FROM trades t JOIN quotes q USING (sym) | quotes q | WITHIN is missing: say how far apart joined tuples
SELECT t.px FROM trades t JOIN quotes q WITHIN 3 SECONDS USING (sym) | USING | USING is not allowed here: write the
SELECT t.px FROM trades t NATURAL JOIN quotes q | NATURAL | NATURAL is not allowed here: write the condition after ON
SELECT t.px FROM trades t CROSS JOIN quotes q | CROSS | a cross join is not allowed here: write JOIN ... WITHIN ...
SELECT t.px FROM trades t CROSS JOIN UNNEST(t.tags) AS u | CROSS | UNNEST is not allowed here: make rows of lists
SELECT t.px FROM trades t, UNNEST(t.tags) AS u | UNNEST | UNNEST is not allowed here: make rows of lists before the
SELECT t.px FROM trades t LATERAL VIEW explode(tags) AS tag | LATERAL | LATERAL is not allowed here: make rows of
SELECT t.px FROM trades t JOIN LATERAL (SELECT 1) q ON true | LATERAL | LATERAL is not allowed here: make rows of
SELECT t.px FROM trades t ASOF JOIN quotes q ON t.sym = q.sym | quotes q | MATCH_CONDITION is missing: ASOF JOIN q
SELECT t.px FROM trades t ASOF JOIN quotes q ON t.sym = q.sym AND t.ts >= q.at | quotes q | MATCH_CONDITION is
SELECT t.px FROM trades t ASOF JOIN quotes q USING (sym, ts) | quotes q | MATCH_CONDITION is missing: ASOF JOIN q
SELECT t.px FROM trades t LT JOIN quotes q ON (sym) | LT | LT is not allowed here: LT JOIN leaves out equal times:
SELECT t.px FROM trades t SPLICE JOIN quotes q ON (sym) | SPLICE | SPLICE is not allowed here: create two queries
SELECT t.px FROM trades t ASOF JOIN quotes q ON (sym) | quotes q | MATCH_CONDITION is missing: ASOF JOIN q
SELECT t.px FROM trades LATEST ON ts PARTITION BY sym | LATEST | LATEST is not allowed here: a query's result is a
SELECT TOP 10 px FROM trades | TOP | TOP is not allowed here: a query's result is a stream without an end
SELECT px FROM trades UNION SELECT bid FROM quotes | UNION | UNION is not allowed here, as it would keep every row
SELECT px FROM trades UNION DISTINCT SELECT bid FROM quotes | UNION | UNION is not allowed here, as it would keep every
SELECT px FROM trades UNION ALL BY NAME SELECT bid FROM quotes | BY | UNION ALL goes by position: leave BY NAME out
SELECT px FROM trades UNION ALL (SELECT bid FROM quotes) | ( | write the SELECT after UNION ALL without parentheses
SELECT px FROM trades UNION ALL SELECT bid FROM quotes ORDER BY px | ORDER BY | ORDER BY is not allowed here: a query's
SELECT px FROM trades EXCEPT SELECT bid FROM quotes | EXCEPT | EXCEPT is not allowed here: write ANTI JOIN b WITHIN 3
SELECT px FROM trades INTERSECT SELECT bid FROM quotes | INTERSECT | INTERSECT is not allowed here: write SEMI JOIN b
(SELECT px FROM trades) UNION ALL (SELECT bid FROM quotes) | ( | ( is not allowed here: write the query without
WITH x AS (SELECT * FROM trades) SELECT * FROM x | WITH | WITH is not allowed here: a query reads streams, not
WITH RECURSIVE x AS (SELECT 1) SELECT * FROM x | WITH | WITH is not allowed here: a query reads streams, not
SELECT * INTO other FROM trades | INTO | INTO is not allowed here: the result goes to the query's sink
INSERT INTO sink SELECT * FROM trades | INSERT | INSERT is not allowed here: the sink of a query is given beside its
CREATE TABLE x AS SELECT * FROM trades | CREATE | CREATE is not allowed here: give the SELECT alone:
CREATE VIEW x AS SELECT * FROM trades | CREATE | CREATE is not allowed here: give the SELECT alone:
CREATE MATERIALIZED VIEW x AS SELECT * FROM trades | CREATE | CREATE is not allowed here: give the SELECT alone:
COPY (SELECT * FROM trades) TO 'x.parquet' | COPY | COPY is not allowed here: the sink of a query is given beside its
EXPLAIN SELECT * FROM trades | EXPLAIN | EXPLAIN is not allowed here: engine.preview(sql), or `streamjoin query add
DESCRIBE trades | DESCRIBE | DESCRIBE is not allowed here: engine.streams, or `streamjoin streams`, lists the streams
SHOW TABLES | SHOW | SHOW is not allowed here: engine.streams, or `streamjoin streams`, lists the streams with their
DELETE FROM trades | DELETE | DELETE is not allowed here: a stream only grows, and so does a query's result
FROM trades | FROM | FROM is not allowed here: write SELECT * FROM ...
FROM trades SELECT px | FROM | FROM is not allowed here: write SELECT * FROM ...
VALUES (1, 2) | VALUES | a query starts with SELECT: SELECT ... FROM a [JOIN b WITHIN 3 SECONDS ON a.k = b.k] [JOIN
SELECT px FROM trades EMIT CHANGES | EMIT | EMIT is not allowed here: a row comes out once, when nothing can change
SELECT px FROM trades EMIT STREAM | EMIT | EMIT is not allowed here: a row comes out once, when nothing can change it
SELECT STREAM px FROM trades | STREAM | no stream of this query has a column 'STREAM'; there are: sym, px, qty, tags,
SELECT px FROM TABLE(TUMBLE(TABLE trades, DESCRIPTOR(ts), INTERVAL '1' MINUTE)) | TABLE | windows of time are not
SELECT sym FROM trades WINDOW TUMBLING (SIZE 1 HOUR) GROUP BY sym | WINDOW | WINDOW is not allowed here: each join has
SELECT sym, first_value(px) AS f FROM trades GROUP BY sym, TUMBLE(ts, 5) | 5 | this is no length of a window: a length
SELECT first_value(px) AS f FROM trades GROUP BY HOUR | first_value(px | FIRST_VALUE is not allowed: write ARG_MIN
SELECT list(px) AS f FROM trades GROUP BY HOUR | list(px | LIST is not allowed: an aggregate gives one value
SELECT mode(px) AS f FROM trades GROUP BY HOUR | mode(px | the aggregate MODE is not offered; there are: COUNT
SELECT approx_count_distinct(px) AS f FROM trades GROUP BY HOUR | approx_count_distinct(px | APPROX_DISTINCT is not
SELECT TUMBLE_START(ts) AS f FROM trades GROUP BY HOUR | TUMBLE_START(ts | TUMBLE_START is not allowed: write
SELECT sum(px) AS f FROM trades GROUP BY ROLLUP(sym), HOUR | ROLLUP(sym) | ROLLUP is not allowed: create one query for
SELECT sum(px) AS f FROM trades GROUP BY ALL | ALL | GROUP BY ALL is not allowed: name the keys, and the window of time
SELECT px AS f FROM trades GROUP BY time_bucket('1h', ts) | time_bucket('1h', ts | TIME_BUCKET
SELECT px FROM trades TABLESAMPLE 10 PERCENT | TABLESAMPLE | TABLESAMPLE is not allowed here: write a condition, such
SELECT px FROM trades USING SAMPLE 10 | USING | USING SAMPLE is not allowed here: write a condition, such as WHERE
SELECT px FROM read_parquet('x.parquet') | read_parquet | a table function is not allowed here: name a stream; files
SELECT px FROM 'x.parquet' | 'x.parquet' | a stream needs a name here, not "'x.parquet'"; put an odd name in double
SELECT px FROM main.trades | . | a stream has a plain name, without a catalog or database before it
SELECT * EXCLUDE (px) FROM trades | * EXCLUDE (px) | * is all columns: write those that you want, each with its name
SELECT * EXCEPT (px) FROM trades | EXCEPT | * is all columns: write those that you want, each with its name
SELECT * REPLACE (px + 1 AS px) FROM trades | * REPLACE (px + 1 AS px) | * is all columns: write those that you want,
SELECT COLUMNS('p.*') FROM trades | COLUMNS('p.*' | COLUMNS is not allowed: write the columns that you want, each
SELECT px FROM trades PIVOT (sum(px) FOR sym IN ('A')) | PIVOT | PIVOT is not allowed here: write a column for each
SELECT px FROM trades MATCH_RECOGNIZE (PARTITION BY sym) | MATCH_RECOGNIZE | MATCH_RECOGNIZE is not allowed here:
SELECT px FROM trades PREWHERE px > 1 | PREWHERE | PREWHERE is not allowed here: write WHERE
SELECT px FROM trades WHERE sym ~ 'A.*' | ~ | this operator is not allowed in an ad-hoc query: write
SELECT px FROM trades WHERE sym !~ 'A.*' | ! | this operator is not allowed in an ad-hoc query: write
SELECT px FROM trades WHERE sym SIMILAR TO 'A.*' | sym SIMILAR TO 'A.*' | this operator is not allowed in an ad-hoc
SELECT px FROM trades WHERE sym GLOB 'A*' | sym GLOB 'A*' | this operator is not allowed in an ad-hoc query: write
SELECT px FROM trades WHERE sym = "A" | "A" | no stream of this query has a column 'A'; there are: sym, px, qty,
SELECT px FROM trades WHERE sym LIKE ANY ('A%', 'B%') | 'A%', 'B%' | LIKE takes a string literal as its pattern
SELECT px FROM trades WHERE px IS NAN | px IS NAN | IS takes [NOT] NULL, TRUE, FALSE or [NOT] DISTINCT FROM
SELECT px FROM trades WHERE isnan(px) | isnan(px | IS_NAN is not allowed: NaN is NULL here, so write x IS NULL
SELECT px FROM trades WHERE (sym, px) IN (('A', 1)) | sym, px | a list of values is only allowed after IN
SELECT px FROM trades WHERE px BETWEEN SYMMETRIC 2 AND 1 | px BETWEEN SYMMETRIC 2 AND 1 | BETWEEN takes no argument
SELECT px FROM trades WHERE ts > now() - INTERVAL '1 hour' | now | NOW is not allowed: a row comes out the same
SELECT px FROM trades WHERE ts > current_timestamp | ts > current_timestamp | CURRENT_TIMESTAMP is not allowed: a row
SELECT px FROM trades WHERE ts IN '2024-01-01' | '2024-01-01' | IN takes a list of literals in parentheses
SELECT px FROM trades WHERE ts > '2024-01-01' | ts > '2024-01-01' | can't compare trades.ts (timestamp[us]) with
SELECT px FROM trades WHERE ts > ago(1h) | h | expected ')' after 'h'
SELECT px FROM trades WHERE ts > dateadd('d', -1, now()) | dateadd('d', -1, now | DATEADD is not allowed: write x +
SELECT px // 2 AS h FROM trades | / | // is not allowed: write FLOOR(x / y)
SELECT px ^ 2 AS h FROM trades | ^ | ^ is not allowed: write POWER(x, y)
SELECT px ** 2 AS h FROM trades | 2 | ** is not allowed: write POWER(x, y)
SELECT px MOD 2 AS h FROM trades | MOD | MOD is not allowed between two values: write x % y
SELECT qty & 1 AS h FROM trades | qty & 1 | this operator is not allowed; allowed: + - * / %, comparisons, AND, OR
SELECT qty << 1 AS h FROM trades | < | '<' follows a comparison; join them with AND, or add parentheses
SELECT qty DIV 2 AS h FROM trades | qty DIV 2 | DIV is not allowed: write FLOOR(x / y)
SELECT tags[1] AS h FROM trades | tags[1 | a field of a list, a map or a struct can't be read in an ad-hoc query:
SELECT info.a FROM trades | info.a | unknown stream or alias 'info'; here are: trades
SELECT t.info.a AS a FROM trades t | t.info.a | a column has one qualifier, not more: write qualifier.name
SELECT js:a AS a FROM trades | : | a field of a list, a map or a struct can't be read in an ad-hoc query: make it a
SELECT js['a'] AS a FROM trades | js['a' | a field of a list, a map or a struct can't be read in an ad-hoc query:
SELECT list_contains(tags, 'x') AS a FROM trades | list_contains(tags, 'x' | LIST_CONTAINS is not allowed: lists,
SELECT array_length(tags) AS a FROM trades | array_length(tags | ARRAY_SIZE is not allowed: lists, maps and structs
SELECT struct_pack(a := 1) AS a FROM trades | struct_pack(a := 1 | STRUCT_PACK is not allowed: lists, maps and
SELECT {'a': 1} AS a FROM trades | { | braces are not allowed in an ad-hoc query: a parameter is written :name
SELECT [1, 2] AS a FROM trades | 1 | a list is written in parentheses, and only after IN
SELECT map {'a': 1} AS a FROM trades | { | braces are not allowed in an ad-hoc query: a parameter is written :name
SELECT x -> x + 1 AS a FROM trades | x | no stream of this query has a column 'x'; did you mean px?
SELECT nvl2(px, 1, 0) AS a FROM trades | nvl2(px, 1, 0 | NVL2 is not allowed: write CASE WHEN x IS NULL THEN y ELSE z
SELECT decode(sym, 'A', 1, 0) AS a FROM trades | sym, 'A', 1, 0 | DECODE_CASE is not allowed: write CASE WHEN x IS
SELECT isnull(px, 0) AS a FROM trades | isnull(px, 0 | ISNULL is not allowed: write CASE WHEN x IS NULL THEN y ELSE z
SELECT zeroifnull(px) AS a FROM trades | zeroifnull(px | ZEROIFNULL is not allowed: write CASE WHEN x IS NULL THEN y
SELECT to_char(ts, 'YYYY') AS a FROM trades | to_char(ts, 'YYYY' | TO_CHAR is not allowed: CAST(x AS VARCHAR) writes
SELECT strftime(ts, '%Y') AS a FROM trades | strftime(ts, '%Y' | STRFTIME is not allowed: CAST(x AS VARCHAR) writes a
SELECT date_format(ts, 'yyyy') AS a FROM trades | date_format(ts, 'yyyy' | DATE_FORMAT is not allowed: CAST(x AS
SELECT date_diff('second', ts, ts) AS a FROM trades | date_diff('second', ts | DATEDIFF is not allowed: subtract:
SELECT age(ts) AS a FROM trades | age(ts | AGE is not allowed: subtract: EPOCH(b.ts - a.ts) are the seconds between
SELECT floor(ts TO MINUTE) AS a FROM trades | ts | FLOOR takes no argument or option 'TO' here
SELECT timestamp_floor('1m', ts) AS a FROM trades | timestamp_floor('1m', ts | TIMESTAMP_FLOOR is not allowed: write
SELECT toStartOfMinute(ts) AS a FROM trades | toStartOfMinute(ts | TOSTARTOFMINUTE is not allowed: write
SELECT ts AT TIME ZONE 'UTC' AS a FROM trades | ts AT TIME ZONE 'UTC' | AT TIME ZONE is not allowed: times with a
SELECT convert_timezone('UTC', ts) AS a FROM trades | convert_timezone('UTC', ts | CONVERT_TIMEZONE is not allowed:
SELECT CAST(px AS HUGEINT) AS d FROM trades | px | can't cast to INT128; write one of: BOOLEAN, TINYINT, SMALLINT,
SELECT px::money AS d FROM trades | px | can't cast to USERDEFINED; write one of: BOOLEAN, TINYINT, SMALLINT,
SELECT try(px) AS d FROM trades | try(px | TRY is not allowed: write TRY_CAST(x AS type); no other function fails
SELECT uuid() AS a FROM trades | uuid | UUID is not allowed: a row comes out the same whenever it is computed
SELECT random() AS a FROM trades | random | RAND is not allowed: a row comes out the same whenever it is computed
SELECT hash(sym) AS a FROM trades | hash(sym | HASH is not allowed: compare the values themselves
SELECT md5(sym) AS a FROM trades | md5(sym | MD5 is not allowed: compare the values themselves
SELECT format('{}', px) AS a FROM trades | format('{}', px | FORMAT is not allowed: write a || '-' || b
SELECT concat_ws('-', sym, sym) AS a FROM trades | concat_ws('-', sym, sym | CONCAT_WS is not allowed: write a || '-'
SELECT initcap(sym) AS a FROM trades | sym | INITCAP is not allowed: make it a column before the join
SELECT translate(sym, 'a', 'b') AS a FROM trades | translate(sym, 'a', 'b' | TRANSLATE is not allowed: make it a column
SELECT repeat(sym, 5) AS a FROM trades | repeat(sym, 5 | REPEAT is not allowed: make it a column before the join
SELECT ascii(sym) AS a FROM trades | ascii(sym | ASCII is not allowed: make it a column before the join
SELECT regexp_split_to_array(sym, ',') AS a FROM trades | regexp_split_to_array(sym, ',' | REGEXP_SPLIT_TO_ARRAY is
SELECT log(px) AS a FROM trades | log(px | databases disagree about the base of LOG: write LN(x), LOG2(x) or LOG10(x)
SELECT cbrt(px) AS a FROM trades | cbrt(px | CBRT is not allowed: write SIGN(x) * POWER(ABS(x), 1.0 / 3)
SELECT px AS "px" FROM trades WHERE px > :p | :p | :p has no value: give parameters={'p': ...}, or write the value
SELECT px FROM trades WHERE px > ? | ? | a parameter has a name: write :sym and give parameters={'sym': ...}, or
SELECT px FROM trades WHERE px > $1 | $1 | a parameter has a name: write :sym and give parameters={'sym': ...}, or
SELECT px FROM trades WHERE px > @p | @ | a parameter has a name: write :sym and give parameters={'sym': ...}, or
SELECT px FROM trades WHERE px > ${p} | $ | a parameter has a name: write :sym and give parameters={'sym': ...}, or
SELECT px FROM trades WHERE px > %s | s | a parameter has a name: write :name, and give its value beside the text
SELECT px FROM trades WHERE px > {p} | { | braces are not allowed in an ad-hoc query: a parameter is written :name
SELECT t.px FROM trades t JOIN quotes q WITHIN (3 SECONDS) ON t.sym = q.sym | ( | a window reaches both ways: write
SELECT t.px FROM trades t JOIN quotes q ON t.sym = q.sym WITHIN 3 SECONDS | WITHIN | WITHIN comes before ON: JOIN
SELECT px + 1 FROM trades | px + 1 | an expression needs a name: add AS and a name
SELECT px FROM trades WHERE sym <> ALL ('A') | ALL ('A' | ALL is not allowed: write x NOT IN (1, 2), or x IN (1, 2)
SELECT px FROM trades WHERE 'a' IN tags | tags | IN takes a list of literals in parentheses
SELECT t.px FROM trades t FULL JOIN quotes q ON FALSE | quotes q | WITHIN is missing: say how far apart joined tuples
SELECT t.px FROM trades t POSITIONAL JOIN quotes q | POSITIONAL | POSITIONAL is not allowed here: tuples of streams
SELECT t.px FROM trades t LEFT SEMI JOIN quotes q ON t.sym = q.sym | quotes q | WITHIN is missing: say how far apart
SELECT t.px FROM trades t OUTER APPLY (SELECT 1) q | APPLY | APPLY is not allowed here: make rows of lists before the
SELECT px FROM trades UNPIVOT (v FOR n IN (px, qty)) | UNPIVOT | UNPIVOT is not allowed here: write a column for each
SELECT px FROM trades WHERE sym <> ANY ('A', 'B') | ANY | ANY is not allowed in an ad-hoc query: write x IN (1, 2),
SELECT /*+ BROADCAST(q) */ px FROM trades | /*+ BROADCAST(q) */ | a hint is not allowed here: leave it out
SELECT ALL px FROM trades | ALL | leave ALL out: SELECT gives all rows
SELECT t.px FROM trades t JOIN quotes q WITHIN 1 HOUR ON t.sym = q.sym EMIT CHANGES | EMIT | EMIT is not allowed here: a
SELECT t.px FROM trades t JOIN quotes q WITHIN (0 SECONDS, 1 HOUR) ON t.sym = q.sym | ( | a window reaches both ways:
SELECT t.px FROM trades t JOIN quotes q WITHIN 7 DAYS GRACE PERIOD 1 DAY ON t.sym = q.sym | GRACE | GRACE is not allowed
SELECT t.px FROM trades t ANY LEFT JOIN quotes q ON t.sym = q.sym | ANY | ANY is not allowed here: a join gives every
SELECT t.px FROM trades t HORIZON JOIN quotes q ON (sym) | HORIZON | HORIZON is not allowed here: write one WINDOW JOIN
SELECT px FROM trades PARTITION BY sym | PARTITION BY | PARTITION BY is not allowed here: the engine divides a query
SELECT px AS price FROM trades WHERE price > 5 | price | price is a name that SELECT gives, and WHERE chooses before:
SELECT px FROM trades WHERE sym == 'A' && px > 1 | && | && is not allowed: write AND, and OR in place of ||
SELECT quantile(0.9)(px) AS f FROM trades GROUP BY HOUR | ) | an aggregate takes its arguments in one list: write
SELECT count(*) AS n FROM trades GROUP BY HOP(ts, '1 minute', '10 s') | HOP(ts, '1 minute', '10 s') | windows of 10 s
SELECT sym, count(*) AS n FROM trades GROUP BY sym, window_start | GROUP BY | groups need a window of time, as a stream
SELECT CUMULATE(ts, '1 s', '1 h') AS f FROM trades GROUP BY HOUR | CUMULATE(ts, '1 s', '1 h') | windows that grow are
SELECT window, count(*) AS n FROM trades GROUP BY HOUR | window | window is not allowed: write window_start
SELECT WINDOWSTART AS w, count(*) AS n FROM trades GROUP BY HOUR | WINDOWSTART | WINDOWSTART is not allowed: write
SELECT window(ts, '1 hour').start AS w FROM trades GROUP BY HOUR | window(ts, '1 hour').start | a column is written
SELECT row_number() OVER (PARTITION BY sym ORDER BY px) AS r FROM trades GROUP BY HOUR | OVER | a window function is not
SELECT mean(px) AS f FROM trades GROUP BY HOUR | mean(px | MEAN is not allowed: write AVG(x)
SELECT vwap(px, qty) AS f FROM trades GROUP BY HOUR | vwap(px, qty | VWAP is not allowed: write SUM(price * amount)
SELECT percentile_approx(px, 0.5) AS f FROM trades GROUP BY HOUR | percentile_approx(px, 0.5 | PERCENTILE_APPROX is not
SELECT topk(px, 3) AS f FROM trades GROUP BY HOUR | topk(px, 3 | TOPK is not allowed: the first groups of each window
SELECT groupArray(px) AS f FROM trades GROUP BY HOUR | groupArray(px | GROUPARRAY is not allowed: an aggregate gives one
SELECT toFloat64(qty) AS f FROM trades | toFloat64(qty | TOFLOAT64 is not allowed: write CAST(x AS type), or TRY_CAST
SELECT multiIf(px > 1, 'a', 'b') AS f FROM trades | multiIf(px > 1, 'a', 'b' | MULTIIF is not allowed: write CASE WHEN a
SELECT to_date(ts) AS f FROM trades | to_date(ts | TO_DATE is not allowed: write CAST(x AS DATE), and TRY_CAST
SELECT lpad(sym, 5, '0') AS f FROM trades | lpad(sym, 5, '0' | PAD is not allowed: make it a column before the join
SELECT PROCTIME() AS f FROM trades | PROCTIME | PROCTIME is not allowed: a row comes out the same whenever it is
SELECT px FROM trades WHERE REGEXP(sym, 'A.*') | REGEXP(sym, 'A.*' | REGEXP is not allowed: write REGEXP_MATCHES
SELECT size(tags) AS f FROM trades | size(tags | SIZE is not allowed: lists, maps and structs can't be read
"""


@pytest.mark.parametrize("line", TABLE.strip().splitlines())
def test_the_message_says_what_to_write(line: str) -> None:
    text, marked, message = line.replace(" HOUR |", " TUMBLE(ts, INTERVAL '1' HOUR) |").split(" | ")
    with pytest.raises(QueryError) as told:
        parse(text, STREAMS)
    error = told.value
    assert error.message.startswith(message)
    assert text[error.column - 1 :][: error.length] == marked
