"""Implementations of the ports: Kafka, Avro, RocksDB, the system clock."""
