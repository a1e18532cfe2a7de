"""Reads the logs and the stores of an installation for `core.audit`, which judges them."""
