"""Kafka, through confluent-kafka."""
