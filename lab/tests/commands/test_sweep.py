SUITE = 'tasks = ["classification"]\nmethods = ["none"]\n'


def test_mistakes_are_told_before_anything_starts(gradwire, tmp_path):
    suite, notes = tmp_path / "suite.toml", tmp_path / "notes.txt"
    suite.write_text(SUITE)
    notes.write_text("notes of mine")
    for arguments, said in (
        (["--results", str(tmp_path / "nowhere" / "results.jsonl")], "cannot be written: No such file or directory"),
        (["--results", str(notes)], "must be a file of results"),
        (["--timeout", "nan"], "'nan' is not a number of seconds"),
        (["--timeout", "inf"], "inf is not in the range"),
        (["--budget", "soon"], "budget must be a time above 0"),
        (["--budget", "0h"], "budget must be a time above 0"),
    ):
        done = gradwire("sweep", str(suite), *arguments)
        assert done.exit_code == 2, done.output
        assert said in " ".join(done.stderr.split()), arguments
    assert notes.read_text() == "notes of mine"


def test_what_is_left_is_said_and_no_file_is_made(gradwire, tmp_path):
    suite, results = tmp_path / "suite.toml", tmp_path / "results.jsonl"
    suite.write_text(SUITE + "seeds = 3\n")
    done = gradwire("sweep", str(suite), "--results", str(results), "--dry-run")
    assert done.exit_code == 0, done.output
    assert "0 runs ended well, 0 failed; left are 3: 3 of classification" in done.stdout
    assert not results.exists()
