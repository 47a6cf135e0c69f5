"""`workers`: simulated clients that compute at the same time, in processes of this machine or of Ray.

| file | |
|---|---|
| `turns` | which process gets which of the clients' turns, and answers models that are scored |
| `jobs` | what is computed in another process, and the protocol of what computes it |
| `process` | what such a process does |
| `forked_workers`, `fork_server` | processes of this machine, forked from one that has imported everything |
| `ray_workers`, `ray_actor` | actors of Ray, on the machines of a cluster |
"""
