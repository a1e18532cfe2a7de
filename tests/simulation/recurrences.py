"""How the simulated producers let a job recur: every kind, every policy, with slots so close that some are missed and some overlap."""

from __future__ import annotations

from random import Random
from typing import Any, Final

_LINES: Final = ("* * * * * *", "*/2 * * * * *", "*/5 * * * * *", "3,17,41 * * * * *", "*/20 * * * * *", "* * * * *")
# All of them are minutes away from where their clocks jump.
_ZONES: Final = (None, "UTC", "Europe/Berlin", "Asia/Kolkata", "Australia/Lord_Howe")


def draw(random: Random, now_ms: int, until_ms: int) -> dict[str, Any]:
    """What a `Job` that recurs has beyond any other: the fields by name. Half of them have an end soon after `until_ms`, or before."""
    fields: dict[str, Any] = {}
    kind = random.choice(("every", "every", "every_after", "cron"))
    if kind == "cron":
        fields |= {"cron": random.choice(_LINES), "tz": random.choice(_ZONES)}
    else:
        fields[kind] = random.choice((1, 1.5, 2, 3.7, 6, 11))
    if random.random() < 0.3:
        fields["start"] = now_ms + random.choice((-60_000, -1_234, 500, 4_000))
    if random.random() < 0.5:
        fields["end"] = random.randrange(now_ms + 9_000, max(now_ms, until_ms) + 10_000)
    if random.random() < 0.3:
        fields["max_runs"] = random.choice((1, 2, 5, 12))
    if random.random() < 0.25:
        fields["jitter"] = random.choice((0.05, 0.9))
    fields["misfire"] = random.choice(("once", "skip", "all"))
    if fields["misfire"] == "all" and random.random() < 0.5:
        fields["misfire_limit"] = random.choice((1, 3, 50))
    fields["grace"] = random.choice((None, 0.3, 2.0, 8.0))
    fields["overlap"] = random.choice(("skip", "allow", "queue", "replace"))
    if fields["overlap"] == "allow" and random.random() < 0.5:
        fields["overlap_limit"] = random.choice((1, 2, 50))
    return fields
