"""Every command with each extra alone, and with none: what is missing is one line, with its remedy."""

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from packaging.utils import canonicalize_name

import gradwire_lab.commands
from gradwire._extras import declared, extra_of, install, laboratory
from gradwire.cli._folder import LABORATORY, app
from gradwire.registry import names_in
from lab.tests.report.made import replayed
from tests.extras import EXTRAS, LAB, brought, hidden, modules, variables
from tests.house.source import ROOT

pytestmark = pytest.mark.timeout(900)

ALONE = [(), *((extra,) for extra in EXTRAS)]
ENVIRONMENTS = [*ALONE, ("cli", "kvstore")]
"""The last one is what a page tells users of `gradwire launch` to install."""

CALLS = {
    "advise": (["--model", "resnet9", "--small", "--compute", "0.01", "--codec", "1,1"], LAB),
    "bench codec": (["--method", "topk", "--size", "4096", "--repeats", "1"], LAB),
    "bench exchange": (["--device", "meta", "--model", "5000", "--method", "bf16", "--budget", "0.01"], LAB),
    "bench kvstore": (["--network", "64", "--devices", "1", "--num-batches", "1"], LAB),
    "bench launches": (["--method", "nonesuch"], LAB),
    "check advise": (["--link", "none"], LAB),
    "check auto": (["--link", "fast"], LAB),
    "check cluster": ([], LAB),
    "check convergence": (["--method", "none", "--workers", "2", "--seeds", "1", "--epochs", "1"], LAB),
    "check gpu": (["--method", "nonesuch"], LAB),
    "check meeting": (["--fault-class", "nonesuch"], LAB),
    "check nccl": (["--ranks", "3"], LAB),
    "check regions": (["--steps", "7"], LAB),
    "check run": (["--link", "fast"], LAB),
    "check soak": (["--minutes", "0", "--steps", "0"], LAB),
    "check store": (["--fault-class", "nonesuch"], LAB),
    "demo": (["--epochs", "1"], LAB),
    "doctor": ([], "cli"),
    "help": (["methods"], "cli"),
    "keygen": (["FOLDER/keys", "--workers", "1"], "kvstore"),
    "launch": (["-n", "1", "--", sys.executable, "-c", "pass"], "kvstore"),
    "meeting": (["--bind", "nowhere"], "cli"),
    "methods": ([], "cli"),
    "models": ([], LAB),
    "netlab check": (["--rate", "fast"], LAB),
    "netlab down": (["nonesuch"], LAB),
    "netlab run": (["--link", "fast", "true"], LAB),
    "netlab status": ([], LAB),
    "netlab up": (["--rate", "fast"], LAB),
    "replay": (["lstm", "--small", "--link", "fast", "--baseline"], LAB),
    "report": (["FOLDER/rows.jsonl", "-o", "FOLDER/page.html"], LAB),
    "run": (["--", "nonesuchprogram"], "cli"),
    "server": (["--workers", "1", "--bind", "nowhere"], "kvstore"),
    "sweep": (["FOLDER/suite.toml", "--results", "FOLDER/results.jsonl", "--dry-run"], LAB),
    "train": (["classification", "--epochs", "1"], LAB),
    "try": (["--link", "fast", "true"], LAB),
    "version": ([], "cli"),
}
"""One call of each command, and the extra that it needs. A command that would run for long where nothing is missing is
given what it refuses, after it has loaded what it needs."""

REFUSED = {
    "bench launches",
    "check advise",
    "check auto",
    "check cluster",
    "check gpu",
    "check meeting",
    "check nccl",
    "check regions",
    "check run",
    "check soak",
    "check store",
    "meeting",
    "netlab check",
    "netlab down",
    "netlab run",
    "netlab up",
    "replay",
    "run",
    "server",
    "try",
}
LONG = {
    "advise": [(LAB,)],
    "bench codec": [(LAB,)],
    "check convergence": [],
    "train": [],
    "demo": [(LAB,)],
    "launch": [("cli", "kvstore")],
}
"""They start processes, or measure: they run in these environments alone, and where they end because something is
missing."""


def commands(group=app, name=()):
    """The names of all commands, groups left out."""
    ctx = click.Context(group)
    for each in group.list_commands(ctx):
        command = group.get_command(ctx, each)
        yield from commands(command, (*name, each)) if isinstance(command, click.Group) else [" ".join((*name, each))]


NAMES = list(commands())


def remedy(extra):
    """The line that a command gives where something is missing."""
    return laboratory() if extra == LAB else install(extra)


def has(environment, extra):
    """Return whether all that an extra brings is in the environment, whoever brought it."""
    return brought(extra) <= brought(*environment)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Environment and arguments to exit code, stdout and stderr; all of them in one process and its forks."""
    plan, keys = [], []
    rows = [replayed("ddp", "1gbit", 0.2), replayed("topk", "1gbit", 0.1)]
    for number, environment in enumerate(ENVIRONMENTS):
        folder = tmp_path_factory.mktemp(f"environment{number}")
        (folder / "suite.toml").write_text('tasks = ["classification"]\nmethods = ["none"]\n')
        (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        calls = {"--help": ["--help"]} | {f"{name} --help": [*name.split(), "--help"] for name in NAMES}
        for name, (arguments, extra) in CALLS.items():
            if not has(environment, extra) or environment in LONG.get(name, ENVIRONMENTS):
                calls[name] = [*name.split(), *(each.replace("FOLDER", str(folder)) for each in arguments)]
        absent, distributions = hidden(*environment)
        plan.append({"modules": absent, "distributions": distributions, "calls": list(calls.values())})
        keys.append([(environment, call) for call in calls])
    file = tmp_path_factory.mktemp("plan") / "plan.json"
    file.write_text(json.dumps(plan))
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("environments.py")), str(file)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, **variables(), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert None not in results, done.stderr
    pairs = [pair for names, found in zip(keys, results, strict=True) for pair in zip(names, found, strict=True)]
    return dict(pairs)


def one_line(err):
    """The only line of stderr."""
    (line,) = err.splitlines()
    return line


def test_the_laboratory_joins_the_commands_that_are_known_to_be_its():
    assert names_in(gradwire_lab.commands.__path__) == LABORATORY


def test_every_command_has_a_call():
    assert sorted(CALLS) == sorted(NAMES)
    assert {*REFUSED, *LONG} <= {*CALLS}
    assert {extra for _, extra in CALLS.values()} <= {*EXTRAS}


@pytest.mark.parametrize("extra", sorted({extra for _, extra in CALLS.values()} - {LAB}))
def test_an_extra_is_found_by_the_modules_that_it_brings(extra):
    for name in declared()[extra]:
        imported = [module for module, names in modules().items() if canonicalize_name(name) in names]
        assert imported, f"{name} is not installed"
        found = {module: extra_of(module) for module in imported if not module.startswith("_")}
        assert extra in found.values(), f"{name} is imported as {imported}: add it to gradwire._extras"


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=lambda names: "+".join(names) or "none")
def test_every_help_is_there_with_the_command_line_alone(ran, environment):
    for name in ("", *NAMES):
        code, out, err = ran[environment, f"{name} --help".strip()]
        if has(environment, "cli") and name.split(" ")[0] in LABORATORY and not has(environment, LAB):
            assert (code, out) == (2, ""), name
            assert one_line(err).endswith(f"is a command of the laboratory, which is not installed: {laboratory()}")
        elif has(environment, "cli"):
            assert (code, err) == (0, ""), name
            assert out.startswith(f"Usage: gradwire {name}".rstrip())
        else:
            assert (code, out) == (2, ""), name
            assert install("cli") in one_line(err)
    if has(environment, "cli"):
        _, out, _ = ran[environment, "--help"]
        listed, _, missing = out.partition("Commands:")[2].partition("Laboratory:")
        names = {line.split()[0] for line in listed.splitlines() if line.strip()}
        known = {name.split()[0] for name in NAMES}
        assert names >= (known if has(environment, LAB) else known - {*LABORATORY})
        assert (laboratory() in missing.replace("\n    ", "").replace("\n  ", " ")) != has(environment, LAB)


@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=lambda names: "+".join(names) or "none")
def test_a_command_runs_or_names_the_extra_that_it_needs(ran, environment):
    for name, (_, extra) in CALLS.items():
        if (environment, name) not in ran:
            continue
        code, out, err = ran[environment, name]
        assert "Traceback" not in out + err, f"{name}: {err}"
        missing = next((each for each in ("cli", extra) if not has(environment, each)), None)
        if missing is not None:
            assert code in (1, 2), name
            assert remedy(missing) in one_line(err), name
        elif name in REFUSED:
            assert code == 2, name
            assert "pip install" not in err, name
        elif name != "netlab status":
            assert code == 0, f"{name}: {err}"


EXAMPLES = """
import json, os, runpy, sys
said = {}
for path in sys.argv[1:]:
    sys.path[0] = os.path.dirname(path)  # As where it is started.
    try:
        runpy.run_path(path)
        said[path] = None
    except SystemExit as end:
        said[path] = end.code
print(json.dumps(said))
"""


def test_an_example_says_in_one_line_what_it_lacks():
    """Only what stands above main is run, without any extra."""
    paths = sorted(map(str, (ROOT / "examples").glob("*.py")))
    done = subprocess.run(
        [sys.executable, "-c", EXAMPLES, *paths],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, **variables()},
    )
    assert done.returncode == 0, done.stderr
    said = {Path(path).stem: text for path, text in json.loads(done.stdout).items()}
    lacking_nothing = {name for name, text in said.items() if text is None}
    assert lacking_nothing == {"fsdp2", "gpt", "metrics", "nanogpt"}
    for name in said.keys() - lacking_nothing:
        assert "\n" not in said[name]
        commands = [command for extra in EXTRAS for command in (install(extra), f"pip install '.[{extra}]'")]
        # A trainer, of which gradwire needs nothing, and the digits.
        commands += ["pip install 'torchtitan>=0.2.2,<0.3'", "pip install scikit-learn"]
        assert any(command in said[name] for command in commands), said[name]
