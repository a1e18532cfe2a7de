"""Who runs handlers: threads, one event loop, processes; and which of several queues each serves next."""
