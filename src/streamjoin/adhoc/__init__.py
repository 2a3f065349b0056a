"""Ad-hoc joins: many SQL queries over shared streams, created and dropped while the streams run."""

from typing import TYPE_CHECKING

from streamjoin.adhoc._lazy import attribute as __getattr__  # noqa: F401
from streamjoin.adhoc.language.join_key import JoinKey, KeyedJoin
from streamjoin.adhoc.language.plan import JoinStep, Output, Predicate, Query, Source, Stream
from streamjoin.adhoc.language.sql import parse
from streamjoin.model.terms import BandTerm, Equality

if TYPE_CHECKING:
    from streamjoin.adhoc.core.apart import open_core
    from streamjoin.adhoc.core.changes import Create, Drop, Pause, Resume
    from streamjoin.adhoc.core.settings import Settings
    from streamjoin.adhoc.core.shared import Shared
    from streamjoin.adhoc.engine.engine import Engine
    from streamjoin.adhoc.engine.handle import QueryHandle
    from streamjoin.adhoc.sinks.base import CallbackSink, MemorySink
    from streamjoin.adhoc.sinks.files import ParquetSink
    from streamjoin.adhoc.sinks.spark import KafkaSink, TableSink
    from streamjoin.adhoc.sinks.specs import NamedSink

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
