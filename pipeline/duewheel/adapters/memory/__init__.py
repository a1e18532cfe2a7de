"""The whole outside world in one process: Kafka, disks and clocks, in virtual time, one thing after the other."""
