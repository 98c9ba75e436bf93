import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "e2e"))
from sampled import pytest_collection_modifyitems, pytest_report_header  # noqa: E402, F401
