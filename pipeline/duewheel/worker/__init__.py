"""The fleet: task registry, claims in action, executors."""
