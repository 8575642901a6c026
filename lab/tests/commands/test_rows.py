import json
import os
import threading

import pytest

from gradwire_lab.commands._rows import RowFile

ROWS = [{"op": "encode", "samples": [1.5, 2.5], "text": "\N{GREEK SMALL LETTER PHI}"}, {"op": "decode"}, {}]


def test_the_file_is_complete_after_every_row(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text("much longer than what comes first, and gone with it" * 9)
    with RowFile(path) as file:
        for count, row in enumerate(ROWS, 1):
            file.add(row)
            assert json.loads(path.read_text()) == ROWS[:count]
    assert path.read_text() == json.dumps(ROWS, indent=2) + "\n"


def test_no_row_is_an_empty_array(tmp_path):
    path = tmp_path / "rows.json"
    with RowFile(path):
        pass
    assert path.read_text() == "[]\n"


def test_an_error_before_the_first_row_leaves_the_file_alone(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text("older")
    with pytest.raises(ZeroDivisionError), RowFile(path):
        raise ZeroDivisionError
    assert path.read_text() == "older"


def test_a_pipe_gets_the_same_text(tmp_path):
    path, got = tmp_path / "pipe", []
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: got.append(path.read_text()))
    reader.start()
    large = [*ROWS, {"samples": list(range(50_000))}]
    with RowFile(path) as file:
        for row in large:
            file.add(row)
    reader.join()
    assert json.loads(got[0]) == large
