"""Libraries that some tests compare with, imported where a test asks for them: each process would import them else."""

from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def diffusers() -> ModuleType:
    import diffusers

    return diffusers
