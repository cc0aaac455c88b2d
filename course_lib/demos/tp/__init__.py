"""The tensor-parallelism demo and its versions, which fsdp_tp also uses."""
