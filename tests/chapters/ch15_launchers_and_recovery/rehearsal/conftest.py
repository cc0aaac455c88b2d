"""One thread for what runs in pytest's own process: workers share the cores."""

import torch

torch.set_num_threads(1)
