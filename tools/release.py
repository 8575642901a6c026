"""Compare the version of a release wherever it is written: ``python tools/release.py v1.2.3``.

The tag names it; both pyproject.toml (lab/ has one), CITATION.cff and a dated section of CHANGELOG.md have to agree.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

__all__ = ["disagreements"]

ROOT = Path(__file__).parents[1]


def disagreements(tag: str, root: Path = ROOT) -> list[str]:
    """List what does not fit the tag, a line each; an empty list if the release can be published."""
    found = re.fullmatch(r"v(\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?)", tag)
    if found is None:
        return [f"the tag must be v and a version, as v1.2.3 or v1.2.3rc1, got {tag!r}"]
    version = found[1]
    wrong = []
    for file in ("pyproject.toml", "lab/pyproject.toml"):
        project = tomllib.loads((root / file).read_text(encoding="utf-8"))["project"]
        if project["version"] != version:
            wrong.append(f"{file} has version {project['version']!r}, and the tag is {tag}: change one of them")
    if f"gradwire[cli,kvstore]=={version}" not in project["dependencies"]:
        wrong.append(f"lab/pyproject.toml must depend on gradwire[cli,kvstore]=={version}")
    if f"\nversion: {version}\n" not in (root / "CITATION.cff").read_text(encoding="utf-8"):
        wrong.append(f"CITATION.cff must have the line 'version: {version}'")
    heading = rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$"
    if not re.search(heading, (root / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE):
        wrong.append(f"CHANGELOG.md must have a section '## [{version}] - YYYY-MM-DD' below [Unreleased]")
    return wrong


if __name__ == "__main__":
    problems = disagreements(sys.argv[1] if len(sys.argv) == 2 else "")
    print("\n".join(problems) or "the version is the same everywhere")
    sys.exit(bool(problems))
