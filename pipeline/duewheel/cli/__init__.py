"""The `duewheel` command."""
