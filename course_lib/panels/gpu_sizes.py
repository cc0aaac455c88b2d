"""The sizes of GPU memory that panels offer."""

from course_lib.theory.inputs.units import GB

# As the data sheets print them, read as 10^9 bytes, the smaller of the two readings. PyTorch
# reports about 6 % more on an A100 or H100 (theory.inputs.hardware): left for what is no tensor.
GPU_MEMORY_BYTES = {
    "RTX 4090 24 GB": 24 * GB,  # NVIDIA Ada architecture whitepaper, appendix A
    "A100 40 GB": 40 * GB,  # NVIDIA A100 data sheet
    "A100, H100 80 GB": 80 * GB,  # NVIDIA A100 and H100 data sheets
    "H200 141 GB": 141 * GB,  # NVIDIA H200 data sheet
}
