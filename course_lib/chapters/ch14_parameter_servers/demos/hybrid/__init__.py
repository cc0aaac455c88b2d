"""The hybrid of RPC and DDP: program, training, trace of one update, bytes through a link."""
