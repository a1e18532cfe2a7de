"""Writes `infra/broker/jars.lock` anew from `broker.toml`: `python -m duewheel.devbroker.relock`, in a checkout, with network.

Follows Maven's dependency rules from the declared artifacts and leaves out the excluded ones. What it fetches is trusted and pinned, so
look at the difference before committing it.
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from duewheel import resources
from duewheel.devbroker import jars


def relock(cache: Path) -> str:
    """The text of a new `jars.lock`."""
    declared = jars.declaration()["maven"]
    context = jars.maven_context(cache)
    roots = [context.create_dependency(name) for name in declared["artifacts"]]
    _root, nodes = context.resolver.get_dependency_list(roots)
    lines = set()
    for artifact in [root.artifact for root in roots] + [node.dep.artifact for node in nodes]:
        if f"{artifact.groupId}:{artifact.artifactId}" not in declared["excluded"]:
            digest = hashlib.sha256(artifact.resolve().read_bytes()).hexdigest()
            lines.add(f"{artifact.groupId}:{artifact.artifactId}:{artifact.version} {digest}\n")
    return "# Written by `python -m duewheel.devbroker.relock` from broker.toml: coordinate, SHA-256.\n" + "".join(sorted(lines))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        (resources.folder("infra/broker") / "jars.lock").write_text(relock(Path(temporary)))
