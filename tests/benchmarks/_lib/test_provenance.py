"""Every setting says which commit ran, with its options."""

import json
import subprocess

import pytest
from click.testing import CliRunner

from benchmarks._lib.command import benchmark, plotted, recorded, size
from benchmarks._lib.provenance import commit


def git(folder, *arguments):
    run = subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    return run.stdout.strip()


def test_the_commit_is_none_outside_git_and_dirty_where_tracked_files_differ(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)
    assert commit(tmp_path) is None
    git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("one")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-qm", "one")
    head = git(tmp_path, "rev-parse", "HEAD")
    (tmp_path / "other").write_text("untracked")
    assert commit(tmp_path) == head
    (tmp_path / "file").write_text("two")
    assert commit(tmp_path) == f"{head}-dirty"


@benchmark("studies.none --data FOLDER")
@recorded
@size("--num_rows", 100, quick=5, help="Rows.")
@plotted
def none(report, data, num_rows, plot_path):
    """A benchmark of nothing."""
    report.setting["extra"] = num_rows
    report.figure("rows", num_rows)


@pytest.mark.parametrize(("given", "rows"), [((), 100), (("--quick",), 5), (("--num_rows", "7", "--quick"), 7)])
def test_a_setting_holds_options_as_they_hold_and_data_by_name(tmp_path, given, rows):
    arguments = ["--json", "--seed", "3", "--data", str(tmp_path), "--plot_path", "p.png", *given]
    run = CliRunner().invoke(none, arguments, catch_exceptions=False)
    document = json.loads(run.output)
    setting = document["setting"]
    assert (setting["num_rows"], setting["extra"], setting["seed"], setting["commit"]) == (rows, rows, 3, commit())
    assert setting["data"] == tmp_path.name
    assert "plot_path" not in setting
    assert document["figures"]["rows"]["value"] == rows
