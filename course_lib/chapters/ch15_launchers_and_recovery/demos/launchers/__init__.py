"""One job under several launchers: the program, the job, and how its processes are ended."""
