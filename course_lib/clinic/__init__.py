"""What the commands of a cluster print, read by small parsers, and the signs of trouble in it.

| module | reads |
|---|---|
| `recorded` | outputs of real machines, each with its source; a few built ones say so; `Sign` |
| `gpus` | `nvidia-smi pmon`, `dmon`, `-q -d …`, `nvlink -s`, `topo -m`, `amd-smi`, Xids |
| `ports` | `ibstat`, `ibstatus`, `ibv_devinfo`, `ibv_devices`, `rdma link`, counters |
| `nccl_table` | all_reduce_perf and its siblings of nccl-tests |

What chapter 16 alone reads (containers, pods, NCCL's log and torch's watchdog) lies in its room.
A parser takes text and returns frozen records; a line that it can't read is a ValueError that shows
the line. `…_signs` turns records into `Sign`s: what is wrong, what to do, and what
the command can't say.
"""
