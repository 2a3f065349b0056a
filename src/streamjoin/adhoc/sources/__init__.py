"""Sources that an engine without Spark reads in this process: FileSource, RateSource (generated rows), KafkaSource."""

from typing import TYPE_CHECKING

from streamjoin._lazy import lazy

if TYPE_CHECKING:
    from streamjoin.queries.sources.files import FileSource
    from streamjoin.queries.sources.kafka import KafkaSource
    from streamjoin.queries.sources.rate import RateSource

__all__ = ["FileSource", "KafkaSource", "RateSource"]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "FileSource": "queries.sources.files",
        "KafkaSource": "queries.sources.kafka",
        "RateSource": "queries.sources.rate",
    },
)
