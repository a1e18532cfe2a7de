"""Duewheel: a distributed job scheduler on Kafka."""
