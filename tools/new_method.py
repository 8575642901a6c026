"""Write what a new method needs: ``python tools/new_method.py NAME --family FAMILY``.

The files work together as they are: they import, compile and are found. Whatever the method itself is raises
``NotImplementedError`` and names what to write. Seven files are written or extended in the tree; the eighth are the
golden bytes, which ``python tests/golden/freeze.py NAME`` makes of the finished method.

    src/gradwire/compressors/FAMILY/NAME.py       the method
    src/gradwire/compressors/FAMILY/ops.py        its operations, with their references
    src/gradwire/compressors/FAMILY/triton.py     the same on a GPU
    src/gradwire/compressors/FAMILY/NAME.cc       the same on a CPU
    tests/compressors/test_NAME.py                what is special about it, and the kernels against the references
    docs/methods/FAMILY.md                        its section
    CHANGELOG.md                                  its line

A family that is not there yet gets its folder, its page and its entry in mkdocs.yml. With ``--contrib`` the method is
one of the second tier: its files are in ``src/gradwire/contrib/compressors``, and no kernel for a GPU is among them.
"""

from __future__ import annotations

import argparse
import keyword
import re
import subprocess
import sys
from pathlib import Path
from string import Template

__all__ = ["new_method"]

ROOT = Path(__file__).parents[1]
SKELETON = Path(__file__).parent / "skeleton"
_MARK = re.compile(r"# --- what follows is .*\n")
_GPU = re.compile(r"^from tests\.ops\.triton.*\n|\n\n@sizes\n@CASES\ndef test_the_gpu.*\n.*\n", re.MULTILINE)
_ALL = re.compile(r"^__all__ = \[(.*?)\](  # fmt: skip)?\n", re.DOTALL | re.MULTILINE)


def new_method(name: str, family: str, root: Path = ROOT, *, contrib: bool = False) -> list[Path]:
    """Write the skeleton of a method into a tree of this project.

    Args:
        name: name of the method: lower-case letters, digits and underscores.
        family: the folder under ``compressors``.
        root: the tree.
        contrib: true: it is a method of the second tier.

    Returns:
        The files that were written or changed.

    Raises:
        ValueError: a name that is taken or no name of a module; or ruff refuses what came of the files, which are then
            as they were.
    """
    for what, given in (("NAME", name), ("FAMILY", family)):
        if not re.fullmatch(r"[a-z][a-z0-9_]*", given) or keyword.iskeyword(given):
            raise ValueError(
                f"{what} must be lower-case letters, digits and underscores, and no keyword, got {given!r}"
            )
    tiers = [root / "src" / "gradwire" / "compressors", root / "src" / "gradwire" / "contrib" / "compressors"]
    compressors = tiers[contrib]
    folder = compressors / family
    tests = root / "tests" / "compressors" / f"test_{name}.py"
    _check_new(name, family, [tests, folder / f"{name}.cc"], tiers, folder.parent)
    title = "".join(part.capitalize() for part in name.split("_"))
    package = "gradwire.contrib.compressors" if contrib else "gradwire.compressors"
    words = {"name": name, "family": family, "title": title, "package": package}
    texts = {} if folder.is_dir() else {folder / "__init__.py": f'"""{family.capitalize()}."""\n'}
    # All of them before any is written: a place that is missing leaves the tree as it was.
    page, changes = root / "docs" / "methods" / f"{family}.md", root / "CHANGELOG.md"
    texts |= {
        folder / f"{name}.py": _filled("method", words),
        folder / "ops.py": _extended(folder / "ops.py", _filled("ops", words), f"Operations of the {family}."),
        folder / "triton.py": _extended(folder / "triton.py", _filled("triton", words), f"The {family} on a GPU."),
        folder / f"{name}.cc": _filled("kernels", words),
        tests: _filled("test", words),
        page: _page(page, family) + _filled("section", words),
        changes: _inserted(changes, r"(?<=^### Added\n\n)", _filled("line", words)),
    }
    if not page.exists():
        navigation = root / "mkdocs.yml"
        entry = f"          - {family.capitalize()}: methods/{family}.md\n"
        texts[navigation] = _inserted(navigation, r"^ +- Memories: methods/", entry)
    if contrib:
        del texts[folder / "triton.py"]
        # Neither compiled for AVX-512 nor for a GPU.
        kernels = texts[folder / f"{name}.cc"]
        texts[folder / f"{name}.cc"] = kernels.replace("GRADWIRE_KERNEL(", "GRADWIRE_KERNEL_SECOND(")
        texts[tests] = re.sub(_GPU, "", texts[tests])
    made = not folder.is_dir()
    before = {path: path.read_bytes() if path.exists() else None for path in texts}
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        _tidy([file for file in texts if file.suffix == ".py"], root)
    except BaseException:
        _restore(before)
        if made:
            folder.rmdir()
        raise
    return list(texts)


def _check_new(name: str, family: str, files: list[Path], tiers: list[Path], compressors: Path) -> None:
    """Refuse a name or a family that is something else already.

    Raises:
        ValueError: the message says what there is.
    """
    methods = [file for tier in tiers for file in (*tier.glob(f"*/{name}.py"), *tier.glob(f"{name}.py"))]
    taken = [file for file in (*files, *methods, compressors / name) if file.exists()]
    if taken:
        raise ValueError(f"NAME must be new, and there is {taken[0]}")
    if (compressors / f"{family}.py").exists():
        raise ValueError(f"FAMILY must be a folder, and {family!r} is a method")
    operations = {f"{name}_{step}" for step in ("encode", "encode_feedback", "add_decoded")}
    for file in (*(file for tier in tiers for file in tier.glob("*/ops.py")), *tiers[0].parent.glob("kernels/*.py")):
        known = operations & set(re.findall(r"^def (\w+)\(", file.read_text(encoding="utf-8"), re.MULTILINE))
        if known:
            raise ValueError(f"NAME must be new: {file} has {', '.join(sorted(known))}")


def _tidy(files: list[Path], root: Path) -> None:
    """Sort the imports of the files and format them.

    Raises:
        ValueError: ruff finds what it cannot mend.
    """
    for command in (["check", "--fix", "--quiet"], ["format", "--quiet"]):
        call = [sys.executable, "-m", "ruff", *command, *map(str, files)]
        done = subprocess.run(call, cwd=root, capture_output=True, text=True)
        if done.returncode:
            raise ValueError(
                f"ruff must accept the files, which are as they were; it says:\n{done.stdout}{done.stderr}"
            )


def _restore(before: dict[Path, bytes | None]) -> None:
    """Give files their former bytes; None: there was none."""
    for path, content in before.items():
        if content is None:
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(content)


def _filled(part: str, words: dict[str, str]) -> str:
    return Template((SKELETON / f"{part}.txt").read_text(encoding="utf-8")).substitute(words)


def _extended(path: Path, addition: str, head: str) -> str:
    """A module with more imports, definitions and names in ``__all__``; with the docstring ``head`` if it is new."""
    imports, definitions = _MARK.split(addition)
    text = path.read_text(encoding="utf-8") if path.exists() else f'"""{head}"""\n\n__all__ = []\n'
    found = _ALL.search(text)
    if found is None:
        raise ValueError(f"{path} must have a list __all__ of strings")
    public = re.findall(r"^def ([a-z]\w*)", definitions, re.MULTILINE)
    names = sorted({*re.findall(r'"(\w+)"', found[1]), *public})
    listed = "".join(f'    "{name}",\n' for name in names)
    before = f"{text[: found.start()].rstrip()}\n{imports.strip()}\n\n"
    return f"{before}__all__ = [\n{listed}]\n{text[found.end() :].rstrip()}\n\n\n{definitions.strip()}\n"


def _page(path: Path, family: str) -> str:
    """The page of a family, or one without a method, whose tables `make tables` fills."""
    if path.exists():
        return path.read_text(encoding="utf-8")
    tables = "".join(f"\n<!-- {name} -->\n<!-- end of {name} -->\n" for name in ("costs", "promises", "columns"))
    return f"# {family.capitalize()}\n\nSay what these methods have in common, and which to try first.\n{tables}"


def _inserted(path: Path, place: str, addition: str) -> str:
    text = path.read_text(encoding="utf-8")
    found = re.search(place, text, re.MULTILINE)
    if found is None:
        raise ValueError(f"{path} has no place {place!r}")
    return text[: found.start()] + addition + text[found.start() :]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--family", required=True, metavar="FAMILY", help="the folder under src/gradwire/compressors")
    parser.add_argument("--contrib", action="store_true", help="a method of the second tier")
    given = parser.parse_args()
    try:
        files = new_method(given.name, given.family, contrib=given.contrib)
    except ValueError as error:
        sys.exit(str(error))
    print("\n".join(str(file.relative_to(ROOT)) for file in files))
    print(f"then: make tables; make test; python tests/golden/freeze.py {given.name}")
