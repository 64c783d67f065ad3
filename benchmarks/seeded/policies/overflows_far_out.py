"""Right wherever it was tested; far out its value overflows float32."""

import torch


def spoil(policy):
    policy.value_head.value.weight.data = torch.full_like(policy.value_head.value.weight, 3e37)
