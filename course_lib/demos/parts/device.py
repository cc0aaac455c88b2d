"""Names of devices, for reports."""

import torch


def device_name(device: torch.device) -> str:
    """ "CPU", or the GPU's own name."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
