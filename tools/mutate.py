"""Commands for cosmic-ray, the mutation tool, beside its settings in tools/mutate.toml; CONTRIBUTING.md shows them.

``sample``  leaves as many mutations of each part of the package as asked for, drawn by seed, if the tests pass without
``test``    runs the tests that belong to the file that differs from the commit: cosmic-ray's test command
"""

from __future__ import annotations

import argparse
import ast
import functools
import os
import random
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = Path("src/gradwire")
TESTS = {
    "compressors": ["tests/compressors"],
    "memory": ["tests/memory"],
    "optim": ["tests/optim"],
    "kvstore": ["tests/kvstore"],
    "engine": ["tests/core", "tests/strategies", "tests/integrations"],
    "transport": ["tests/core", "tests/strategies", "tests/integrations"],
}
"""Folders of the tests of each part."""

WHOLE = {"optim": ["tests/meeting"]}
"""Folders that are run whole: workers that meet import what is under test by way of ``gradwire.rounds``."""

EVERYWHERE = ["tests/golden", "tests/contracts"]
"""Tests that go through the registry: those of a method have its name in theirs."""

TOGETHER = ["tests/contracts/test_identities.py"]
"""Tests of many methods, memories and strategies each: a case has their names in its own, and CASES selects it."""


def part_of(module: Path) -> str:
    """``compressors`` of src/gradwire/compressors/sparse/topk.py."""
    folder = [name for name in module.relative_to(PACKAGE).parent.parts if name != "contrib"]
    return {"mxnet": "kvstore"}.get(folder[0], folder[0]) if folder else ""


@functools.cache
def untested(module: Path) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Find the types and the messages of a file: each from a (line, column) up to another."""
    nodes = list(ast.walk(ast.parse((ROOT / module).read_text())))
    types = [getattr(node, name, None) for node in nodes for name in ("annotation", "returns")]
    messages = [node for node in nodes if isinstance(node, ast.JoinedStr | ast.Raise)]
    return [
        ((each.lineno, each.col_offset), (each.end_lineno, each.end_col_offset))
        for each in [*types, *messages]
        if each is not None
    ]


def sample(session: str, count: int, seed: int) -> None:
    """Draw ``count`` places of every part and one mutation of each; drop the others from the session."""
    from cosmic_ray.work_db import use_db
    from cosmic_ray.work_item import WorkItem

    with use_db(session) as work:
        places: dict[str, dict[tuple[Path, tuple[int, int]], list[WorkItem]]] = defaultdict(lambda: defaultdict(list))
        for item in work.pending_work_items:
            (mutation,) = item.mutations
            places[part_of(mutation.module_path)][mutation.module_path, mutation.start_pos].append(item)
        chosen, generator = [], random.Random(seed)
        for part in sorted(places):
            tested = [
                (module, start)
                for module, start in sorted(places[part])
                if not any(first <= start < end for first, end in untested(module))
            ]
            for place in generator.sample(tested, count):
                found = sorted(places[part][place], key=lambda item: str(item.mutations))
                chosen.append(generator.choice(found))
        for module in sorted({item.mutations[0].module_path for item in chosen}):
            # Otherwise every mutant of the file would count as noticed.
            if run_tests(module):
                sys.exit(f"the tests of {module} fail without a mutation: mend them first")
        work.clear()
        work.add_work_items(chosen)
    print(f"{len(chosen)} mutations are left")


def related(module: Path) -> tuple[list[list[str]], str]:
    """Arguments for pytest, a list for each call, and what the names of cases match.

    First what imports the file, then what finds it through the registry.
    """
    part, name = part_of(module), module.stem
    dotted = ".".join(module.relative_to("src").with_suffix("").parts)
    users = {module}
    if name.startswith("_"):
        users |= {path for path in (ROOT / module.parent).glob("*.py") if re.search(rf"\b{name}\b", path.read_text())}
    found = []
    for folder in map(Path, TESTS.get(part, TESTS["engine"])):
        own = {folder / f"test_{user.stem}.py" for user in users}
        tests = sorted((ROOT / folder).glob("test_*.py"))
        found += [test for test in tests if test.relative_to(ROOT) in own]
        found += [test for test in tests if test not in found and re.search(rf"\b{dotted}\b", test.read_text())]
    files = [str(test.relative_to(ROOT)) for test in found] or TESTS.get(part, TESTS["engine"])
    files = [*files, *WHOLE.get(part, [])]
    names = sorted({user.stem for user in users if not user.stem.startswith("_")})
    if part not in ("compressors", "memory", "strategies") or not names:
        return [files], ""
    by_case = f"(?i){'|'.join(names)}"
    return [files, [*EVERYWHERE, "-k", " or ".join(names)], TOGETHER], by_case


def test() -> int:
    """Run the tests of the changed file; 0 where all pass or there is none."""
    changed = subprocess.run(
        ["git", "diff", "--name-only", "HEAD", "--", str(PACKAGE)], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    return run_tests(Path(changed[0])) if changed else 0


def run_tests(module: Path) -> int:
    """Run the tests that belong to a file; 0 where all pass or there is none, otherwise pytest's exit code."""
    calls, by_case = related(module)
    for arguments in calls:
        environment = os.environ | ({"CASES": by_case} if arguments is TOGETHER else {})
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", *arguments]
        code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
        if code not in (0, 5):  # 5: no test has the name.
            return code
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    drawing = commands.add_parser("sample")
    drawing.add_argument("session")
    drawing.add_argument("--count", type=int, default=8, help="mutations of each part")
    drawing.add_argument("--seed", type=int, default=1)
    commands.add_parser("test")
    given = parser.parse_args()
    sys.exit(test() if given.command == "test" else sample(given.session, given.count, given.seed))
