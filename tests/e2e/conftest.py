from sampled import pytest_collection_modifyitems, pytest_report_header  # noqa: F401
