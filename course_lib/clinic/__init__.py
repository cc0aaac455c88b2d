"""What the commands of a cluster print, read by small parsers, and the signs of trouble in it.

| module | reads |
|---|---|
| `recorded` | outputs of real machines, each with its source; a few built ones say so |
| `gpu_use` | `nvidia-smi pmon` and `dmon` |
| `gpu_state` | `nvidia-smi -q -d ECC,ROW_REMAPPER,PERFORMANCE`, `nvlink -s`, `dcgmi diag` |
| `gpu_topology` | `nvidia-smi topo -m` |
| `xid` | lines of the kernel's log with an Xid |
| `ports` | `ibstat`, `ibstatus`, `ibv_devinfo`, `ibv_devices`, `rdma link` |
| `port_counters` | /sys/class/infiniband/…/counters, `mlnx_perf` |
| `nccl_log` | NCCL_DEBUG=INFO |
| `nccl_choice` | nothing: which ports and interfaces NCCL's variables choose |
| `nccl_table` | all_reduce_perf and its siblings of nccl-tests |
| `container` | `df -h /dev/shm`, `ulimit -l`, a docker line, a pod and its events |
| `commands` | no output: the table of all commands, with what they can't say |
| `tables` | the same, as tables for a notebook |

A parser takes text and returns frozen records; a line that it can't read is a ValueError that shows
the line. `…_signs` turns records into `Sign`s: what is wrong, what to do, and what
the command can't say.
"""
