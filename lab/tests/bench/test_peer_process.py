import sys
from pathlib import Path

import pytest

from gradwire_lab.bench.peer_process import Process
from gradwire_lab.bench.peer_venv import PeerError, python_with

ECHO = """
import json, os, sys
for line in sys.stdin:
    request = json.loads(line)
    if request["do"] == "sleep":
        continue
    if request["do"] == "die":
        sys.exit("last words")
    if request["do"] == "refuse":
        print(json.dumps({"error": "not today"}), flush=True)
    else:
        print(json.dumps({"value": [request, os.environ["PEER_WORD"]]}), flush=True)
"""


@pytest.fixture
def peer(tmp_path):
    script = tmp_path / "peer.py"
    script.write_text(ECHO)
    with Process(Path(sys.executable), script, {"PEER_WORD": "hello"}, deadline=120.0) as process:
        yield process


def test_answers_come_back_in_order(peer):
    for number in range(3):
        assert peer.ask("echo", number=number) == [{"do": "echo", "number": number}, "hello"]


def test_a_refusal_is_an_error_and_the_peer_lives_on(peer):
    with pytest.raises(PeerError, match="refused 'refuse': not today"):
        peer.ask("refuse")
    assert peer.ask("echo")


def test_the_last_words_of_a_peer_that_ends_are_told(peer):
    with pytest.raises(PeerError, match="ended during 'die': last words"):
        peer.ask("die")
    with pytest.raises(PeerError, match="ended during 'echo'"):
        peer.ask("echo")


def test_a_peer_that_does_not_answer_is_stopped(peer):
    peer._deadline = 0.2
    with pytest.raises(PeerError, match=r"did not answer 'sleep' within 0\.2 s"):
        peer.ask("sleep")
    assert peer.process.poll() is not None


@pytest.mark.parametrize("file", ["thesis.txt", "pyvenv.cfg"])
def test_what_somebody_else_made_is_left_alone(tmp_path, file):
    (tmp_path / file).write_text("years of work")
    with pytest.raises(PeerError, match="must be empty or an environment made by gradwire"):
        python_with(["mxnet==1.9.1"], tmp_path)
    assert (tmp_path / file).read_text() == "years of work"


def test_a_requirement_that_cannot_be_installed_says_what_pip_said(tmp_path):
    with pytest.raises(PeerError, match=r"pip install .* failed: ERROR: "):
        python_with([str(tmp_path / "no-such-package")], tmp_path / "venv")
    assert (tmp_path / "venv" / "gradwire-peer.json").read_text() == "[]"
