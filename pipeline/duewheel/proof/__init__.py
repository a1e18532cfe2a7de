"""The proof: judges from a history of what happened whether the promises were kept. Pure; knows no Kafka and no clock.

history.py    what can happen, event by event, and how histories are kept in files
ledger.py     the events of a history, sorted by job, by token and by log, in one pass
invariants/   the promises, one class each
vacuity.py    whether the run exercised enough to prove anything
report.py     the verdict: a table for people, a dict for programs
"""
