"""Which kernel a program becomes: its segments, loops and passes, or the reason why it is not one kernel."""
