"""Tests in this folder run on devices, or not at all."""

from pathlib import Path

import pytest
from cuda_session import REAL

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip them, unless they are asked for; a device that is then missing is an error."""
    if REAL:
        return
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.skip("needs a GPU and HPCCOLL_TEST_GPU=1: make test-gpu"))
