"""Sources that read Delta and Iceberg tables."""

from streamjoin.queries.sources.tables import DeltaSource, IcebergSource

__all__ = ["DeltaSource", "IcebergSource"]
