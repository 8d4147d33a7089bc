"""One thread, fresh draws (the same ones each time where CI is set), a seed for what is drawn without hypothesis."""

import os

import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
settings.register_profile(
    "regard",
    max_examples=60,
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
settings.load_profile("regard")


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
