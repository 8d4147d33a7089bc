"""One thread, fresh draws, a seed for everything that is drawn without hypothesis."""

import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
settings.register_profile(
    "regard",
    max_examples=60,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
settings.load_profile("regard")


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
