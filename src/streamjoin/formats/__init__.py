"""Formats that both runtimes share: Delta and Iceberg tables, Avro and Protobuf values."""
