"""Parsers for the output of cluster commands, and diagnoses of problems in it.

| module | reads |
|---|---|
| `recorded` | outputs of real machines with their sources (synthetic ones are marked); `Sign` |
| `gpus` | `nvidia-smi pmon`, `dmon`, `-q -d …`, `nvlink -s`, `topo -m`, `amd-smi`, Xids |
| `ports` | `ibstat`, `ibstatus`, `ibv_devinfo`, `ibv_devices`, `rdma link`, counters |
| `nccl_table` | all_reduce_perf and its siblings of nccl-tests |

Parsers that only chapter 16 uses (containers, pods, NCCL's log and torch's watchdog) are in its own
package. A parser takes text and returns frozen records; an unreadable line raises a ValueError that
quotes it. `…_signs` turns records into `Sign`s: what is wrong, what to do, and what the command
cannot tell.
"""
