"""One thread for what runs in pytest's own process: two workers share the cores with all ranks."""

import torch

torch.set_num_threads(1)
