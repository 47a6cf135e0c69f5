"""NVFlare as what carries a run: its jobs, certificates and connections; rounds, sums and privacy are ours.

| file | |
|---|---|
| `job_cell` | requests between the processes of a job, whose payload is opaque bytes |
| `hub`, `membership` | the server's and a client's end of the lines over a job's cell |
| `controller`, `executor` | what NVFlare starts at the server, in place of `fedstrata serve`, and at a site |
| `launchers` | start the process of a job again that a signal has ended |
| `site`, `handover` | what a site says of itself in its kit; what the supervisor leaves for the controller |
| `supervisor` | `fedstrata serve --on nvflare`: submits the job, and again when it is gone |
| `kit` | makes a startup kit ready for all that |

Of NVFlare's tasks, models and filters nothing is used, and a job holds no code: it names a run's folder.
"""
