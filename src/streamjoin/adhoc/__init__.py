"""Ad-hoc joins: many SQL queries over shared streams, created and dropped while the streams run."""

from streamjoin.adhoc.join_key import JoinKey, KeyedJoin
from streamjoin.adhoc.plan import JoinStep, Output, Predicate, Query, Source, Stream
from streamjoin.adhoc.sql import parse
from streamjoin.adhoc.terms import BandTerm, Equality

__all__ = [
    "BandTerm",
    "Equality",
    "JoinKey",
    "JoinStep",
    "KeyedJoin",
    "Output",
    "Predicate",
    "Query",
    "Source",
    "Stream",
    "parse",
]
