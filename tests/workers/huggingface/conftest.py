"""Without torch there is no engine to test: then none of these modules is read."""

import importlib.util

if importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]
