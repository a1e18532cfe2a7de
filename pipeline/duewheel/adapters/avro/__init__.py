"""Avro, through fastavro."""
