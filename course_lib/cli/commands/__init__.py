"""One file for each subcommand of `course`; its name is the subcommand's."""
