"""How a verification looks: a line a difference and a line a partition for people, JSON objects for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

import click

from duewheel.adapters.audit.verifier import Report, StoreReport
from duewheel.cli.history_lines import moment, printable
from duewheel.core.differences import Difference, Fact, Kind, Unjudged

_REBUILD: Final = "stop the processor that has this store, delete the folder, and start it again: it is filled from the changelog"
_WRITTEN_BY_OTHERS: Final = "find out who else may write to the topic, and forbid it: only processors write there"
_REPORT: Final = "please report it, with what duewheel tail --from-beginning --job shows of the job"

# Of each kind: what it says, with the facts filled in, and what to do.
_WORDS: Final[dict[Kind, tuple[str, str]]] = {
    Kind.UNREADABLE: ("{topic}, offset {offset}, cannot be read: {reason}", _WRITTEN_BY_OTHERS),
    Kind.MISPLACED: ("lies on this partition of the state topic, at offset {offset}, and belongs on {home}", _WRITTEN_BY_OTHERS),
    Kind.ORPHAN: ("is {phase} with token {token} since {changed_ms}, and has no definition", "schedule it again, if it is still needed"),
    Kind.WENT_BACK: ("its {what} went back from {before} to {now}", _WRITTEN_BY_OTHERS),
    Kind.ENDED_TWICE: ("was {before} since {before_ms}, and became {now} at {now_ms}, with token {token}", _WRITTEN_BY_OTHERS),
    Kind.LOST: (
        "was acknowledged at offset {offset} of the intake, {acknowledged_ms}; it is not known, and nothing says that it ended",
        "schedule it again; " + _REPORT,
    ),
    Kind.FORGOTTEN_EARLY: (
        "was acknowledged at {acknowledged_ms}, ended at {ended_ms}, and is not known any more; it was to be kept for {keep_for_ms} ms",
        _WRITTEN_BY_OTHERS,
    ),
    Kind.PHANTOM: ("has a {what}, and no Schedule in the intake asked for it", _WRITTEN_BY_OTHERS),
    Kind.NOT_REPLACED: (
        "is known as generation {generation}, due {due_ms}, and the Schedule at offset {offset} of the intake took its place",
        "schedule it again; " + _REPORT,
    ),
    Kind.UNANSWERED: ("{topic}, offset {offset}, cannot be obeyed ({reason}), and no dead letter says so", _REPORT),
    Kind.LOG_SHORTER: (
        "{topic} ends at offset {end}, and was read up to {position}",
        "records were lost, or the topic was made anew: compare with what its producers know",
    ),
    Kind.UNFOUNDED: ("is {phase} with token {token} since {changed_ms}, and no outcome under this token says so", _WRITTEN_BY_OTHERS),
    Kind.UNHEARD: ("is {phase} with token {token}, and an outcome that was read tells of its end: {told}", _REPORT),
    Kind.UNKNOWN_TOKEN: ("has a {where} with token {token}; the highest that was given is {highest}", _WRITTEN_BY_OTHERS),
    Kind.EARLY: ("was dispatched at {dispatched_ms} with token {token}, and is due {due_ms}", _REPORT),
    Kind.AHEAD: ("was dispatched to {queue} with token {token}; by its state it is {phase}, with token {job_token}", _WRITTEN_BY_OTHERS),
    Kind.UNDISPATCHED: ("is {phase} with token {token} since {changed_ms}, and no dispatch to {queue} has this token", _WRITTEN_BY_OTHERS),
    Kind.DISPATCHED_TWICE: ("was dispatched {count} times with token {token}", _REPORT),
    Kind.NOT_BURIED: ("is dead with token {token} since {changed_ms}, and there is no dead run of it", _REPORT),
    Kind.NOT_DEAD: (
        "has an open dead run with token {token}, of {died_ms}, and is {phase}",
        "drop it: duewheel dead drop --id; " + _REPORT,
    ),
    Kind.STILL_DEAD: ("is dead with token {token} since {changed_ms}, and its dead run was closed", _REPORT),
    Kind.STORE_UNREADABLE: ("{error}", _REBUILD),
    Kind.STORE_OF_ANOTHER: ("{store} is a copy of {found}; the state topic is {expected}", _REBUILD),
    Kind.STORE_AHEAD: (
        "{store} has taken in the changelog up to offset {mark}, which ends at {end}",
        "records of the changelog were lost, or the topic was made anew: compare with what producers know, then delete the folder",
    ),
    Kind.STORE_VALUE: ("its {record} in the store is not the changelog's: {store}; the changelog has {changelog}", _REBUILD),
    Kind.STORE_MISSING: ("its {record} is not in the store; the changelog has {changelog}", _REBUILD),
    Kind.STORE_EXTRA: ("its {record} is in the store and not in the changelog: {store}", _REBUILD),
    Kind.STORE_TIMER: ("has no timer at {timer_ms} in the store: it would not fire", _REBUILD),
}

_UNJUDGED: Final = {
    Unjudged.INTAKE: "the intake does not reach back to when they were asked for",
    Unjudged.STATE: "they were asked for again after they had ended, and compaction has removed what became of that",
    Unjudged.OUTCOMES: "outcomes do not reach back to when they ended",
    Unjudged.DISPATCHES: "the dispatches of their queue do not reach back far enough",
    Unjudged.DEAD_LETTERS: "the dead letters do not reach back far enough",
    Unjudged.REPEATED: "so many different commands were sent for one job that not all were held",
    Unjudged.REGISTRY: "in the format of a schema registry; name it with --schema-registry",
}


def says(difference: Difference) -> str:
    """What differs, as what follows the name of the job; a sentence of its own where there is none."""
    words, _ = _WORDS[difference.kind]
    return words.format(**{name: _fact(name, value) for name, value in difference.facts.items()})


def remedy(difference: Difference) -> str:
    """What to do about it."""
    return _WORDS[difference.kind][1]


def difference_line(difference: Difference) -> str:
    """The line for people."""
    who = f"partition {difference.partition}:" if difference.job_id is None else printable(difference.job_id)
    kind = click.style(difference.kind.replace("_", " "), fg="red")
    return f"  {kind}: {click.style(who, bold=True)} {printable(says(difference))}"


def difference_json(difference: Difference) -> str:
    """One JSON object a difference."""
    return json.dumps(
        {
            "type": "difference",
            "partition": difference.partition,
            "job_id": difference.job_id,
            "kind": difference.kind,
            "says": says(difference),
            "remedy": remedy(difference),
            "facts": difference.facts,
        },
        separators=(",", ":"),
    )


def report_lines(report: Report, hidden: int) -> list[str]:
    """The lines for people about a partition, after its differences.

    Args:
        hidden: how many of these were not shown.
    """
    known = ", ".join(f"{count:,} {phase.lower()}" for phase, count in sorted(report.phases.items()))
    read = ", ".join(f"{name} {count:,}" for name, count in report.records.items())
    if report.differences:
        verdict = click.style(_count(report.differences, "difference"), fg="red", bold=True)
    else:
        verdict = click.style("agrees", fg="green")
    lines = [f"  {hidden:,} more; --limit shows them, --json has all"] if hidden else []
    lines.append(f"partition {report.partition}: {verdict}; {_count(report.jobs, 'job')}{f' ({known})' if known else ''}; read {read}")
    lines += [f"  {_store(store)}" for store in report.stores]
    lines += [f"  not judged: {count:,}, {_UNJUDGED[Unjudged(why)]}" for why, count in report.unjudged.items()]
    return lines


def report_json(report: Report) -> str:
    """One JSON object a partition."""
    return json.dumps({"type": "partition", **asdict(report)}, separators=(",", ":"))


def verdict_lines(reports: Sequence[Report], kinds: dict[Kind, str], *, with_stores: bool) -> list[str]:
    """The last lines for people: how it went, and what to do.

    Args:
        kinds: what to do about each kind that was found.
        with_stores: whether stores were to be compared.
    """
    differences, jobs = sum(report.differences for report in reports), sum(report.jobs for report in reports)
    stores = sum(store.outdated is None for report in reports for store in report.stores)
    lines = [f"{_count(len(reports), 'partition')}, {_count(jobs, 'job')}, {_count(stores, 'store')}: {_count(differences, 'difference')}"]
    if with_stores and not any(report.stores for report in reports):
        lines.append("no store of these partitions lies in the state directories that were named")
    lines += [f"  {kind.replace('_', ' ')}: {what}" for kind, what in kinds.items()]
    return lines


def verdict_json(reports: Sequence[Report]) -> str:
    """The last JSON object."""
    differences, jobs = sum(report.differences for report in reports), sum(report.jobs for report in reports)
    return json.dumps(
        {"type": "verdict", "partitions": len(reports), "jobs": jobs, "differences": differences, "agrees": not differences},
        separators=(",", ":"),
    )


def _store(store: StoreReport) -> str:
    if store.outdated is not None:
        return f"store {store.folder} not compared: {store.outdated}"
    line = f"store {store.folder}: {_count(store.compared, 'record')} compared"
    if store.beyond:
        line += f"; {_count(store.beyond, 'key')} written since its mark at offset {store.mark}: it may hold any of their values since then"
    return line


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _fact(name: str, value: Fact) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, int) and name.endswith("_for_ms"):
        return f"{value:,}"
    return moment(value) if isinstance(value, int) and name.endswith("_ms") else str(value)
