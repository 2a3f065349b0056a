"""Error messages for SQL that a condition may not use.

The parser's nodes are identified by their class names and those of their bases, most specific first, so that
this table does not import the parser.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Final

from streamjoin.model.expression.aggregates import AGGREGATES
from streamjoin.model.expression.signatures import NAMES

CONDITION: Final = "a condition"
SUMMARY: Final = "a summary"
GROUPED: Final = "a grouped query"

REGEX: Final = (
    "this operator is not allowed in {where}: write regexp_matches(x, 'pattern'), or LIKE, with % for any text and _ "
    "for a character"
)
JSON: Final = (
    "a field of a list, a map or a struct can't be read in {where}: make it a column before the join, as `select` of a "
    "source does; of a JSON text write x ->> '$.a.b'"
)
PARAMETER: Final = "a parameter is not allowed: write the value itself"
_SAME: Final = "a row comes out the same whenever it is computed"
_FIXED: Final = "write x + INTERVAL '1 day'; an interval has a fixed length, so there are no months and years"
_WEEKDAY: Final = "databases count from different days; write EXTRACT(dow FROM x), where 0 is Sunday, or isodow"
_NESTED: Final = "lists, maps and structs can't be read; make what you need of them a column before the join"
_ZONE: Final = "times with a zone are read in UTC, and CAST(x AS TIMESTAMP) drops the zone"
_INSTEAD: Final = (
    ("NOW CURRENT_TIMESTAMP CURRENT_DATE CURRENT_TIME LOCALTIME LOCALTIMESTAMP GETDATE TODAY PROCTIME SYSDATE", _SAME),
    ("RANDOM RAND UUID GEN_RANDOM_UUID", _SAME),
    (
        "DATEDIFF DATE_DIFF TIMESTAMPDIFF TIMESTAMP_DIFF AGE",
        "subtract: EPOCH(b.ts - a.ts) are the seconds between them",
    ),
    ("DATEADD DATE_ADD DATE_SUB TIMESTAMPADD TIMESTAMP_ADD TIMESTAMP_SUB ADD_MONTHS", _FIXED),
    ("TO_CHAR STRFTIME DATE_FORMAT TIME_TO_STR", "CAST(x AS VARCHAR) writes a time, and EXTRACT gives its parts"),
    ("DAYNAME MONTHNAME", "EXTRACT(isodow FROM x) and EXTRACT(month FROM x) are numbers"),
    ("DAY_OF_WEEK DAYOFWEEK WEEKDAY", _WEEKDAY),
    (
        "UNIX_TIMESTAMP UNIX_SECONDS UNIX_MILLIS TO_UNIXTIME EPOCH_US EPOCH_NS",
        "write EPOCH(x), in seconds, or EPOCH_MS(x)",
    ),
    ("STRPTIME STR_TO_TIME PARSE_TIMESTAMP", "TRY_CAST(x AS TIMESTAMP) reads '2024-01-31 12:00:00'"),
    ("TO_DATE", "write CAST(x AS DATE), and TRY_CAST(x AS DATE) of a text such as '2024-01-31'"),
    (
        "TOSTRING TOINT8 TOINT16 TOINT32 TOINT64 TOUINT32 TOUINT64 TOFLOAT32 TOFLOAT64 TODATE TODATETIME TO_NUMBER",
        "write CAST(x AS type), or TRY_CAST(x AS type) where not every value has a result",
    ),
    ("TOHOUR TOMINUTE TOSECOND TODAYOFMONTH TOMONTH TOYEAR", "write EXTRACT(hour FROM x), and likewise for others"),
    ("IS_NAN ISNAN", "NaN is NULL here, so write x IS NULL"),
    ("CONCAT_WS FORMAT PRINTF", "write a || '-' || b"),
    (
        "STRING_SPLIT SPLIT STR_SPLIT STRING_TO_ARRAY REGEXP_SPLIT_TO_ARRAY",
        "there are no lists; write SPLIT_PART(x, ',', 1)",
    ),
    ("LIST_CONTAINS ARRAY_CONTAINS ARRAY_SIZE LIST_VALUE ARRAY STRUCT_PACK STRUCT_EXTRACT", _NESTED),
    ("ELEMENT_AT UNNEST EXPLODE SIZE CARDINALITY ARRAYJOIN HAS", _NESTED),
    (
        "TIME_BUCKET DATE_BIN TIMESTAMP_FLOOR TIMESTAMP_CEIL TOSTARTOFMINUTE TOSTARTOFHOUR TOSTARTOFINTERVAL",
        "write DATE_TRUNC('minute', x), and in GROUP BY TUMBLE(t.ts, INTERVAL '5' MINUTE)",
    ),
    ("TUMBLE HOP WINDOW SESSION TUMBLE_START TUMBLE_END TUMBLESTART TUMBLEEND", "a window of time belongs in GROUP BY"),
    ("REGEXP MATCH MATCHES", "write REGEXP_MATCHES(x, 'a.*b')"),
    (
        "LAG LEAD ROW_NUMBER RANK DENSE_RANK NTILE FIRST_VALUE LAST_VALUE",
        "the tuple before is found by FROM a x ASOF JOIN a y MATCH_CONDITION (x.ts > y.ts) ON x.k = y.k",
    ),
    ("TRY", "write TRY_CAST(x AS type); no other function fails"),
    (
        "NVL2 DECODE DECODE_CASE ISNULL ZEROIFNULL NULLIFZERO",
        "write CASE WHEN x IS NULL THEN y ELSE z END, or COALESCE",
    ),
    ("HASH MD5 SHA1 SHA256 SHA2 FARM_FINGERPRINT", "compare the values themselves"),
    ("INITCAP REPEAT ASCII CHR SOUNDEX LEVENSHTEIN PAD OVERLAY TRANSLATE", "make it a column before the join"),
    ("MULTIIF", "write CASE WHEN a THEN x WHEN b THEN y ELSE z END"),
    ("PI", "write 3.141592653589793"),
    ("CBRT", "write SIGN(x) * POWER(ABS(x), 1.0 / 3)"),
    ("CONVERT_TIMEZONE FROM_UTC_TIMESTAMP TO_UTC_TIMESTAMP TIMEZONE", "times with a zone are read in UTC"),
    ("AGO", _SAME),
    ("ALL", "write x NOT IN (1, 2), or x IN (1, 2)"),
    ("COLUMNS", "write the columns that you want, each with its name"),
)
_FIRST: Final = "the first groups of each window are chosen by QUALIFY, after GROUP BY and HAVING"
_QUANTILE: Final = "write QUANTILE(x, 0.5)"
_OF_AGGREGATES: Final = (
    (
        "STRING_AGG GROUP_CONCAT LISTAGG ARRAY_AGG LIST COLLECT_LIST COLLECT_SET HISTOGRAM MAP_AGG GROUPARRAY",
        "an aggregate gives one value: make lists where the rows are read",
    ),
    ("APPROX_DISTINCT APPROX_COUNT_DISTINCT UNIQ COUNT_DISTINCT UNIQEXACT", "write COUNT(DISTINCT x)"),
    ("ANY_VALUE ARBITRARY ANY", "write MIN(x)"),
    ("FIRST_VALUE EARLIEST_BY_OFFSET", "write ARG_MIN(x, t.ts)"),
    ("LAST_VALUE LATEST_BY_OFFSET ANYLAST", "write ARG_MAX(x, t.ts)"),
    ("MEAN", "write AVG(x)"),
    ("KSUM NSUM FSUM SUMKAHAN", "write SUM(x), which is exact"),
    ("VWAP", "write SUM(price * amount) / SUM(amount)"),
    ("STDDEVPOP STDDEVSAMP VARPOP VARSAMP", "write STDDEV_POP(x), STDDEV_SAMP(x), VAR_POP(x) or VAR_SAMP(x)"),
    ("TOPK TOP_K APPROX_TOP_K", _FIRST),
    ("SUMIF AVGIF MINIF MAXIF", "write SUM(x) FILTER (WHERE y), and likewise for others"),
    ("EVERY", "write BOOL_AND(x)"),
    ("APPROX_QUANTILE QUANTILE_CONT QUANTILE_DISC QUANTILEEXACT MEDIANEXACT", _QUANTILE),
    ("PERCENTILE PERCENTILE_DISC PERCENTILE_APPROX APPROX_PERCENTILE", _QUANTILE),
    ("TUMBLE_START HOP_START TUMBLESTART HOPSTART", "write window_start"),
    ("TUMBLE_END HOP_END TUMBLE_ROWTIME HOP_ROWTIME TUMBLEEND HOPEND", "write window_end"),
)
_OTHER_AGGREGATE: Final = f"the aggregate {{name}} is not offered; there are: {', '.join(AGGREGATES)}"
OPERATORS: Final = {
    "//": "// is not allowed: write FLOOR(x / y)",
    "**": "** is not allowed: write POWER(x, y)",
    "<<": "bits can't be shifted: write x * POWER(2, n)",
    ">>": "bits can't be shifted: write FLOOR(x / POWER(2, n))",
    "MOD": "MOD is not allowed between two values: write x % y",
    "%s": "a parameter has a name: write :name, and give its value beside the text",
    ":=": "arguments have no names: write them in their order",
    "&&": "&& is not allowed: write AND, and OR in place of || between conditions",
}
"""Operators that the parser does not know here, and what to write instead."""
_AGGREGATE_ADVICE: Final = {name: advice for names, advice in _OF_AGGREGATES for name in names.split()}
_ADVICE: Final = {name: advice for names, advice in _INSTEAD for name in names.split()}
"""What to write instead of functions that are not here."""


def subquery(where: str) -> str:
    """Why there is no subquery, and what to write instead."""
    kinds = ('how="semi"', 'how="anti"') if where == CONDITION else ("SEMI JOIN b WITHIN 3 SECONDS ON ...", "ANTI JOIN")
    return (
        f"a subquery is not allowed in {where}: join what it reads, with {kinds[0]} for EXISTS and IN, and with "
        f"{kinds[1]} for NOT EXISTS and NOT IN"
    )


# Class name of the node, the message, and the tokens to point at if the node itself has no place.
_REFUSALS: Final[tuple[tuple[str, str, tuple[str, ...]], ...]] = (
    ("Query", "{subquery}", ("SELECT", "WITH", "VALUES")),
    ("Subquery", "{subquery}", ("SELECT", "WITH", "VALUES")),
    ("Exists", "{subquery}", ("EXISTS",)),
    ("All", "{subquery}", ("ALL",)),
    ("AtTimeZone", f"AT TIME ZONE is not allowed: {_ZONE}", ()),
    ("BitwiseXor", "^ is not allowed: write POWER(x, y)", ("CARET",)),
    ("Any", "ANY is not allowed in {where}: write x IN (1, 2), or for a subquery SEMI JOIN", ("ANY", "SOME")),
    (
        "Window",
        "a window function is not allowed in {where}: {windows}",
        ("OVER",),
    ),
    ("AggFunc", "the aggregate {name} is not allowed in {where}, which sees one row of each side{groups}", ()),
    ("Placeholder", "a placeholder is not allowed: write the value itself", ("PLACEHOLDER", "COLON")),
    ("Parameter", PARAMETER, ("PARAMETER",)),
    ("Star", "* is not a column: name one", ("STAR",)),
    ("Tuple", "a list of values is only allowed after IN", ()),
    ("Distinct", "DISTINCT is only allowed in IS [NOT] DISTINCT FROM", ("DISTINCT",)),
    (
        "Dot",
        "a column is written qualifier.name, and functions have no qualifier; of a window of time write window_start",
        (),
    ),
    ("Struct", "braces are not allowed in {where}: a parameter is written :name", ("L_BRACE",)),
    *((kind, REGEX, ()) for kind in ("RegexpILike", "RegexpFullMatch", "SimilarTo", "Glob")),
    ("BitwiseNot", "~ is not allowed; allowed operators: + - * / %", ("TILDE",)),
    ("Bracket", JSON, ()),
    ("IntDiv", "DIV is not allowed: write FLOOR(x / y)", ()),
    ("Binary", "this operator is not allowed; allowed: + - * / %, comparisons, AND, OR", ()),
    ("Command", "a statement is not allowed in {where}", ()),
    ("Func", "unknown function {name}; {near}known: {functions}", ()),
)


def refusal(kinds: Sequence[str], name: str, where: str = CONDITION) -> tuple[str, tuple[str, ...]]:
    """The message for a node of these classes, and the kinds of tokens to point at."""
    if kinds[0].startswith("JSON") or ("Func" in kinds and "JSON" in name.upper()):
        return JSON.format(where=where), ()
    own = _AGGREGATE_ADVICE.get(name.upper()) if where in (SUMMARY, GROUPED) else None
    if advice := own or _ADVICE.get(name.upper()):
        return f"{name.upper()} is not allowed: {advice}", ()
    if "AggFunc" in kinds and where in (SUMMARY, GROUPED):
        return _OTHER_AGGREGATE.format(name=name.upper()), ()
    for kind, message, words in _REFUSALS:
        if kind in kinds:
            near = difflib.get_close_matches(name.upper(), NAMES, n=1)
            fields = {"name": name.upper(), "where": where, "subquery": subquery(where), "functions": ", ".join(NAMES)}
            fields["groups"] = "" if where == CONDITION else ": add GROUP BY TUMBLE(t.ts, INTERVAL '1' MINUTE)"
            fields["windows"] = (
                _FIRST if where == GROUPED else "for the tuples around each one write WINDOW JOIN with itself"
            )
            return message.format(near=f"did you mean {near[0]}? " if near else "", **fields), words
    return f"{kinds[0].upper()} is not allowed in {where}", ()
