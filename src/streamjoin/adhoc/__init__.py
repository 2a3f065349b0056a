"""Ad-hoc joins: many SQL queries over shared streams, created and dropped while the streams run."""

from typing import TYPE_CHECKING

from streamjoin.adhoc._lazy import attribute as __getattr__  # noqa: F401
from streamjoin.adhoc.join_key import JoinKey, KeyedJoin
from streamjoin.adhoc.plan import JoinStep, Output, Predicate, Query, Source, Stream
from streamjoin.adhoc.sql import parse
from streamjoin.model.terms import BandTerm, Equality

if TYPE_CHECKING:
    from streamjoin.adhoc.apart import open_core
    from streamjoin.adhoc.changes import Create, Drop, Pause, Resume
    from streamjoin.adhoc.core import Shared
    from streamjoin.adhoc.engine import Engine
    from streamjoin.adhoc.handle import QueryHandle
    from streamjoin.adhoc.settings import Settings
    from streamjoin.adhoc.sink_specs import NamedSink
    from streamjoin.adhoc.sinks import CallbackSink, MemorySink
    from streamjoin.adhoc.sinks_files import ParquetSink
    from streamjoin.adhoc.sinks_spark import KafkaSink, TableSink

__all__ = [
    "BandTerm",
    "CallbackSink",
    "Create",
    "Drop",
    "Engine",
    "Equality",
    "JoinKey",
    "JoinStep",
    "KafkaSink",
    "KeyedJoin",
    "MemorySink",
    "NamedSink",
    "Output",
    "ParquetSink",
    "Pause",
    "Predicate",
    "Query",
    "QueryHandle",
    "Resume",
    "Settings",
    "Shared",
    "Source",
    "Stream",
    "TableSink",
    "open_core",
    "parse",
]
