"""The commands: one small file each; what is heavy is imported when a command runs."""
