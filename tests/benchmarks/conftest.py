from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.recordings import write


@pytest.fixture(scope="session")
def recordings_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of small recordings, as studies read them by `--data`."""
    folder = tmp_path_factory.mktemp("recordings")
    write(folder)
    return folder
