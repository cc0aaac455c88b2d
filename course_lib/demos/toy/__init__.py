"""DDP around a model on two devices: the program, and the job that launchers start."""
