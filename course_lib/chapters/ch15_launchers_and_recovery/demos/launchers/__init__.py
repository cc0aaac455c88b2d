"""One job under several launchers: the demo, the job, and the cleanup of its processes."""
