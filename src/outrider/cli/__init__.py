"""The `outrider` command, one file a subcommand."""
